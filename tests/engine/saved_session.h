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
#include "support/small_session.h"

namespace lca::test {

inline std::vector<float> logits_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

/// Everything a session holds, as bytes.
inline std::string image(const Session& session) {
  const ScratchFolder folder;
  session.save(folder / "s");
  return read_file(folder / "s");
}

/// A model with one thread, and sessions on it.
struct Bench {
  explicit Bench(const std::string& name, Precision precision = Precision::f32,
                 CacheStorage cache = CacheStorage::plain)
      : model(GoldenModel(name).load(precision, cache)) {}

  std::vector<std::int32_t> tokens(std::int64_t count, std::uint32_t seed = 7) const {
    return some_tokens(count, model->info().vocabulary, seed);
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
