#pragma once
/// The one error type of the library.

#include <stdexcept>
#include <string>

namespace lca {

/// What kind of trouble it is; the command line turns it into its exit code.
enum class ErrorKind {
  bad_input,  ///< the caller's file, flag or argument is wrong (exit code 2)
  failure,    ///< the work itself failed: disk full, out of memory, … (exit code 1)
  cancelled,  ///< the caller asked to stop (exit code 130)
};

/// An error with what is wrong, where, and what to do about it, in one line.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace lca
