#pragma once
/// Attention of a layer on the CPU in float32, with activations rounded to bf16 where the GPU keeps
/// them so: normed rows, compressed queries, queries, entries, representatives and outputs.

#include <lca/method.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "models/cpu/host_caches.h"
#include "models/model_state.h"
#include "models/stages.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace lca::test {

class RoundedAttention {
 public:
  RoundedAttention(Context& context, const Model::State& model, std::span<const LayerSpec> layers)
      : context_(context), model_(model), caches_(layers) {}

  void commit() { caches_.step_commit(); }
  void begin() { caches_.step_begin(false); }

  /// What the layer adds to the residual stream `hidden` of one run's rows.
  std::vector<float> change(std::size_t index, const SequenceRun& run,
                            const std::vector<float>& hidden) {
    const DecoderLayer& layer = model_.weights.layers[index];
    const ModelConfig& config = model_.config();
    const AttentionShape& shape = config.attention;
    const auto rows = static_cast<std::int64_t>(run.tokens.size());
    const std::vector<float> x =
        rounded(norm(hidden, config.hidden, config.hidden, layer.attention_norm, config.norm_eps));
    turns(run);

    const std::int64_t width = shape.d_score();
    std::vector<float> q;
    if (layer.q_a.empty()) {
      q = product(layer.q, x);
    } else {
      const std::vector<float> latent = product(layer.q_a, x);
      q = product(layer.q_b, rounded(norm(latent, config.query_latent, config.query_latent,
                                          layer.q_a_norm, config.latent_norm_eps)));
    }
    rotate(q.data() + shape.d_nope, rows, shape.heads, shape.heads * width, width);
    q = rounded(std::move(q));
    Queries queries;
    queries.rope = view(q, rows, shape.heads, width, shape.d_nope, shape.d_rope);
    std::vector<float> keys, values;
    Entries entries;
    if (shape.form == Form::mla) {
      queries.nope = view(q, rows, shape.heads, width, 0, shape.d_nope);
      const std::int64_t both = shape.d_latent + shape.d_rope;
      keys = product(layer.kv_a, x);
      rms_norm(context_, keys.data(), both, rows, shape.d_latent, layer.kv_a_norm,
               config.latent_norm_eps, keys.data(), both);
      rotate(keys.data() + shape.d_latent, rows, 1, both, shape.d_rope);
      keys = rounded(std::move(keys));
      entries = {view(keys, rows, 1, both, 0, shape.d_latent),
                 view(keys, rows, 1, both, shape.d_latent, shape.d_rope)};
    } else {
      keys = product(layer.k, x);
      rotate(keys.data(), rows, shape.kv_heads, shape.kv_heads * shape.d_rope, shape.d_rope);
      keys = rounded(std::move(keys));
      values = rounded(product(layer.v, x));
      entries = {view(values, rows, shape.kv_heads, shape.d_value, 0, shape.d_value),
                 view(keys, rows, shape.kv_heads, shape.d_rope, 0, shape.d_rope)};
    }

    std::vector<float> out(static_cast<std::size_t>(rows * shape.heads * shape.d_value));
    Cache& cache = caches_.layer(index);
    const Run part{&cache, queries, entries, out.data(), nullptr};
    const Method& method = method_for(cache.spec().settings.method);
    method.take(context_, layer.up_projections, {&part, 1}, true);
    representatives_round(cache);
    method.attend(context_, layer.up_projections, {&part, 1}, {&run.first, 1});
    method.release(cache);
    std::vector<float> added = product(layer.o, rounded(std::move(out)));
    for (float& value : added) value *= static_cast<float>(config.residual_scale);
    return added;
  }

  static std::vector<float> rounded(std::vector<float> values) {
    std::ranges::transform(values, values.begin(),
                           [](float value) { return bf16_to_f32(bf16_from_f32(value)); });
    return values;
  }

 private:
  std::vector<float> norm(const std::vector<float>& x, std::int64_t stride, std::int64_t width,
                          const float* weight, double eps) {
    std::vector<float> out(x.size());
    rms_norm(context_, x.data(), stride, std::ssize(x) / stride, width, weight, eps, out.data(),
             stride);
    return out;
  }

  std::vector<float> product(const Linear& layer, const std::vector<float>& x) {
    const std::int64_t rows = std::ssize(x) / layer.in();
    std::vector<float> out(static_cast<std::size_t>(rows * layer.out()));
    linear(context_, layer, ProductType::f32, x.data(), rows, out.data());
    return out;
  }

  void turns(const SequenceRun& run) {
    const std::size_t values = run.tokens.size() * static_cast<std::size_t>(half());
    cos_.resize(values);
    sin_.resize(values);
    model_.rope.table(run.first, std::ssize(run.tokens), run.rope_length, cos_.data(), sin_.data());
  }

  void rotate(float* x, std::int64_t rows, std::int64_t heads, std::int64_t stride,
              std::int64_t head_stride) {
    rope_apply(x, rows, heads, stride, head_stride, model_.config().rope.width,
               model_.config().rope.layout, cos_.data(), sin_.data());
  }

  /// Heads follow one another, `width` values each; the view is of some of them.
  static ConstTensor view(const std::vector<float>& x, std::int64_t rows, std::int64_t heads,
                          std::int64_t width, std::int64_t offset, std::int64_t count) {
    ConstTensor tensor(x.data() + offset, DType::f32, {rows, heads, count});
    tensor.stride = {heads * width, width, 1};
    return tensor;
  }

  /// Older ones are rounded already.
  static void representatives_round(Cache& cache) {
    for (std::int64_t j = 0; j < cache.groups(); ++j) {
      const Entries entries = cache.representative(j);
      for (const ConstTensor& part : {entries.semantic, entries.positional}) {
        for (std::int64_t head = 0; head < part.shape[1]; ++head) {
          auto* const row = static_cast<float*>(const_cast<void*>(part.row(0, head)));
          std::transform(row, row + part.shape[2], row,
                         [](float value) { return bf16_to_f32(bf16_from_f32(value)); });
        }
      }
    }
  }

  std::int64_t half() const { return model_.config().rope.width / 2; }

  Context& context_;
  const Model::State& model_;
  HostCaches caches_;
  std::vector<float> cos_, sin_;
};

}  // namespace lca::test
