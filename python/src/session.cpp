/// Sessions: prompts, tokens, marks, forks and files.

#include "engine_types.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>

namespace lca::python {
namespace {

using Ids = std::vector<std::int32_t>;
using SessionPointer = std::unique_ptr<PySession>;

std::function<bool(PrefillProgress)> progress_of(const PyCallback& report) {
  if (!report) return {};
  return [&report](PrefillProgress progress) { return report(progress.done, progress.total); };
}

SessionOptions options_of(const Model& model, const std::string& preset, const nb::dict& changes,
                          std::int64_t chunk, std::size_t marks) {
  SessionOptions options;
  if (!preset.empty() || nb::len(changes) > 0) {
    options.settings = settings_change(model.settings(), preset, changes);
  }
  options.chunk = chunk;
  options.marks = marks;
  return options;
}

/// A numpy array that owns its values.
template <typename Value>
nb::object array_of(std::vector<Value> values, std::vector<std::size_t> shape) {
  auto* kept = new std::vector<Value>(std::move(values));
  const nb::capsule owner(kept,
                          [](void* p) noexcept { delete static_cast<std::vector<Value>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, Value>(kept->data(), shape.size(), shape.data(), owner));
}

SessionPointer session_new(const std::shared_ptr<Model>& model,
                           const std::shared_ptr<Context>& context, const std::string& preset,
                           const nb::dict& changes, std::int64_t chunk, std::size_t marks) {
  const SessionOptions options = options_of(*model, preset, changes, chunk, marks);
  return std::make_unique<PySession>(context, Session(model, *context, options));
}

SessionPointer session_load(const std::shared_ptr<Model>& model,
                            const std::shared_ptr<Context>& context, const std::string& path) {
  const nb::gil_scoped_release unlocked;
  return std::make_unique<PySession>(context, Session::load(model, *context, path));
}

void session_prefill(PySession& self, const Ids& ids, const nb::object& progress) {
  const PyCallback report(progress);
  run_interruptible([&](const std::stop_token& stop) {
    self.session.prefill(ids, progress_of(report), {}, stop);
  });
}

/// Reads `ids` and returns the logits of every position: [count, vocabulary].
nb::object session_prefill_logits(PySession& self, const Ids& ids) {
  const auto width = static_cast<std::size_t>(self.session.model().info().vocabulary);
  std::vector<float> all(ids.size() * width);
  const std::int64_t start = self.session.length();
  run_interruptible([&](const std::stop_token& stop) {
    self.session.prefill(
        ids, {},
        [&](std::int64_t first, std::int64_t count, const float* logits) {
          std::copy_n(logits, static_cast<std::size_t>(count) * width,
                      all.begin() + static_cast<std::ptrdiff_t>(
                                        static_cast<std::size_t>(first - start) * width));
        },
        stop);
  });
  return array_of(std::move(all), {ids.size(), width});
}

/// Reads `ids` and returns ln p of each; of the first only where the session has logits, else NaN.
nb::object session_score(PySession& self, const Ids& ids, const nb::object& progress) {
  const PyCallback report(progress);
  Session& session = self.session;
  std::vector<float> scores(ids.size(), std::numeric_limits<float>::quiet_NaN());
  if (!ids.empty() && !session.logits().empty()) {
    scores[0] = logprobs_of(session.logits(), ids[0]).logprob;
  }
  const std::int64_t start = session.length();
  const auto width = static_cast<std::size_t>(session.model().info().vocabulary);
  run_interruptible([&](const std::stop_token& stop) {
    session.prefill(
        ids, progress_of(report),
        [&](std::int64_t first, std::int64_t count, const float* logits) {
          for (std::int64_t i = 0; i < count; ++i) {
            const auto next = static_cast<std::size_t>(first - start + i) + 1;
            if (next >= ids.size()) return;
            const std::span<const float> row(logits + static_cast<std::size_t>(i) * width, width);
            scores[next] = logprobs_of(row, ids[next]).logprob;
          }
        },
        stop);
  });
  const std::size_t count = scores.size();
  return array_of(std::move(scores), {count});
}

void session_decode(PySession& self, std::int32_t token) {
  run_interruptible([&](const std::stop_token& stop) { self.session.decode(token, stop); });
}

nb::object session_logits(const PySession& self) {
  const std::span<const float> logits = self.session.logits();
  if (logits.empty()) return nb::none();
  return array_of(std::vector<float>(logits.begin(), logits.end()), {logits.size()});
}

SessionPointer session_fork(const PySession& self, std::optional<std::int64_t> length,
                            const nb::object& progress) {
  const PyCallback report(progress);
  return run_interruptible([&](const std::stop_token& stop) {
    return std::make_unique<PySession>(
        self.context,
        self.session.fork(length.value_or(self.session.length()), progress_of(report), stop));
  });
}

}  // namespace

void session_bind(nb::module_& module) {
  nb::class_<PySession>(module, "Session")
      .def("prefill", &session_prefill, nb::arg("ids"), nb::arg("progress").none() = nb::none())
      .def("prefill_logits", &session_prefill_logits, nb::arg("ids"))
      .def("score", &session_score, nb::arg("ids"), nb::arg("progress").none() = nb::none())
      .def("decode", &session_decode, nb::arg("token"))
      .def("logits", &session_logits)
      .def("mark", [](PySession& self) { self.session.mark(); })
      .def("marks", [](const PySession& self) { return self.session.marks(); })
      .def("truncate_floor", [](const PySession& self) { return self.session.truncate_floor(); })
      .def(
          "truncate", [](PySession& self, std::int64_t length) { self.session.truncate(length); },
          nb::arg("length"))
      .def(
          "keep_prefix",
          [](PySession& self, const Ids& prompt) { return self.session.keep_prefix(prompt); },
          nb::arg("prompt"))
      .def("fork", &session_fork, nb::arg("length").none() = nb::none(),
           nb::arg("progress").none() = nb::none())
      .def(
          "save",
          [](const PySession& self, const std::string& path) {
            const nb::gil_scoped_release unlocked;
            self.session.save(path);
          },
          nb::arg("path"))
      .def_prop_ro("tokens", [](const PySession& self) { return self.session.tokens(); })
      .def_prop_ro("length", [](const PySession& self) { return self.session.length(); })
      .def_prop_ro("settings",
                   [](const PySession& self) { return settings_list(self.session.settings()); })
      .def_prop_ro("notices", [](const PySession& self) { return self.session.notices(); })
      .def_prop_ro("cache_bytes", [](const PySession& self) { return self.session.cache_bytes(); })
      .def_prop_ro("dense_bytes", [](const PySession& self) { return self.session.dense_bytes(); });
  module.def("session_new", &session_new, nb::arg("model"), nb::arg("context"), nb::arg("preset"),
             nb::arg("changes"), nb::arg("chunk"), nb::arg("marks"));
  module.def("session_load", &session_load, nb::arg("model"), nb::arg("context"), nb::arg("path"));
}

}  // namespace lca::python
