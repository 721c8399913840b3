#pragma once
/// Handling of Ctrl-C and of closed pipes.

#include <stop_token>
#include <string>
#include <thread>

namespace lca::cli {

/// From now on Ctrl-C (and a request to terminate) ends the program at once with exit code
/// 128 + signal, except inside an InterruptShield or an InterruptWatch; a closed pipe becomes a
/// write error.
void interrupt_install();

/// Throws Error (cancelled) if a signal is pending.
void interrupt_check();

/// Whether a signal is pending: it was only noted.
bool interrupt_pending();

/// Clears the pending signal: the work it was meant for has stopped.
void interrupt_clear();

/// The exit code for the pending signal.
int interrupt_exit_code();

/// Sets whether a progress line is being drawn, which the handler then ends.
void interrupt_line_open(bool open);

/// During its lifetime a signal that ends the program removes this file first. One at a time.
class InterruptUnlink {
 public:
  explicit InterruptUnlink(std::string path);
  ~InterruptUnlink();
  InterruptUnlink(const InterruptUnlink&) = delete;
  InterruptUnlink& operator=(const InterruptUnlink&) = delete;

 private:
  std::string path_;
};

/// During its lifetime a signal is only noted: a file being written is finished or removed first.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

/// Throws Error before the work, rather than after it, if the file cannot be written. Leaves
/// nothing behind: the work may be interrupted at any time.
void writable_check(const std::string& path);

/// During its lifetime the first signal is only noted, for work that checks `interrupt_pending` and
/// still has output when it stops; the second ends the program at once.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
};

/// Requests a stop as soon as a signal is noted, so that work with a stop token ends inside a
/// chunk.
class InterruptStop {
 public:
  InterruptStop();
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread watcher_;
};

}  // namespace lca::cli
