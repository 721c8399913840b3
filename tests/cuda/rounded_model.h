#pragma once
/// Checkpoints on the CPU with the weights that the GPU has: matrices rounded to bf16 after an
/// adapter was added; norms, biases and routers in float32.

#include <lca/model.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "models/model_state.h"
#include "support/golden_model.h"

namespace lca::test {

/// What ModelOptions need of a checkpoint.
struct ModelPlace {
  std::string path, adapter;

  ModelPlace(std::string folder, std::string change = "")
      : path(std::move(folder)), adapter(std::move(change)) {}
  ModelPlace(const GoldenModel& golden) : path(golden.path()), adapter(golden.adapter()) {}
};

inline std::shared_ptr<const Model> load_on(const ModelPlace& place, const std::string& device,
                                            Precision precision = Precision::bf16,
                                            GroupStorage groups = GroupStorage::bf16) {
  ModelOptions options;
  options.path = place.path;
  options.adapter = place.adapter;
  options.precision = precision;
  options.device = device;
  options.groups = groups;
  return Model::load(options);
}

/// Rounds a model's weights in place, in memory of its own.
class WeightRounding {
 public:
  explicit WeightRounding(DecoderWeights& weights) : weights_(weights) {
    matrix(weights.embedding);
    for (DecoderLayer& layer : weights.layers) {
      for (Linear* part :
           {&layer.q, &layer.q_a, &layer.q_b, &layer.k, &layer.v, &layer.kv_a, &layer.o}) {
        linear(*part);
      }
      feed_forward(layer.feed_forward);
      for (FeedForwardWeights& expert : layer.experts) feed_forward(expert);
      tensor(layer.up_projections.w_uk);
      tensor(layer.up_projections.w_uv);
    }
    linear(weights.head);
  }

 private:
  float* own(std::int64_t count) {
    weights_.owned.push_back(aligned_bytes(static_cast<std::size_t>(count) * sizeof(float)));
    return reinterpret_cast<float*>(weights_.owned.back().get());
  }
  static float rounded(float value) { return bf16_to_f32(bf16_from_f32(value)); }

  void matrix(PackedMatrix& weight, const Lora& lora = {}) {
    const std::int64_t count = weight.rows * weight.columns;
    float* const values = own(count);
    unpack_f32(weight.type, weight.data, values, count);
    if (!lora.empty()) add(lora, weight, values);
    std::transform(values, values + count, values, rounded);
    weight = {reinterpret_cast<const std::byte*>(values), PackedType::f32, weight.rows,
              weight.columns};
  }
  static void add(const Lora& lora, const PackedMatrix& weight, float* values) {
    const std::int64_t rank = lora.a.rows;
    std::vector<float> a(static_cast<std::size_t>(rank * weight.columns));
    std::vector<float> b(static_cast<std::size_t>(weight.rows * rank));
    unpack_f32(lora.a.type, lora.a.data, a.data(), rank * weight.columns);
    unpack_f32(lora.b.type, lora.b.data, b.data(), weight.rows * rank);
    for (std::int64_t row = 0; row < weight.rows; ++row) {
      for (std::int64_t r = 0; r < rank; ++r) {
        const float factor = lora.scale * b[static_cast<std::size_t>(row * rank + r)];
        for (std::int64_t c = 0; c < weight.columns; ++c) {
          values[row * weight.columns + c] +=
              factor * a[static_cast<std::size_t>(r * weight.columns + c)];
        }
      }
    }
  }
  void linear(Linear& layer) {
    if (layer.empty()) return;
    matrix(layer.weight, layer.lora);
    layer.lora = {};
  }
  void feed_forward(FeedForwardWeights& part) {
    for (Linear* layer : {&part.gate, &part.up, &part.down}) linear(*layer);
  }
  void tensor(ConstTensor& view) {
    if (view.data == nullptr) return;
    const auto [heads, rows, columns] = view.shape;
    float* const values = own(heads * rows * columns);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto* const from = static_cast<const float*>(view.row(h, row));
        std::transform(from, from + columns, values + (h * rows + row) * columns, rounded);
      }
    }
    view = ConstTensor(values, DType::f32, {heads, rows, columns});
  }

  DecoderWeights& weights_;
};

/// On the CPU in float32, with weights as the GPU has them: what remains between the two is what
/// the GPU does to activations.
inline std::shared_ptr<const Model> load_rounded(const ModelPlace& place) {
  auto model = load_on(place, "cpu", Precision::f32);
  // Nothing else has the model yet.
  WeightRounding(const_cast<Model::State&>(model->state()).weights);
  return model;
}

}  // namespace lca::test
