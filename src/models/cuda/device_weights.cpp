#include "models/cuda/device_weights.h"

#include <algorithm>
#include <cstring>

#include "core/context_state.h"
#include "core/cuda/pinned.h"
#include "core/error.h"
#include "core/pages.h"
#include "ops/packed.h"

namespace lca::cuda {
namespace {

/// Unpacks on the host's threads into one half of the staging memory while the
/// other is copied.
class WeightUpload {
 public:
  WeightUpload(Context& context, const Queue& queue, std::size_t total,
               const std::function<void(double)>& progress)
      : context_(context),
        queue_(queue),
        total_(total),
        progress_(progress),
        half_values_(static_cast<bf16_bits*>(staging_.require(2 * kPiece * sizeof(bf16_bits)))) {}

  /// W + scale·B·A in bf16, row by row.
  void linear(const Linear& layer, bf16* to) { matrix(layer.weight, layer.lora, to); }

  void matrix(const PackedMatrix& weight, const Lora& lora, bf16* to) {
    const std::int64_t columns = weight.columns;
    if (columns > kPiece) fail_input("a weight of {} columns is too wide for the GPU", columns);
    std::vector<float> a;
    if (!lora.empty()) {
      a.resize(static_cast<std::size_t>(lora.a.rows * columns));
      for (std::int64_t r = 0; r < lora.a.rows; ++r) {
        unpack_f32(lora.a.type, lora.a.row(r), a.data() + r * columns, columns);
      }
    }
    const std::int64_t step = std::max<std::int64_t>(1, kPiece / columns);
    for (std::int64_t first = 0; first < weight.rows; first += step) {
      const std::int64_t count = std::min(step, weight.rows - first);
      const PackedMatrix some = weight.slice(first, count);
      bf16_bits* const half = next_half();
      constexpr std::int64_t kTask = 16;
      context_.state().pool.run((count + kTask - 1) / kTask, [&](std::int64_t task, int) {
        for (std::int64_t i = task * kTask; i < std::min(count, (task + 1) * kTask); ++i) {
          row_unpack(some, i, lora, first + i, a, half + i * columns);
        }
      });
      send(half, count * columns, to + first * columns);
      pages_release(some.data, some.bytes());
    }
  }

  /// A dense copy of a view [heads][rows][columns].
  void tensor(const ConstTensor& from, bf16* to) {
    const auto [heads, rows, columns] = from.shape;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t row = 0; row < rows;) {
        const std::int64_t count =
            std::min(rows - row, std::max<std::int64_t>(1, kPiece / columns));
        bf16_bits* const half = next_half();
        for (std::int64_t i = 0; i < count; ++i) {
          const void* const values = from.row(h, row + i);
          if (from.dtype == DType::bf16) {
            std::memcpy(half + i * columns, values, static_cast<std::size_t>(columns) * 2);
          } else {
            const auto* const wide = static_cast<const float*>(values);
            std::transform(wide, wide + columns, half + i * columns, bf16_from_f32);
          }
        }
        send(half, count * columns, to + (h * rows + row) * columns);
        row += count;
      }
    }
  }

  void vector(const float* values, std::int64_t count, float* to) {
    Transfer(queue_.stream)
        .upload(std::span<const float>(values, static_cast<std::size_t>(count)), to);
    report(static_cast<std::size_t>(count) * sizeof(float));
  }

  /// A matrix in float32.
  void wide(const PackedMatrix& weight, float* to) {
    std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.columns));
    unpack_f32(weight.type, weight.data, values.data(), weight.rows * weight.columns);
    vector(values.data(), weight.rows * weight.columns, to);
  }

 private:
  static constexpr std::int64_t kPiece = std::int64_t{8} << 20;  // values

  static void row_unpack(const PackedMatrix& some, std::int64_t index, const Lora& lora,
                         std::int64_t row, const std::vector<float>& a, bf16_bits* to) {
    const std::int64_t columns = some.columns;
    if (lora.empty()) {
      unpack_bf16(some.type, some.row(index), to, columns);
      return;
    }
    thread_local std::vector<float> values, b;
    values.resize(static_cast<std::size_t>(columns));
    b.resize(static_cast<std::size_t>(lora.a.rows));
    unpack_f32(some.type, some.row(index), values.data(), columns);
    unpack_f32(lora.b.type, lora.b.row(row), b.data(), lora.a.rows);
    for (std::size_t r = 0; r < b.size(); ++r) {
      const float factor = lora.scale * b[r];
      const float* const from = a.data() + static_cast<std::int64_t>(r) * columns;
      for (std::int64_t c = 0; c < columns; ++c)
        values[static_cast<std::size_t>(c)] += factor * from[c];
    }
    std::transform(values.begin(), values.end(), to, bf16_from_f32);
  }

  bf16_bits* next_half() {
    half_ = 1 - half_;
    copied_[half_].wait();
    return half_values_ + half_ * kPiece;
  }

  void send(const bf16_bits* from, std::int64_t count, bf16* to) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * 2, cudaMemcpyHostToDevice,
                          queue_.stream),
          "copying weights to the GPU");
    copied_[half_].record(queue_.stream);
    report(static_cast<std::size_t>(count) * 2);
  }

  void report(std::size_t bytes) {
    done_ += bytes;
    if (progress_) {
      progress_(std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)));
    }
  }

  Context& context_;
  Queue queue_;
  std::size_t total_;
  std::size_t done_ = 0;
  const std::function<void(double)>& progress_;
  PinnedMemory staging_;
  bf16_bits* half_values_;  // two pieces
  Event copied_[2];
  int half_ = 0;
};

/// Lays the weights out and, where there is an upload, fills them. The same
/// code counts and copies.
class WeightLayout {
 public:
  WeightLayout(const ModelConfig& config, const DecoderWeights& host, void* memory,
               WeightUpload* upload, const Queue& queue)
      : config_(config), host_(host), carver_(memory), upload_(upload), queue_(queue) {}

  DeviceWeights make() {
    DeviceWeights weights;
    weights.experts = experts_ = experts_shape(config_);
    bf16* const embedding = matrix(config_.vocabulary * config_.hidden);
    if (upload_ != nullptr) upload_->matrix(host_.embedding, {}, embedding);
    weights.embedding = embedding;
    for (const DecoderLayer& layer : host_.layers) weights.layers.push_back(make_layer(layer));
    weights.norm = vector(host_.norm, config_.hidden);
    if (host_.head.weight.data == host_.embedding.data && host_.head.lora.empty()) {
      weights.head = {embedding, nullptr, config_.vocabulary, config_.hidden};
    } else {
      weights.head = joined({&host_.head});
    }
    return weights;
  }

  std::size_t bytes() const { return carver_.used(); }

 private:
  DeviceLayer make_layer(const DecoderLayer& layer) {
    const AttentionShape& shape = config_.attention;
    DeviceLayer made;
    made.attention_norm = vector(layer.attention_norm, config_.hidden);
    if (shape.form == Form::gqa) {
      made.first = joined({&layer.q, &layer.k, &layer.v});
    } else {
      if (layer.q_a.empty()) {
        made.first = joined({&layer.q, &layer.kv_a});
      } else {
        made.first = joined({&layer.q_a, &layer.kv_a});
        made.q_a_norm = vector(layer.q_a_norm, config_.query_latent);
        made.q_b = joined({&layer.q_b});
      }
      made.kv_a_norm = vector(layer.kv_a_norm, shape.d_latent);
      made.w_uk = tensor(layer.up_projections.w_uk);
      made.w_uv = tensor(layer.up_projections.w_uv);
    }
    made.o = joined({&layer.o});
    made.feed_forward_norm = vector(layer.feed_forward_norm, config_.hidden);
    if (!layer.experts.empty()) make_experts(layer, made.experts);
    const bool alone = layer.experts.empty() || experts_.shared == 0;
    if (alone && !layer.feed_forward.gate.empty()) {
      made.feed_forward.gate_up = joined({&layer.feed_forward.gate, &layer.feed_forward.up});
      made.feed_forward.down = joined({&layer.feed_forward.down});
    }
    return made;
  }

  void make_experts(const DecoderLayer& layer, ExpertsWeights& made) {
    float* const router = carver_.take<float>(config_.experts.count * config_.hidden);
    bf16* const gate_up = matrix(experts_.gate_up_elements());
    bf16* const down = matrix(experts_.down_elements());
    made.router = router;
    made.gate_up = gate_up;
    made.down = down;
    if (upload_ == nullptr) return;
    upload_->wide(layer.router.weight, router);
    const std::int64_t values = config_.experts.width * config_.hidden;
    const std::int64_t shared = experts_.shared;
    const std::size_t most = expert_staging_bytes(config_) / (3 * sizeof(bf16));
    plain_.require(3 * most * sizeof(bf16));
    bf16* const gate = plain_.as<bf16>();
    bf16* const up = gate + most;
    bf16* const back = up + most;
    const auto send = [&](const FeedForwardWeights& expert) {
      upload_->linear(expert.gate, gate);
      upload_->linear(expert.up, up);
      upload_->linear(expert.down, back);
    };
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      send(layer.experts[e]);
      expert_store(experts_, static_cast<int>(e), {gate, up, back, config_.experts.width}, gate_up,
                   down, queue_);
    }
    if (shared == 0) return;
    send(layer.feed_forward);
    for (std::int64_t s = 0; s < shared; ++s) {
      expert_store(experts_, static_cast<int>(config_.experts.count + s),
                   {gate + s * values, up + s * values, back + s * config_.experts.width,
                    shared * config_.experts.width},
                   gate_up, down, queue_);
    }
  }

  /// Layers of equal width as one: their outputs follow one another.
  DeviceLinear joined(std::initializer_list<const Linear*> parts) {
    DeviceLinear made;
    bool bias = false;
    for (const Linear* part : parts) {
      made.out += part->out();
      made.in = part->in();
      bias = bias || part->bias != nullptr;
    }
    bf16* to = matrix(made.out * made.in);
    made.weight = to;
    std::vector<float> biases;
    for (const Linear* part : parts) {
      if (upload_ != nullptr) upload_->linear(*part, to + std::ssize(biases) * made.in);
      // A part without a bias has one of zeros.
      const auto count = static_cast<std::size_t>(part->out());
      if (part->bias != nullptr) {
        biases.insert(biases.end(), part->bias, part->bias + count);
      } else {
        biases.insert(biases.end(), count, 0.0F);
      }
    }
    if (bias) made.bias = vector(biases.data(), made.out);
    return made;
  }

  bf16* matrix(std::int64_t values) { return carver_.take<bf16>(values); }

  const bf16* tensor(const ConstTensor& from) {
    bf16* const to = matrix(from.shape[0] * from.shape[1] * from.shape[2]);
    if (upload_ != nullptr) upload_->tensor(from, to);
    return to;
  }

  const float* vector(const float* values, std::int64_t count) {
    auto* const to = carver_.take<float>(count);
    if (upload_ != nullptr) upload_->vector(values, count, to);
    return to;
  }

  const ModelConfig& config_;
  const DecoderWeights& host_;
  ExpertsShape experts_;
  DeviceCarver carver_;
  WeightUpload* upload_;
  Queue queue_;
  Buffer plain_;  // an expert before it is arranged
};

void memory_check(std::size_t needed) {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (needed <= free) return;
  fail_memory(
      "the model's weights take {:.1f} GiB in bf16 and {:.1f} GiB of the GPU's {:.1f} GiB are "
      "free; use a smaller model, or the CPU",
      static_cast<double>(needed) / kGiB, static_cast<double>(free) / kGiB,
      static_cast<double>(all) / kGiB);
}

}  // namespace

ExpertsShape experts_shape(const ModelConfig& config) {
  const ExpertConfig& experts = config.experts;
  ExpertsShape shape;
  shape.hidden = static_cast<int>(config.hidden);
  shape.width = static_cast<int>(experts.width);
  if (!config.mlp_bias) shape.shared = static_cast<int>(experts.shared);
  shape.route.experts = static_cast<int>(experts.count);
  shape.route.per_token = static_cast<int>(experts.per_token);
  shape.route.group_limited = experts.router == Router::group_limited;
  shape.route.groups = static_cast<int>(experts.groups);
  shape.route.top_groups = static_cast<int>(experts.top_groups);
  shape.route.normalise = experts.normalise;
  shape.route.scale = static_cast<float>(experts.scale);
  return shape;
}

std::size_t expert_staging_bytes(const ModelConfig& config) {
  const std::int64_t pieces = std::max(experts_shape(config).shared, 1);
  return static_cast<std::size_t>(3 * pieces * config.experts.width * config.hidden) * sizeof(bf16);
}

std::size_t device_weight_bytes(const ModelConfig& config, const DecoderWeights& weights) {
  WeightLayout layout(config, weights, nullptr, nullptr, {});
  layout.make();
  return layout.bytes();
}

DeviceWeights device_weights(Context& context, const ModelConfig& config,
                             const DecoderWeights& weights, const Queue& queue,
                             const std::function<void(double)>& progress) {
  const std::size_t total = device_weight_bytes(config, weights);
  memory_check(total);
  Buffer memory(total);
  WeightUpload upload(context, queue, total, progress);
  DeviceWeights made;
  {
    WeightLayout layout(config, weights, memory.as<void>(), &upload, queue);
    made = layout.make();
    check(cudaStreamSynchronize(queue), "copying weights to the GPU");
  }
  made.memory = std::move(memory);
  return made;
}

DeviceWeights device_weights_places(const ModelConfig& config, const DecoderWeights& shapes) {
  const std::size_t total = device_weight_bytes(config, shapes);
  memory_require(static_cast<double>(total), "the model in bf16");
  Buffer memory(total);
  DeviceWeights made = WeightLayout(config, shapes, memory.as<void>(), nullptr, {}).make();
  made.memory = std::move(memory);
  return made;
}

}  // namespace lca::cuda
