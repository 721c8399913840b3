#pragma once
/// What the files of the binding share.

#include <nanobind/nanobind.h>

#include <lca/lca.h>

#include <chrono>
#include <future>
#include <optional>
#include <stop_token>
#include <utility>

namespace lca::python {

namespace nb = nanobind;

void errors_bind(nb::module_& module);
void views_bind(nb::module_& module);
void operators_bind(nb::module_& module);
void model_bind(nb::module_& module);
void session_bind(nb::module_& module);
void generate_bind(nb::module_& module);

/// Runs `work(stop_token)` in a thread of its own while this one waits without the GIL and looks
/// for signals. Ctrl-C requests the stop, waits for the work to end, and is raised here.
template <typename Work>
auto run_interruptible(Work&& work) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  std::stop_source stop;
  auto done = std::async(std::launch::async, [&work, &stop] { return work(stop.get_token()); });
  std::optional<nb::python_error> interrupt;
  for (bool ready = false; !ready;) {
    {
      const nb::gil_scoped_release unlocked;
      ready = done.wait_for(kLook) == std::future_status::ready;
    }
    if (!interrupt && PyErr_CheckSignals() != 0) {
      interrupt.emplace();
      stop.request_stop();
    }
  }
  if (interrupt) {
    try {
      done.get();
    } catch (const std::exception&) {  // that it was stopped, most likely
    }
    throw std::move(*interrupt);
  }
  return done.get();
}

}  // namespace lca::python
