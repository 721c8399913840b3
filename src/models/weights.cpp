#include "models/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "core/context_state.h"
#include "core/error.h"
#include "core/pages.h"
#include "core/text.h"
#include "models/weight_packing.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace lca {
namespace {

/// Looks tensors up by their Hugging Face names, checks them, and records which were bound.
class Binder {
 public:
  Binder(Context& context, const Checkpoint& checkpoint, const Adapter* adapter,
         DecoderWeights& weights, WeightPacking packing,
         const std::function<void(double)>& progress)
      : context_(context),
        checkpoint_(checkpoint),
        adapter_(adapter),
        weights_(weights),
        packing_(packing),
        progress_(progress) {
    if (packing == WeightPacking::keep) return;
    packing_require(checkpoint, packing);
    for (const StoredTensor& tensor : checkpoint.tensors()) to_pack_ += tensor.bytes();
  }

  /// The weight of a linear layer, or the embedding: packed where requested.
  PackedMatrix weight(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const StoredTensor tensor = require(name, {rows, columns});
    PackedMatrix found{tensor.data, tensor.type, rows, columns};
    if (weight_packs(tensor.type, columns, packing_)) found = pack(tensor.name, found);
    remember(tensor.name, found);
    return found;
  }

  /// A matrix as it is stored.
  PackedMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const StoredTensor tensor = require(name, {rows, columns});
    const PackedMatrix found{tensor.data, tensor.type, rows, columns};
    remember(tensor.name, found);
    return found;
  }

  /// A vector, converted to float32.
  const float* vector(const std::string& name, std::int64_t count) {
    const StoredTensor tensor = require(name, {count});
    remember(tensor.name, {tensor.data, tensor.type, 1, count});
    auto* values = own<float>(count);
    unpack_f32(tensor.type, tensor.data, values, count);
    return values;
  }

  /// The linear layer `module` with its bias and the adapter's LoRA update.
  Linear linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias = false) {
    Linear layer;
    layer.weight = weight(module + ".weight", out, in);
    if (bias) layer.bias = vector(module + ".bias", out);
    layer.lora = lora(module, out, in);
    return layer;
  }

  FeedForwardWeights feed_forward(const std::string& module, std::int64_t hidden,
                                  std::int64_t width, bool bias) {
    return {linear(module + ".gate_proj", width, hidden, bias),
            linear(module + ".up_proj", width, hidden, bias),
            linear(module + ".down_proj", hidden, width, bias)};
  }

  /// The adapter's LoRA update of a module; empty if it has none.
  Lora lora(const std::string& module, std::int64_t out, std::int64_t in) {
    const LoraPair* pair = adapter_ == nullptr ? nullptr : adapter_->find(module);
    if (pair == nullptr) return {};
    if (pair->a.columns != in || pair->b.rows != out) {
      fail_input("{}: made for another model: {} changes a [{},{}] matrix, the model's is [{},{}]",
                 adapter_->name(), text_printable(module), pair->b.rows, pair->a.columns, out, in);
    }
    used_.insert(module);
    return {pair->a, pair->b, static_cast<float>(pair->scale), {}};
  }

  /// The LoRA update of a q or k projection whose rows are permuted in the file: B's rows are
  /// permuted alike.
  Lora lora_permuted(Lora change, std::int64_t width) {
    if (change.empty() || !checkpoint_.permuted_qk()) return change;
    const std::size_t bytes = change.b.row_bytes();
    auto* permuted = own<std::byte>(static_cast<std::int64_t>(change.b.bytes()));
    for (std::int64_t row = 0; row < change.b.rows; ++row) {
      const std::int64_t to = row / width * width + permuted_row(row % width, width);
      std::memcpy(permuted + static_cast<std::size_t>(to) * bytes, change.b.row(row), bytes);
    }
    change.b.data = permuted;
    return change;
  }

  std::optional<StoredTensor> find(const std::string& name) const { return checkpoint_.find(name); }

  template <typename T>
  T* own(std::int64_t count) {
    weights_.owned.push_back(aligned_bytes(static_cast<std::size_t>(count) * sizeof(T)));
    return reinterpret_cast<T*>(weights_.owned.back().get());
  }

  /// Checks everything that was bound for NaN and infinity.
  void check_finite() {
    std::size_t total = 1;
    for (const auto& [name, matrix] : bound_) total += matrix.bytes();
    const double before = packing_ == WeightPacking::keep ? 0 : kPackingShare;
    constexpr std::size_t kBatch = std::size_t{64} << 20;
    std::size_t done = 0;
    for (std::size_t first = 0; first < bound_.size();) {
      std::size_t end = first;
      std::size_t bytes = 0;
      while (end < bound_.size() && bytes < kBatch) bytes += bound_[end++].second.bytes();
      context_.state().pool.run(static_cast<std::int64_t>(end - first), [&](std::int64_t i, int) {
        const auto& [name, matrix] = bound_[first + static_cast<std::size_t>(i)];
        if (!packed_is_finite(matrix)) fail_not_finite(name);
      });
      done += bytes;
      tell(before + (1 - before) * static_cast<double>(done) / static_cast<double>(total));
      first = end;
    }
  }

  /// Throws Error if a module of the adapter was not bound.
  void check_adapter() const {
    if (adapter_ == nullptr) return;
    for (const auto& [module, pair] : adapter_->modules()) {
      if (!used_.contains(module)) {
        fail_input("{}: made for another model: this one has no module \"{}\" to change",
                   adapter_->name(), text_printable(module));
      }
    }
  }

  std::int64_t parameters() const {
    std::int64_t count = 0;
    for (const auto& [name, matrix] : bound_) count += matrix.rows * matrix.columns;
    return count;
  }

  StoredTensor require(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const std::optional<StoredTensor> tensor = checkpoint_.find(name);
    if (!tensor) {
      fail_input("{}: tensor \"{}\" is missing: the checkpoint is not complete",
                 path_printable(checkpoint_.path().native()), name);
    }
    if (tensor->shape != shape) {
      fail_input("{}: tensor \"{}\" is [{}]; the configuration asks for [{}]",
                 path_printable(checkpoint_.path().native()), text_printable(tensor->name),
                 fmt::join(tensor->shape, ","), fmt::join(shape, ","));
    }
    return *tensor;
  }

  void remember(const std::string& name, const PackedMatrix& matrix) {
    bound_.emplace_back(name, matrix);
  }

 private:
  /// The share of the progress for packing, where weights are packed; the check of the others takes
  /// the rest.
  static constexpr double kPackingShare = 0.95;

  /// Packs a matrix some rows at a time and releases the file's pages as it goes, so that both
  /// forms are never in memory together.
  PackedMatrix pack(const std::string& name, const PackedMatrix& source) {
    constexpr std::size_t kAtOnce = std::size_t{32} << 20;
    PackedMatrix packed{nullptr, packing_type(packing_), source.rows, source.columns};
    auto* out = own<std::byte>(static_cast<std::int64_t>(packed.bytes()));
    packed.data = out;
    const auto step = static_cast<std::int64_t>(
        std::max<std::size_t>(1, kAtOnce / std::max<std::size_t>(1, source.row_bytes())));
    for (std::int64_t first = 0; first < source.rows; first += step) {
      const PackedMatrix some = source.slice(first, std::min(step, source.rows - first));
      switch (pack_matrix(context_, some, packed.type,
                          out + static_cast<std::size_t>(first) * packed.row_bytes())) {
        case PackResult::packed:
          break;
        case PackResult::not_finite:
          fail_not_finite(name);
        case PackResult::too_large:
          fail_input("{}: tensor \"{}\" holds values too large for {}; load it as it is",
                     path_printable(checkpoint_.path().native()), text_printable(name),
                     packing_name(packing_));
      }
      pages_release(some.data, some.bytes());
      packed_ += some.bytes();
      tell(kPackingShare * static_cast<double>(packed_) / static_cast<double>(to_pack_));
    }
    return packed;
  }

  [[noreturn]] void fail_not_finite(const std::string& name) const {
    fail_input("{}: tensor \"{}\" holds a NaN or an infinity: the file is damaged",
               path_printable(checkpoint_.path().native()), text_printable(name));
  }

  void tell(double share) const {
    if (progress_) progress_(std::min(share, 1.0));
  }

  Context& context_;
  const Checkpoint& checkpoint_;
  const Adapter* adapter_;
  DecoderWeights& weights_;
  WeightPacking packing_;
  const std::function<void(double)>& progress_;
  std::size_t to_pack_ = 1;  // bytes of all tensors
  std::size_t packed_ = 0;   // of them
  std::vector<std::pair<std::string, PackedMatrix>> bound_;
  std::set<std::string> used_;
};

/// MLA's kv_b, split into w_uk [H,d_n,d_c] and w_uv [H,d_v,d_c]. Attention reads them unpacked.
LayerWeights up_projections(Binder& binder, const std::string& module, const AttentionShape& shape,
                            DType dtype) {
  const std::int64_t heads = shape.heads;
  const std::int64_t d_nope = shape.d_nope;
  const std::int64_t d_value = shape.d_value;
  const std::int64_t d_latent = shape.d_latent;
  const std::int64_t per_head = d_nope + d_value;
  std::vector<float> fused(static_cast<std::size_t>(heads * per_head * d_latent));

  if (binder.find(module + "kv_b_proj.weight")) {
    const PackedMatrix kv_b =
        binder.matrix(module + "kv_b_proj.weight", heads * per_head, d_latent);
    unpack_f32(kv_b.type, kv_b.data, fused.data(), kv_b.rows * kv_b.columns);
  } else if (binder.find(module + "k_b_proj.weight")) {
    // Stored as two tensors, that of the keys transposed.
    const StoredTensor k_b = binder.require(module + "k_b_proj.weight", {heads, d_latent, d_nope});
    const StoredTensor v_b = binder.require(module + "v_b_proj.weight", {heads, d_value, d_latent});
    binder.remember(k_b.name, {k_b.data, k_b.type, heads * d_latent, d_nope});
    binder.remember(v_b.name, {v_b.data, v_b.type, heads * d_value, d_latent});
    std::vector<float> keys(static_cast<std::size_t>(heads * d_latent * d_nope));
    unpack_f32(k_b.type, k_b.data, keys.data(), k_b.values());
    const std::size_t value_bytes = packed_bytes(v_b.type, d_value * d_latent);
    for (std::int64_t h = 0; h < heads; ++h) {
      float* head = fused.data() + h * per_head * d_latent;
      for (std::int64_t n = 0; n < d_nope; ++n) {
        for (std::int64_t c = 0; c < d_latent; ++c) {
          head[n * d_latent + c] = keys[static_cast<std::size_t>((h * d_latent + c) * d_nope + n)];
        }
      }
      unpack_f32(v_b.type, v_b.data + static_cast<std::size_t>(h) * value_bytes,
                 head + d_nope * d_latent, d_value * d_latent);
    }
  } else {
    binder.require(module + "kv_b_proj.weight", {heads * per_head, d_latent});
  }

  const Lora change = binder.lora(module + "kv_b_proj", heads * per_head, d_latent);
  if (!change.empty()) {
    const std::int64_t rank = change.a.rows;
    std::vector<float> a(static_cast<std::size_t>(rank * d_latent));
    std::vector<float> b(static_cast<std::size_t>(rank));
    unpack_f32(change.a.type, change.a.data, a.data(), rank * d_latent);
    for (std::int64_t row = 0; row < heads * per_head; ++row) {
      unpack_f32(change.b.type, change.b.row(row), b.data(), rank);
      for (std::int64_t r = 0; r < rank; ++r) {
        const float factor = change.scale * b[static_cast<std::size_t>(r)];
        for (std::int64_t c = 0; c < d_latent; ++c) {
          fused[static_cast<std::size_t>(row * d_latent + c)] +=
              factor * a[static_cast<std::size_t>(r * d_latent + c)];
        }
      }
    }
  }

  const std::int64_t values = heads * per_head * d_latent;
  void* memory = nullptr;
  if (dtype == DType::f32) {
    memory = std::memcpy(binder.own<float>(values), fused.data(), fused.size() * sizeof(float));
  } else {
    auto* narrow = binder.own<bf16_bits>(values);
    for (std::int64_t i = 0; i < values; ++i) {
      narrow[i] = bf16_from_f32(fused[static_cast<std::size_t>(i)]);
    }
    memory = narrow;
  }
  ConstTensor whole(memory, dtype, {heads, per_head, d_latent});
  LayerWeights weights{whole, whole};
  weights.w_uk.shape[1] = d_nope;
  weights.w_uv.data = whole.row(0, d_nope);
  weights.w_uv.shape[1] = d_value;
  return weights;
}

void bind_attention(Binder& binder, const ModelConfig& config, const std::string& module,
                    DType dtype, DecoderLayer& layer) {
  const AttentionShape& shape = config.attention;
  const std::int64_t hidden = config.hidden;
  const bool bias = config.qkv_bias;
  if (shape.form == Form::gqa) {
    layer.q = binder.linear(module + "q_proj", shape.heads * shape.d_rope, hidden, bias);
    layer.k = binder.linear(module + "k_proj", shape.kv_heads * shape.d_rope, hidden, bias);
    layer.v = binder.linear(module + "v_proj", shape.kv_heads * shape.d_value, hidden, bias);
    layer.q.lora = binder.lora_permuted(layer.q.lora, shape.d_rope);
    layer.k.lora = binder.lora_permuted(layer.k.lora, shape.d_rope);
  } else {
    const std::int64_t q_width = shape.heads * shape.d_score();
    if (config.query_latent > 0) {
      layer.q_a = binder.linear(module + "q_a_proj", config.query_latent, hidden, bias);
      layer.q_a_norm = binder.vector(module + "q_a_layernorm.weight", config.query_latent);
      layer.q_b = binder.linear(module + "q_b_proj", q_width, config.query_latent);
    } else {
      layer.q = binder.linear(module + "q_proj", q_width, hidden);
    }
    layer.kv_a =
        binder.linear(module + "kv_a_proj_with_mqa", shape.d_latent + shape.d_rope, hidden, bias);
    layer.kv_a_norm = binder.vector(module + "kv_a_layernorm.weight", shape.d_latent);
    layer.up_projections = up_projections(binder, module, shape, dtype);
  }
  layer.o =
      binder.linear(module + "o_proj", hidden, shape.heads * shape.d_value, config.output_bias);
}

void bind_feed_forward(Binder& binder, const ModelConfig& config, const std::string& module,
                       std::int64_t index, DecoderLayer& layer) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0 || index < experts.dense_layers) {
    layer.feed_forward =
        binder.feed_forward(module, config.hidden, config.feed_forward, config.mlp_bias);
    return;
  }
  layer.router.weight = binder.matrix(module + ".gate.weight", experts.count, config.hidden);
  for (std::int64_t e = 0; e < experts.count; ++e) {
    layer.experts.push_back(binder.feed_forward(fmt::format("{}.experts.{}", module, e),
                                                config.hidden, experts.width, false));
  }
  if (experts.shared > 0) {
    layer.feed_forward = binder.feed_forward(module + ".shared_experts", config.hidden,
                                             experts.shared * experts.width, config.mlp_bias);
  }
}

}  // namespace

DecoderWeights decoder_weights(Context& context, const Checkpoint& checkpoint,
                               const Adapter* adapter, DType dtype, WeightPacking packing,
                               const std::function<void(double)>& progress) {
  const ModelConfig& config = checkpoint.config();
  DecoderWeights weights;
  Binder binder(context, checkpoint, adapter, weights, packing, progress);
  weights.embedding = binder.weight("model.embed_tokens.weight", config.vocabulary, config.hidden);
  for (std::int64_t index = 0; index < config.layers; ++index) {
    const std::string module = fmt::format("model.layers.{}.", index);
    DecoderLayer& layer = weights.layers.emplace_back();
    layer.attention_norm = binder.vector(module + "input_layernorm.weight", config.hidden);
    bind_attention(binder, config, module + "self_attn.", dtype, layer);
    layer.feed_forward_norm =
        binder.vector(module + "post_attention_layernorm.weight", config.hidden);
    bind_feed_forward(binder, config, module + "mlp", index, layer);
  }
  weights.norm = binder.vector("model.norm.weight", config.hidden);
  if (config.tied) {
    weights.head.weight = weights.embedding;
    weights.head.lora = binder.lora("lm_head", config.vocabulary, config.hidden);
  } else {
    weights.head = binder.linear("lm_head", config.vocabulary, config.hidden);
  }
  binder.check_adapter();
  binder.check_finite();
  weights.parameters = binder.parameters();
  return weights;
}

}  // namespace lca
