#pragma once
/// Ctrl-C, and readers that go away.

namespace lca::cli {

/// From now on Ctrl-C (and a request to terminate) ends the program at once with exit code
/// 128 + signal, except inside an InterruptShield; a closed pipe becomes a write error.
void interrupt_install();

/// Throws Error (cancelled) where Ctrl-C was held back by a shield that is gone now.
void interrupt_check();

/// The exit code a held-back signal asks for.
int interrupt_exit_code();

/// Tells the handler whether a progress line is being drawn, which it then has to end.
void interrupt_line_open(bool open);

/// While one lives a signal is only noted: a file being written is finished or removed first.
class InterruptShield {
 public:
  InterruptShield();
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;
};

}  // namespace lca::cli
