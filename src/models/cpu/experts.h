#pragma once
/// Feed-forward layers: SwiGLU, and mixtures of them.

#include <lca/context.h>

#include <cstdint>
#include <span>

#include "formats/model_config.h"
#include "models/cpu/activations.h"
#include "models/weights.h"

namespace lca {

/// out[rows, hidden] = down(silu(gate(x)) · up(x)) for the rows of some runs.
void feed_forward(Context& context, const FeedForwardWeights& weights, ProductType type,
                  Activations& activations, const float* x, std::span<const std::int64_t> runs,
                  float* out);

/// Chooses `config.per_token` experts from router logits [count] into `chosen`, best first; the
/// lower number wins a tie.
void experts_choose(const ExpertConfig& config, const float* logits,
                    std::span<ExpertChoice> chosen);

/// The mixture: chosen experts, weighted, plus the shared ones. The router works in float32. Each
/// run gets bit for bit what it gets alone.
void experts_forward(Context& context, const DecoderLayer& layer, const ExpertConfig& config,
                     ProductType type, Activations& activations, const float* x,
                     std::span<const std::int64_t> runs, float* out);

}  // namespace lca
