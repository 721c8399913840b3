#pragma once
/// The layout of weights for decoding, and of an adapter beside them.

#include <functional>

#include "models/weights.h"

namespace lca {

/// Moves every linear weight whose type has a strip layout (ops/strips.h) that this processor
/// supports into strips, and releases the pages it came from. The embedding keeps its rows, which
/// are looked up one by one. `progress` receives 0 … 1.
void weights_arrange(Context& context, DecoderWeights& weights, const Checkpoint& checkpoint,
                     const std::function<void(double)>& progress);

/// Lays the adapter's matrices out beside the weights they change (ops/lora.h), for products of
/// `type`. Returns the bytes that took.
std::size_t adapter_arrange(Context& context, DecoderWeights& weights, ProductType type);

}  // namespace lca
