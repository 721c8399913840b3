#pragma once
/// Throwing lca::Error with formatted text, one function per kind.

#include <lca/error.h>

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <utility>

namespace lca {

template <ErrorKind kind, typename... Args>
[[noreturn]] void fail_with(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

/// The caller's file, flag or argument is wrong.
template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::bad_input>(text, std::forward<Args>(args)...);
}

/// A file or folder does not exist.
template <typename... Args>
[[noreturn]] void fail_not_found(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::not_found>(text, std::forward<Args>(args)...);
}

/// Valid by itself, but made for another model, version or device.
template <typename... Args>
[[noreturn]] void fail_incompatible(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::incompatible>(text, std::forward<Args>(args)...);
}

/// Host or device memory ran out.
template <typename... Args>
[[noreturn]] void fail_memory(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::out_of_memory>(text, std::forward<Args>(args)...);
}

/// In use by another thread or process.
template <typename... Args>
[[noreturn]] void fail_busy(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::busy>(text, std::forward<Args>(args)...);
}

/// Reading or writing failed.
template <typename... Args>
[[noreturn]] void fail_io(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::io>(text, std::forward<Args>(args)...);
}

/// A defect of this library or of one it calls.
template <typename... Args>
[[noreturn]] void fail_internal(fmt::format_string<Args...> text, Args&&... args) {
  fail_with<ErrorKind::internal>(text, std::forward<Args>(args)...);
}

/// Throws Error (out of memory) without allocating.
[[noreturn]] void fail_out_of_memory();

/// Runs `work` at the edge of the public API: std::bad_alloc leaves as Error (out of memory).
template <typename Work>
decltype(auto) guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    fail_out_of_memory();
  } catch (const std::length_error&) {  // a container asked for more than there can be
    fail_out_of_memory();
  }
}

}  // namespace lca
