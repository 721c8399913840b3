#include "models/weight_shapes.h"

#include <algorithm>
#include <utility>

namespace lca {
namespace {

class ShapeMaker {
 public:
  explicit ShapeMaker(const ModelConfig& config) : config_(config) {}

  DecoderWeights make() {
    weights_.embedding = matrix(config_.vocabulary, config_.hidden);
    for (std::int64_t index = 0; index < config_.layers; ++index) {
      weights_.layers.push_back(layer(index));
    }
    weights_.norm = vector(config_.hidden);
    if (config_.tied) {
      weights_.head.weight = weights_.embedding;
    } else {
      weights_.head = linear(config_.vocabulary, config_.hidden);
    }
    return std::move(weights_);
  }

 private:
  /// An address that no other matrix has tells a matrix from an absent one, and a head of its own
  /// from a tied one.
  PackedMatrix matrix(std::int64_t rows, std::int64_t columns) {
    weights_.parameters += rows * columns;
    weights_.owned.push_back(aligned_bytes(1));
    return {weights_.owned.back().get(), PackedType::bf16, rows, columns};
  }

  const float* vector(std::int64_t count) {
    weights_.parameters += count;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    weights_.owned.push_back(aligned_bytes(bytes));
    std::fill_n(weights_.owned.back().get(), bytes, std::byte{0});
    return reinterpret_cast<const float*>(weights_.owned.back().get());
  }

  Linear linear(std::int64_t out, std::int64_t in, bool bias = false) {
    Linear made;
    made.weight = matrix(out, in);
    if (bias) made.bias = vector(out);
    return made;
  }

  FeedForwardWeights feed_forward(std::int64_t width, bool bias) {
    return {linear(width, config_.hidden, bias), linear(width, config_.hidden, bias),
            linear(config_.hidden, width, bias)};
  }

  void attention(DecoderLayer& made) {
    const AttentionShape& shape = config_.attention;
    const bool bias = config_.qkv_bias;
    const std::int64_t queries = shape.heads * shape.d_score();
    if (shape.form == Form::gqa) {
      made.q = linear(queries, config_.hidden, bias);
      made.k = linear(shape.kv_heads * shape.d_rope, config_.hidden, bias);
      made.v = linear(shape.kv_heads * shape.d_value, config_.hidden, bias);
    } else {
      if (config_.query_latent > 0) {
        made.q_a = linear(config_.query_latent, config_.hidden, bias);
        made.q_a_norm = vector(config_.query_latent);
        made.q_b = linear(queries, config_.query_latent);
      } else {
        made.q = linear(queries, config_.hidden);
      }
      made.kv_a = linear(shape.d_latent + shape.d_rope, config_.hidden, bias);
      made.kv_a_norm = vector(shape.d_latent);
      made.up_projections.w_uk =
          ConstTensor(nullptr, DType::bf16, {shape.heads, shape.d_nope, shape.d_latent});
      made.up_projections.w_uv =
          ConstTensor(nullptr, DType::bf16, {shape.heads, shape.d_value, shape.d_latent});
      weights_.parameters += shape.heads * (shape.d_nope + shape.d_value) * shape.d_latent;
    }
    made.o = linear(config_.hidden, shape.heads * shape.d_value, config_.output_bias);
  }

  DecoderLayer layer(std::int64_t index) {
    const ExpertConfig& experts = config_.experts;
    DecoderLayer made;
    made.attention_norm = vector(config_.hidden);
    attention(made);
    made.feed_forward_norm = vector(config_.hidden);
    if (experts.count == 0 || index < experts.dense_layers) {
      made.feed_forward = feed_forward(config_.feed_forward, config_.mlp_bias);
      return made;
    }
    made.router.weight = matrix(experts.count, config_.hidden);
    for (std::int64_t e = 0; e < experts.count; ++e) {
      made.experts.push_back(feed_forward(experts.width, false));
    }
    if (experts.shared > 0) {
      made.feed_forward = feed_forward(experts.shared * experts.width, config_.mlp_bias);
    }
    return made;
  }

  const ModelConfig& config_;
  DecoderWeights weights_;
};

}  // namespace

DecoderWeights weight_shapes(const ModelConfig& config) { return ShapeMaker(config).make(); }

}  // namespace lca
