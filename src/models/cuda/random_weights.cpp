#include "models/cuda/random_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/weight_shapes.h"
#include "ops/cuda/random_fill.h"

namespace lca::cuda {
namespace {

/// What transformers initialises matrices with.
constexpr float kRandomDeviation = 0.02F;

/// The quantile of the standard normal distribution, by bisection.
double normal_quantile(double share) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < share ? low : high) = middle;
  }
  return low;
}

/// What the first expert's logit needs in addition, so that `skew` times as many rows choose it:
/// logits of normed rows are about normal with a deviation of 0.02 √hidden.
double skew_bias(const ModelConfig& config, double skew) {
  const double chosen =
      static_cast<double>(config.experts.per_token) / static_cast<double>(config.experts.count);
  const double more = std::min(chosen * skew, 0.999);
  const double deviation = kRandomDeviation * std::sqrt(static_cast<double>(config.hidden));
  return deviation * (normal_quantile(1 - chosen) - normal_quantile(1 - more));
}

}  // namespace

DeviceWeights device_weights_random(const ModelConfig& config, std::uint32_t seed, double skew,
                                    const Queue& queue) {
  DeviceWeights made = device_weights_places(config, weight_shapes(config));
  // Matrices are most of it; the vectors between them are overwritten.
  random_fill(made.memory.as<bf16>(), static_cast<std::int64_t>(made.memory.bytes() / sizeof(bf16)),
              kRandomDeviation, seed, queue);
  const auto norm = [&](const float* weight, std::int64_t count) {
    if (weight != nullptr) value_fill(const_cast<float*>(weight), count, 1, queue);
  };
  const auto no_bias = [&](const DeviceLinear& layer) {
    if (layer.bias != nullptr) value_fill(const_cast<float*>(layer.bias), layer.out, 0, queue);
  };
  const std::int64_t experts = config.experts.count;
  if (experts > 0 && skew != 1) {
    made.router_biases = Buffer(static_cast<std::size_t>(experts) * sizeof(float));
    value_fill(made.router_biases.as<float>(), experts, 0, queue);
    value_fill(made.router_biases.as<float>(), 1, static_cast<float>(skew_bias(config, skew)),
               queue);
  }
  for (DeviceLayer& layer : made.layers) {
    norm(layer.attention_norm, config.hidden);
    norm(layer.q_a_norm, config.query_latent);
    norm(layer.kv_a_norm, config.attention.d_latent);
    norm(layer.feed_forward_norm, config.hidden);
    for (const DeviceLinear* part : {&layer.first, &layer.q_b, &layer.o,
                                     &layer.feed_forward.gate_up, &layer.feed_forward.down}) {
      no_bias(*part);
    }
    if (!layer.has_experts()) continue;
    random_fill(const_cast<float*>(layer.experts.router), experts * config.hidden, kRandomDeviation,
                ++seed, queue);
    if (skew != 1) layer.experts.router_bias = made.router_biases.as<float>();
  }
  norm(made.norm, config.hidden);
  no_bias(made.head);
  check(cudaStreamSynchronize(queue), "making random weights");
  return made;
}

}  // namespace lca::cuda
