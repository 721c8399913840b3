#pragma once
/// The layout of weights for decoding.

#include <functional>

#include "models/weights.h"

namespace lca {

/// Moves every linear weight whose type has a strip layout (ops/strips.h) that this processor
/// supports into strips, and releases the pages it came from. The embedding keeps its rows, which
/// are looked up one by one. `progress` receives 0 … 1.
void weights_arrange(Context& context, DecoderWeights& weights, const Checkpoint& checkpoint,
                     const std::function<void(double)>& progress);

}  // namespace lca
