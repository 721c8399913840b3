#pragma once
/// Settings under which short texts are condensed, and texts for them.

#include <lca/settings.h>

#include <cstdint>
#include <vector>

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

inline std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary,
                                             std::uint32_t seed = 7) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(
        static_cast<std::int32_t>((seed >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace lca::test
