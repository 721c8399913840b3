#pragma once
/// Feed-forward layers: SwiGLU, and mixtures of them.

#include <lca/context.h>

#include <cstdint>
#include <span>

#include "formats/model_config.h"
#include "models/cpu/activations.h"
#include "models/weights.h"

namespace lca {

/// out[rows, hidden] = down(silu(gate(x)) · up(x)) for the rows of `runs`.
void feed_forward(Context& context, const FeedForwardWeights& weights, ProductType type,
                  Activations& activations, const float* x, std::span<const std::int64_t> runs,
                  float* out);

/// Chooses `config.per_token` experts by router logits [count] into `chosen`, best first; ties go
/// to the lower index.
void experts_choose(const ExpertConfig& config, const float* logits,
                    std::span<ExpertChoice> chosen);

/// Mixture of experts: the weighted sum of the chosen experts plus the shared ones. The router is
/// computed in float32. The result of a run does not depend on the other runs, bit for bit.
void experts_forward(Context& context, const DecoderLayer& layer, const ExpertConfig& config,
                     ProductType type, Activations& activations, const float* x,
                     std::span<const std::int64_t> runs, float* out);

}  // namespace lca
