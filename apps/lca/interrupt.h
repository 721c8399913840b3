#pragma once
/// Ctrl-C, and readers that go away.

#include <stop_token>
#include <string>
#include <thread>

namespace lca::cli {

/// From now on Ctrl-C (and a request to terminate) ends the program at once with exit code
/// 128 + signal, except inside an InterruptShield or an InterruptWatch; a closed pipe becomes a
/// write error.
void interrupt_install();

/// Throws Error (cancelled) where Ctrl-C was held back.
void interrupt_check();

/// Whether Ctrl-C was held back.
bool interrupt_pending();

/// Forgets it: what it was meant for has been stopped.
void interrupt_clear();

/// The exit code a held-back signal asks for.
int interrupt_exit_code();

/// Tells the handler whether a progress line is being drawn, which it then has to end.
void interrupt_line_open(bool open);

/// While one lives a signal that ends the program removes this file first. One at a time.
class InterruptUnlink {
 public:
  explicit InterruptUnlink(std::string path);
  ~InterruptUnlink();
  InterruptUnlink(const InterruptUnlink&) = delete;
  InterruptUnlink& operator=(const InterruptUnlink&) = delete;

 private:
  std::string path_;
};

/// While one lives a signal is only noted: a file being written is finished or removed first.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

/// Finds out that a file cannot be written before the work rather than after it, and leaves no
/// trace: the work may be interrupted at any time.
void writable_check(const std::string& path);

/// While one lives the first signal is only noted, for work that looks at `interrupt_pending` and
/// has something left to say when it stops; the second ends the program at once.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
};

/// Requests a stop as soon as a signal is noted: work that takes a stop token ends inside a chunk.
class InterruptStop {
 public:
  InterruptStop();
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread watcher_;
};

}  // namespace lca::cli
