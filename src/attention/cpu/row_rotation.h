#pragma once
/// How a cache's rows are rotated on.

#include "attention/cache_state.h"
#include "attention/cpu/vector.h"

namespace lca {

/// Without steps where positions are those of tokens.
inline cpu::RowRotation row_rotation(const Cache::State& state) {
  if (state.rotation_steps.empty()) return {};
  return {state.spec.rotation.layout, state.rotation_steps.data(),
          static_cast<std::int64_t>(state.rotation_steps.size())};
}

}  // namespace lca
