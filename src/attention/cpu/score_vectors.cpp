#include "attention/cpu/score_vectors.h"

#include <cmath>
#include <limits>

#include "ops/matmul.h"

namespace lca::cpu {

std::int64_t condense_batch_groups(const Settings& settings) {
  constexpr std::int64_t kMost = 64;
  constexpr std::int64_t kTokens = 4096;
  return std::clamp<std::int64_t>(kTokens / settings.group, 1, kMost);
}

ScoreVectors::ScoreVectors(Carver& carver, const LayerSpec& spec, std::int64_t capacity)
    : spec_(spec),
      shape_(spec.shape),
      capacity_(capacity),
      count_(spec.settings.head_reduce == HeadReduce::max ? shape_.heads_per_kv() : 1) {
  const double share = spec.settings.head_reduce == HeadReduce::mean
                           ? 1.0 / static_cast<double>(shape_.heads_per_kv())
                           : 1.0;
  factor_ = static_cast<float>(spec.softmax_scale() * share);
  mean_nope_ = carver.take<float>(shape_.heads * capacity * shape_.d_nope);
  mean_rope_ = carver.take<float>(capacity * shape_.heads * shape_.d_rope);
  semantic_ = carver.take<float>(count_ * capacity * shape_.d_latent);
  positional_ = carver.take<float>(capacity * shape_.kv_heads * count_ * shape_.d_rope);
}

std::int64_t ScoreVectors::weight_floats(const LayerSpec& spec) {
  return spec.shape.d_nope * spec.shape.d_latent;
}

float* ScoreVectors::mean_nope(std::int64_t head, std::int64_t summary) const {
  return mean_nope_ + (head * capacity_ + summary) * shape_.d_nope;
}

float* ScoreVectors::mean_rope(std::int64_t head, std::int64_t summary) const {
  return mean_rope_ + (summary * shape_.heads + head) * shape_.d_rope;
}

const float* ScoreVectors::semantic(std::int64_t summary, std::int64_t vector) const {
  return semantic_ + (vector * capacity_ + summary) * shape_.d_latent;
}

const float* ScoreVectors::positional(std::int64_t summary, std::int64_t kv,
                                      std::int64_t vector) const {
  return positional_ + ((summary * shape_.kv_heads + kv) * count_ + vector) * shape_.d_rope;
}

void ScoreVectors::make(const ConstTensor& w_uk, std::int64_t first, std::int64_t count,
                        float* weight) const {
  if (shape_.form == Form::mla) absorb(w_uk, first, count, weight);
  // Against keys: mean queries summed over the heads of a KV head, or each.
  const std::int64_t sharing = shape_.heads_per_kv();
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const std::int64_t vector = count_ == 1 ? 0 : head % sharing;
      float* to =
          positional_ + ((i * shape_.kv_heads + head / sharing) * count_ + vector) * shape_.d_rope;
      if (count_ > 1 || head % sharing == 0) std::fill_n(to, shape_.d_rope, 0.0F);
      vector_add_scaled(1, mean_rope(head, i), DType::f32, shape_.d_rope, to);
    }
  }
}

HeadWeight head_weight(const ConstTensor& w_uk, std::int64_t head, float* weight) {
  if (w_uk.dtype == DType::f32) {
    return {static_cast<const float*>(w_uk.row(head)), w_uk.stride[1]};
  }
  const std::int64_t width = w_uk.shape[2];
  for (std::int64_t k = 0; k < w_uk.shape[1]; ++k) {
    vector_widen(w_uk.row(head, k), w_uk.dtype, width, weight + k * width);
  }
  return {weight, width};
}

/// MLA: W_ukᵀ of the mean queries, summed over heads or one per head.
void ScoreVectors::absorb(const ConstTensor& w_uk, std::int64_t first, std::int64_t count,
                          float* weight) const {
  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    const HeadWeight matrix = head_weight(w_uk, head, weight);
    const bool summed = count_ == 1;
    matmul_nn({mean_nope(head, first), count, shape_.d_nope, shape_.d_nope},
              {matrix.data, shape_.d_nope, shape_.d_latent, matrix.stride},
              semantic_ + ((summed ? 0 : head * capacity_) + first) * shape_.d_latent,
              shape_.d_latent, summed && head > 0);
  }
}

ScoreVectors::Score ScoreVectors::score(std::int64_t summary, std::int64_t kv,
                                        const void* semantic_row, DType semantic_dtype,
                                        const void* positional_row, DType positional_dtype) const {
  Score best{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t vector = 0; vector < count_; ++vector) {
    float sum = vector_dot(positional(summary, kv, vector), positional_row, positional_dtype,
                           shape_.d_rope);
    if (shape_.form == Form::mla) {
      sum += vector_dot(semantic(summary, vector), semantic_row, semantic_dtype, shape_.d_latent);
    }
    if (sum > best.value) best = {sum, vector};
  }
  return {best.value * factor_, best.vector};
}

GroupWeights group_weights(std::span<float> scores) {
  GroupWeights weights;
  for (std::size_t k = 1; k < scores.size(); ++k) {
    if (scores[k] > scores[static_cast<std::size_t>(weights.best)]) {
      weights.best = static_cast<std::int64_t>(k);
    }
  }
  weights.top = scores[static_cast<std::size_t>(weights.best)];
  for (float& a : scores) {
    a = std::exp(a - weights.top);
    weights.sum += a;
  }
  for (float& a : scores) a /= weights.sum;
  return weights;
}

}  // namespace lca::cpu
