#pragma once
/// Lays weights out for decoding.

#include <functional>

#include "models/weights.h"

namespace lca {

/// Moves every linear weight whose type allows it into strips (ops/strips.h), where this processor
/// multiplies them; the pages they came from are given back. The embedding keeps its rows, which
/// are looked up one by one. `progress` is told 0 … 1.
void weights_arrange(Context& context, DecoderWeights& weights, const Checkpoint& checkpoint,
                     const std::function<void(double)>& progress);

}  // namespace lca
