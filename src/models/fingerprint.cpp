#include "models/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "models/model_state.h"

namespace lca {
namespace {

/// Hashes values; their order and sizes matter.
class Digest {
 public:
  Digest() { XXH3_128bits_reset(&state_); }

  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  template <typename T>
  void add_value(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    add(std::as_bytes(std::span(&value, 1)));
  }
  void add_text(std::string_view text) {
    add_value(static_cast<std::uint64_t>(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  void add_numbers(const std::vector<double>& numbers) {
    add_value(static_cast<std::uint64_t>(numbers.size()));
    add(std::as_bytes(std::span(numbers)));
  }
  void add_maybe(const std::optional<double>& number) {
    add_value(number.has_value());
    add_value(number.value_or(0));
  }
  /// Samples beginning, middle and end: fast for any size, and two checkpoints of one shape differ
  /// there.
  void add_samples(const std::byte* data, std::size_t size) {
    constexpr std::size_t kPiece = 4096;
    add_value(static_cast<std::uint64_t>(size));
    if (size <= 3 * kPiece) {
      add({data, size});
      return;
    }
    for (const std::size_t at : {std::size_t{0}, (size - kPiece) / 2, size - kPiece}) {
      add({data + at, kPiece});
    }
  }
  void add_matrix(const PackedMatrix& matrix) {
    add_value(matrix.type);
    add_value(matrix.rows);
    add_value(matrix.columns);
    add_samples(matrix.data, matrix.empty() ? 0 : matrix.bytes());
  }

  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t state_;
};

void add_rope(Digest& digest, const RopeConfig& rope) {
  digest.add_value(rope.kind);
  digest.add_value(rope.layout);
  digest.add_value(rope.width);
  digest.add_value(rope.base);
  digest.add_value(rope.factor);
  digest.add_value(rope.original_length);
  digest.add_maybe(rope.attention_factor);
  digest.add_value(rope.beta_fast);
  digest.add_value(rope.beta_slow);
  digest.add_value(rope.truncate);
  digest.add_maybe(rope.mscale);
  digest.add_maybe(rope.mscale_all_dim);
  digest.add_value(rope.low_frequency_factor);
  digest.add_value(rope.high_frequency_factor);
  digest.add_numbers(rope.short_factors);
  digest.add_numbers(rope.long_factors);
  digest.add_numbers(rope.frequency_divisors);
}

void add_experts(Digest& digest, const ExpertConfig& experts) {
  for (const std::int64_t number : {experts.count, experts.per_token, experts.width, experts.shared,
                                    experts.dense_layers, experts.groups, experts.top_groups}) {
    digest.add_value(number);
  }
  digest.add_value(experts.router);
  digest.add_value(experts.normalise);
  digest.add_value(experts.scale);
}

/// Everything that changes what the model computes. The attention settings of sessions are not part
/// of it.
void add_config(Digest& digest, const ModelConfig& config) {
  digest.add_text(architecture_name(config.architecture));
  const AttentionShape& shape = config.attention;
  digest.add_value(shape.form);
  for (const std::int64_t number :
       {config.layers, config.hidden, config.feed_forward, config.vocabulary, config.query_latent,
        shape.heads, shape.kv_heads, shape.d_nope, shape.d_rope, shape.d_latent, shape.d_value}) {
    digest.add_value(number);
  }
  for (const double number :
       {config.norm_eps, config.latent_norm_eps, config.score_scale, config.embedding_scale,
        config.residual_scale, config.logit_divisor}) {
    digest.add_value(number);
  }
  for (const bool flag : {config.qkv_bias, config.output_bias, config.mlp_bias, config.tied}) {
    digest.add_value(flag);
  }
  add_rope(digest, config.rope);
  add_experts(digest, config.experts);
}

/// The types of all matrices in the order of version 1, which counts absent ones too.
template <typename Visit>
void matrices_visit_version1(const DecoderWeights& weights, const Visit& visit) {
  visit(weights.embedding);
  visit(weights.head.weight);
  const auto feed_forward = [&](const FeedForwardWeights& part) {
    for (const Linear* linear : {&part.gate, &part.up, &part.down}) visit(linear->weight);
  };
  for (const DecoderLayer& layer : weights.layers) {
    for (const Linear* linear : {&layer.q, &layer.q_a, &layer.q_b, &layer.k, &layer.v, &layer.kv_a,
                                 &layer.o, &layer.router}) {
      visit(linear->weight);
    }
    feed_forward(layer.feed_forward);
    for (const FeedForwardWeights& expert : layer.experts) feed_forward(expert);
  }
}

void add_checkpoint(Digest& digest, const Model::State& state) {
  add_config(digest, state.config());
  for (const StoredTensor& tensor : state.checkpoint.tensors()) {
    digest.add_text(tensor.name);
    digest.add_value(tensor.type);
    for (const std::int64_t size : tensor.shape) digest.add_value(size);
    digest.add_samples(tensor.data, tensor.bytes());
  }
  if (state.adapter) {
    for (const auto& [module, pair] : state.adapter->modules()) {
      digest.add_text(module);
      digest.add_matrix(pair.a);
      digest.add_matrix(pair.b);
      digest.add_value(pair.scale);
    }
  }
}

}  // namespace

const std::string& Model::fingerprint() const {
  std::call_once(state_->fingerprinted, [this] {
    Digest digest;
    add_checkpoint(digest, *state_);
    state_->require_intact();
    state_->fingerprint = digest.text();
  });
  return state_->fingerprint;
}

std::string fingerprint_version1(const Model& model, Precision precision, DType dtype) {
  const Model::State& state = model.state();
  Digest digest;
  add_checkpoint(digest, state);
  // Weights in memory may have another type than in the file.
  matrices_visit_version1(state.weights,
                          [&](const PackedMatrix& matrix) { digest.add_value(matrix.type); });
  digest.add_value(precision == Precision::bf16 ? ProductType::bf16 : ProductType::f32);
  digest.add_value(dtype);
  state.require_intact();
  return digest.text();
}

std::string model_weight_type(const Model& model) {
  std::array<std::size_t, kPackedTypes> bytes{};
  matrices_visit(model.state().weights, [&](MatrixRole, const PackedMatrix& matrix) {
    bytes.at(static_cast<std::size_t>(matrix.type)) += matrix.bytes();
  });
  const auto most = std::ranges::max_element(bytes) - bytes.begin();
  return std::string(packed_type_info(static_cast<PackedType>(most)).name);
}

}  // namespace lca
