#pragma once
/// A model's weights without a file, for measurements.

#include "models/cuda/device_weights.h"

namespace lca::cuda {

/// Random weights, made on the current GPU. The first expert of each layer is chosen about `skew`
/// times as often as the mean.
DeviceWeights device_weights_random(const ModelConfig& config, std::uint32_t seed, double skew,
                                    const Queue& queue);

}  // namespace lca::cuda
