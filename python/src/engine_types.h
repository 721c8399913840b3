#pragma once
/// Types of the engine's part of the binding.

#include "binding.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lca::python {

/// Settings of layers, each as {name: value}.
nb::list settings_list(const std::vector<Settings>& settings);

/// `base` with a preset (empty: none) in its place and `changes` (name, value) on top; a value may
/// be a list with one value per layer.
std::vector<Settings> settings_change(std::vector<Settings> base, const std::string& preset,
                                      const nb::dict& changes);

/// A session and the context it runs on.
struct PySession {
  PySession(std::shared_ptr<Context> where, Session&& its)
      : context(std::move(where)), session(std::move(its)) {}
  std::shared_ptr<Context> context;
  Session session;
};

/// A callable of Python's, called from a thread that does not hold the GIL.
class PyCallback {
 public:
  explicit PyCallback(const nb::object& callable) : callable_(callable) {}
  explicit operator bool() const { return !callable_.is_none(); }
  /// True unless it returned False.
  template <typename... Args>
  bool operator()(Args&&... args) const {
    const nb::gil_scoped_acquire locked;
    return !callable_(std::forward<Args>(args)...).is(nb::bool_(false));
  }

 private:
  const nb::object& callable_;
};

}  // namespace lca::python
