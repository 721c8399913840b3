#pragma once
/// Replies of tiny models, for the tests of `generate`.

#include "engine/byte_tokenizer.h"
#include "engine/reply.h"
#include "engine/saved_session.h"

namespace lca::test {

inline const Tokenizer& tokenizer() {
  static const Tokenizer made = byte_tokenizer({"<end>"});
  return made;
}

inline Sampling drawn(std::uint64_t seed, double temperature = 1) {
  Sampling sampling;
  sampling.seed = seed;
  sampling.temperature = temperature;
  return sampling;
}

inline std::vector<std::int32_t> joined(std::span<const std::int32_t> a,
                                        std::span<const std::int32_t> b) {
  std::vector<std::int32_t> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace lca::test
