#pragma once
/// Throwing lca::Error with formatted text.

#include <lca/error.h>

#include <fmt/format.h>

#include <utility>

namespace lca {

/// Throws "bad input": the caller's file, flag or argument is wrong.
template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::bad_input, fmt::format(text, std::forward<Args>(args)...));
}

/// Throws "failure": the work itself could not be done.
template <typename... Args>
[[noreturn]] void fail_run(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::failure, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace lca
