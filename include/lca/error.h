#pragma once
/// The one error type of the library.

#include <stdexcept>
#include <string>

namespace lca {

/// What went wrong; the command line derives its exit code from it (`error_exit_code`).
enum class ErrorKind {
  bad_input,      ///< a file, flag or argument is wrong
  not_found,      ///< a file or folder does not exist
  incompatible,   ///< valid by itself, but made for another model, version or device
  out_of_memory,  ///< host or device memory ran out
  busy,           ///< in use by another thread or process
  cancelled,      ///< the caller asked to stop
  io,             ///< reading or writing failed: disk full, file cut short, …
  internal,       ///< a defect of this library or of one it calls
};

/// An error with what is wrong, where, and what to do about it, in one line.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// The exit code a program should end with: 2 for bad_input, not_found and incompatible, 130 for
/// cancelled, 1 for the rest.
constexpr int error_exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input:
    case ErrorKind::not_found:
    case ErrorKind::incompatible:
      return 2;
    case ErrorKind::cancelled:
      return 130;
    case ErrorKind::out_of_memory:
    case ErrorKind::busy:
    case ErrorKind::io:
    case ErrorKind::internal:
      break;
  }
  return 1;
}

}  // namespace lca
