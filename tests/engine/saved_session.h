#pragma once
/// Small sessions for the tests that save them.

#include <lca/lca.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/session_file.h"
#include "formats/byte_files.h"
#include "support/golden_model.h"

namespace lca::test {

inline Settings small_settings(MethodKind method = MethodKind::lca) {
  Settings settings;
  settings.method = method;
  settings.group = 4;
  settings.window = 8;
  settings.sink = 2;
  settings.summary_queries = 4;
  return settings;
}

inline Settings prompt_settings() {
  Settings settings = small_settings();
  settings.summary = Summary::prompt;
  return settings;
}

inline std::vector<std::int32_t> token_run(std::int64_t count, std::int64_t vocabulary,
                                           std::uint32_t seed = 7) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(
        static_cast<std::int32_t>((seed >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return tokens;
}

inline std::vector<float> logits_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

/// A model with one thread, and sessions on it.
struct Bench {
  explicit Bench(const std::string& name, Precision precision = Precision::f32)
      : model(GoldenModel(name).load(precision)) {}

  std::vector<std::int32_t> tokens(std::int64_t count, std::uint32_t seed = 7) const {
    return token_run(count, model->info().vocabulary, seed);
  }
  Session session(const std::vector<Settings>& settings, std::int64_t chunk = 16) {
    return {model, context, {settings, chunk}};
  }
  /// One that has read `prompt` tokens and taken `reply` more.
  Session spoken(const std::vector<Settings>& settings, std::int64_t prompt, std::int64_t reply) {
    Session made = session(settings);
    const std::vector<std::int32_t> all = tokens(prompt + reply);
    made.prefill(std::span(all).first(static_cast<std::size_t>(prompt)));
    for (std::int64_t i = prompt; i < prompt + reply; ++i) {
      made.decode(all[static_cast<std::size_t>(i)]);
    }
    return made;
  }

  std::shared_ptr<const Model> model;
  Context context{1};
};

}  // namespace lca::test
