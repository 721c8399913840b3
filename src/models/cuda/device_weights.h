#pragma once
/// A decoder's weights on the GPU: matrices in bf16, an adapter added in
/// float32 before they are rounded; norms, biases and routers in float32.

#include <lca/context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/cuda/memory.h"
#include "core/cuda/transfer.h"
#include "formats/model_config.h"
#include "models/weights.h"
#include "ops/cuda/experts.h"

namespace lca::cuda {

/// A linear layer; several that read the same rows are one, output after
/// output.
struct DeviceLinear {
  const bf16* weight = nullptr;  ///< [out][in]
  const float* bias = nullptr;   ///< [out], or null
  std::int64_t out = 0, in = 0;

  bool empty() const { return weight == nullptr; }
};

/// SwiGLU: rows of the gate, then of the up-projection, are one layer.
struct DeviceFeedForward {
  DeviceLinear gate_up, down;
};

/// One layer. What an architecture does not have stays empty.
struct DeviceLayer {
  const float* attention_norm = nullptr;
  DeviceLinear first;               ///< GQA: q, k, v; MLA: q (or q_a), kv_a
  const float* q_a_norm = nullptr;  ///< MLA with compressed queries
  DeviceLinear q_b;                 ///< the same
  const float* kv_a_norm = nullptr;
  const bf16* w_uk = nullptr;  ///< MLA [H][d_n][d_c]
  const bf16* w_uv = nullptr;  ///< MLA [H][d_v][d_c]
  DeviceLinear o;
  const float* feed_forward_norm = nullptr;
  DeviceFeedForward feed_forward;  ///< dense layers; shared experts that
                                   ///< `experts` does not hold
  ExpertsWeights experts;

  bool has_experts() const { return experts.router != nullptr; }
};

struct DeviceWeights {
  Buffer memory;
  const bf16* embedding = nullptr;  ///< [vocabulary][hidden]
  std::vector<DeviceLayer> layers;
  const float* norm = nullptr;
  DeviceLinear head;
  ExpertsShape experts;  ///< of the layers that have them
  Buffer router_biases;  ///< of random weights alone
};

/// The mixture of the layers that have one. Shared experts run with the chosen ones, unless they
/// have a bias.
ExpertsShape experts_shape(const ModelConfig& config);

/// Bytes that the weights will take.
std::size_t device_weight_bytes(const ModelConfig& config, const DecoderWeights& weights);

/// Bytes beside them while a mixture is copied: an expert before it is arranged.
std::size_t expert_staging_bytes(const ModelConfig& config);

/// Copies the weights to the current GPU. Throws Error (out of memory) in one
/// line where they do not fit. `progress` receives 0 … 1 and may throw.
DeviceWeights device_weights(Context& context, const ModelConfig& config,
                             const DecoderWeights& weights, const Queue& queue,
                             const std::function<void(double)>& progress);

/// The same without their values: places in memory of the current GPU.
DeviceWeights device_weights_places(const ModelConfig& config, const DecoderWeights& shapes);

}  // namespace lca::cuda
