#include "models/decoder.h"

#include <lca/method.h>

#include <algorithm>
#include <array>

#include "core/threads.h"
#include "models/experts.h"
#include "models/model_state.h"
#include "ops/elementwise.h"

namespace lca {
namespace {

/// One pass: everything its steps share.
struct Pass {
  Context& context;
  const Model::State& model;
  Activations& act;

  const ModelConfig& config() const { return model.config(); }
  const AttentionShape& shape() const { return model.config().attention; }

  void product(const Linear& layer, const float* x, std::int64_t rows, float* out) const {
    linear(context, layer, model.product, x, rows, out);
  }
};

/// A view of rows as attention reads them: rounded where the cache stores bf16. `stride` is that of
/// a whole row; the view begins `offset` values into it.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;

  ConstTensor view(std::int64_t rows, std::int64_t heads, std::int64_t head_stride,
                   std::int64_t offset, std::int64_t width) const {
    ConstTensor tensor;
    tensor.data =
        static_cast<const char*>(data) + offset * static_cast<std::int64_t>(dtype_bytes(dtype));
    tensor.dtype = dtype;
    tensor.shape = {rows, heads, width};
    tensor.stride = {stride, head_stride, 1};
    return tensor;
  }
};

Rows stored_rows(const Pass& pass, const float* x, std::int64_t rows, std::int64_t width,
                 FloatBuffer& rounded) {
  if (pass.model.cache_dtype == DType::f32) return {x, DType::f32, width};
  auto* narrow = reinterpret_cast<bf16_bits*>(rounded.prepare((rows * width + 1) / 2));
  round_bf16(pass.context, x, rows * width, narrow);
  return {narrow, DType::bf16, width};
}

void rotate(const Pass& pass, float* x, std::int64_t rows, std::int64_t heads, std::int64_t stride,
            std::int64_t head_stride, std::int64_t first_row) {
  const RopeConfig& rope = pass.config().rope;
  const std::int64_t half = rope.width / 2;
  const auto some = [&](std::int64_t first, std::int64_t count) {
    rope_apply(x + first * stride, count, heads, stride, head_stride, rope.width, rope.layout,
               pass.act.cos.data() + (first_row + first) * half,
               pass.act.sin.data() + (first_row + first) * half);
  };
  constexpr std::int64_t kTask = 64;
  if (rows <= kTask) {
    some(0, rows);
    return;
  }
  pass.context.pool().run((rows + kTask - 1) / kTask, [&](std::int64_t task, int) {
    some(task * kTask, std::min(kTask, rows - task * kTask));
  });
}

/// Where the first product of the queries goes: the latent where they are compressed, else q.
LinearCall first_query_call(const Pass& pass, const DecoderLayer& layer, std::int64_t rows) {
  if (!layer.q_a.empty()) {
    return {&layer.q_a, pass.act.query_latent.prepare(rows * pass.config().query_latent)};
  }
  return {&layer.q, pass.act.queries.prepare(rows * pass.shape().heads * pass.shape().d_score())};
}

/// Queries of `rows` rows whose first product is done; their angles begin at row `first_row` of the
/// tables.
Queries finish_queries(const Pass& pass, const DecoderLayer& layer, std::int64_t rows,
                       std::int64_t first_row) {
  const AttentionShape& shape = pass.shape();
  const std::int64_t width = shape.d_score();
  const std::int64_t stride = shape.heads * width;
  float* q = pass.act.queries.prepare(rows * stride);
  if (!layer.q_a.empty()) {
    const std::int64_t rank = pass.config().query_latent;
    float* latent = pass.act.query_latent.data();
    rms_norm(pass.context, latent, rank, rows, rank, layer.q_a_norm, pass.config().latent_norm_eps,
             latent, rank);
    pass.product(layer.q_b, latent, rows, q);
  }
  rotate(pass, q + shape.d_nope, rows, shape.heads, stride, width, first_row);
  const Rows stored = stored_rows(pass, q, rows, stride, pass.act.rounded_queries);
  Queries queries;
  queries.rope = stored.view(rows, shape.heads, width, shape.d_nope, shape.d_rope);
  if (shape.form == Form::mla) {
    queries.nope = stored.view(rows, shape.heads, width, 0, shape.d_nope);
  }
  return queries;
}

/// Queries of `rows` normed rows.
Queries project_queries(const Pass& pass, const DecoderLayer& layer, const float* normed,
                        std::int64_t rows, std::int64_t first_row) {
  const LinearCall call = first_query_call(pass, layer, rows);
  pass.product(*call.layer, normed, rows, call.out);
  return finish_queries(pass, layer, rows, first_row);
}

/// What `rows` normed rows leave in the cache. With `queries_too` the queries' first product is
/// done along the way, for finish_queries.
Entries project_entries(const Pass& pass, const DecoderLayer& layer, const float* normed,
                        std::int64_t rows, std::int64_t first_row, bool queries_too = false) {
  const AttentionShape& shape = pass.shape();
  std::array<LinearCall, 3> calls;
  std::size_t count = 0;
  if (queries_too) calls[count++] = first_query_call(pass, layer, rows);
  if (shape.form == Form::mla) {
    const std::int64_t width = shape.d_latent + shape.d_rope;
    float* latent = pass.act.keys.prepare(rows * width);
    calls[count++] = {&layer.kv_a, latent};
    linear_group(pass.context, std::span(calls).first(count), pass.model.product, normed, rows);
    rms_norm(pass.context, latent, width, rows, shape.d_latent, layer.kv_a_norm,
             pass.config().latent_norm_eps, latent, width);
    rotate(pass, latent + shape.d_latent, rows, 1, width, shape.d_rope, first_row);
    const Rows stored = stored_rows(pass, latent, rows, width, pass.act.rounded_keys);
    return {stored.view(rows, 1, width, 0, shape.d_latent),
            stored.view(rows, 1, width, shape.d_latent, shape.d_rope)};
  }
  const std::int64_t key_width = shape.kv_heads * shape.d_rope;
  const std::int64_t value_width = shape.kv_heads * shape.d_value;
  float* k = pass.act.keys.prepare(rows * key_width);
  float* v = pass.act.values.prepare(rows * value_width);
  calls[count++] = {&layer.k, k};
  calls[count++] = {&layer.v, v};
  linear_group(pass.context, std::span(calls).first(count), pass.model.product, normed, rows);
  rotate(pass, k, rows, shape.kv_heads, key_width, shape.d_rope, first_row);
  const Rows keys = stored_rows(pass, k, rows, key_width, pass.act.rounded_keys);
  const Rows values = stored_rows(pass, v, rows, value_width, pass.act.rounded_values);
  return {values.view(rows, shape.kv_heads, shape.d_value, 0, shape.d_value),
          keys.view(rows, shape.kv_heads, shape.d_rope, 0, shape.d_rope)};
}

const float* norm_rows(const Pass& pass, const float* weight, const float* hidden,
                       std::int64_t rows) {
  const std::int64_t width = pass.config().hidden;
  float* normed = pass.act.normed.prepare(rows * width);
  rms_norm(pass.context, hidden, width, rows, width, weight, pass.config().norm_eps, normed, width);
  return normed;
}

/// hidden += residual_scale · o(attended), then hidden += residual_scale · feed_forward(norm(…)).
void layer_finish(const Pass& pass, const DecoderLayer& layer, float* hidden, std::int64_t rows) {
  const std::int64_t width = pass.config().hidden;
  const auto scale = static_cast<float>(pass.config().residual_scale);
  float* branch = pass.act.branch.prepare(rows * width);
  pass.product(layer.o, pass.act.attended.data(), rows, branch);
  add_scaled(pass.context, scale, branch, rows * width, hidden);

  const float* normed = norm_rows(pass, layer.feed_forward_norm, hidden, rows);
  if (layer.experts.empty()) {
    feed_forward(pass.context, layer.feed_forward, pass.model.product, pass.act, normed, rows,
                 branch);
  } else {
    experts_forward(pass.context, layer, pass.config().experts, pass.model.product, pass.act,
                    normed, rows, branch);
  }
  add_scaled(pass.context, scale, branch, rows * width, hidden);
}

/// The angles of a run's rows, written at row `row` of the tables.
void prepare_angles(const Pass& pass, const SequenceRun& run, std::int64_t row) {
  const std::int64_t half = pass.config().rope.width / 2;
  pass.model.rope.table(run.first, static_cast<std::int64_t>(run.tokens.size()), run.rope_length,
                        pass.act.cos.data() + row * half, pass.act.sin.data() + row * half);
}

void embed_tokens(const Pass& pass, std::span<const std::int32_t> tokens, float* hidden) {
  embed(pass.context, pass.model.weights.embedding, tokens.data(),
        static_cast<std::int64_t>(tokens.size()), static_cast<float>(pass.config().embedding_scale),
        hidden);
}

Queries slice(const Queries& queries, std::int64_t first, std::int64_t count) {
  Queries part;
  part.rope = queries.rope.slice(first, count);
  if (!queries.nope.empty()) part.nope = queries.nope.slice(first, count);
  return part;
}

Entries slice(const Entries& entries, std::int64_t first, std::int64_t count) {
  return {entries.semantic.slice(first, count), entries.positional.slice(first, count)};
}

/// Attention of a batch: neighbours with the same settings go together.
void forward_parts(Context& context, const LayerWeights& weights, std::span<const Run> parts) {
  while (!parts.empty()) {
    const LayerSpec& spec = parts[0].cache->spec();
    std::size_t same = 1;
    while (same < parts.size() && parts[same].cache->spec() == spec) ++same;
    method_for(spec.settings.method).forward(context, weights, parts.first(same));
    parts = parts.subspan(same);
  }
}

}  // namespace

void decoder_forward(Context& context, const Model& model, Activations& activations,
                     std::span<const SequenceRun> runs) {
  const Pass pass{context, model.state(), activations};
  const std::int64_t width = pass.config().hidden;
  const std::int64_t out_width = pass.shape().heads * pass.shape().d_value;
  std::int64_t rows = 0;
  for (const SequenceRun& run : runs) rows += static_cast<std::int64_t>(run.tokens.size());
  const std::int64_t half = pass.config().rope.width / 2;
  activations.cos.prepare(rows * half);
  activations.sin.prepare(rows * half);
  float* hidden = activations.hidden.prepare(rows * width);
  std::int64_t row = 0;
  for (const SequenceRun& run : runs) {
    prepare_angles(pass, run, row);
    embed_tokens(pass, run.tokens, hidden + row * width);
    row += static_cast<std::int64_t>(run.tokens.size());
  }

  std::vector<Run>& parts = activations.parts;
  parts.resize(runs.size());
  const std::vector<DecoderLayer>& layers = pass.model.weights.layers;
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const DecoderLayer& layer = layers[index];
    const float* normed = norm_rows(pass, layer.attention_norm, hidden, rows);
    const Entries entries = project_entries(pass, layer, normed, rows, 0, /*queries_too=*/true);
    const Queries queries = finish_queries(pass, layer, rows, 0);
    float* attended = activations.attended.prepare(rows * out_width);
    row = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto count = static_cast<std::int64_t>(runs[i].tokens.size());
      parts[i] = {&runs[i].caches[index], slice(queries, row, count), slice(entries, row, count),
                  attended + row * out_width, nullptr};
      row += count;
    }
    forward_parts(context, layer.up_projections, parts);
    layer_finish(pass, layer, hidden, rows);
  }
}

void decoder_forward_prompt(Context& context, const Model& model, Activations& activations,
                            const SequenceRun& run, std::int64_t chunk,
                            const std::function<void(double)>& progress) {
  const Pass pass{context, model.state(), activations};
  const std::int64_t width = pass.config().hidden;
  const std::int64_t out_width = pass.shape().heads * pass.shape().d_value;
  const auto total = static_cast<std::int64_t>(run.tokens.size());
  const std::int64_t half = pass.config().rope.width / 2;
  activations.cos.prepare(total * half);
  activations.sin.prepare(total * half);
  prepare_angles(pass, run, 0);
  float* hidden = activations.hidden.prepare(total * width);
  embed_tokens(pass, run.tokens, hidden);

  const std::vector<DecoderLayer>& layers = pass.model.weights.layers;
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const DecoderLayer& layer = layers[index];
    Cache& cache = run.caches[index];
    const Settings& settings = cache.spec().settings;
    const Method& method = method_for(settings.method);
    const bool waits = settings.method == MethodKind::lca && settings.summary == Summary::prompt;
    // First every chunk's entries, with no more queries than the summary may need.
    for (std::int64_t first = 0; waits && first < total; first += chunk) {
      const std::int64_t rows = std::min(chunk, total - first);
      const std::int64_t asked = std::min(rows, settings.summary_queries);
      const float* normed = norm_rows(pass, layer.attention_norm, hidden + first * width, rows);
      const Entries entries = project_entries(pass, layer, normed, rows, first);
      const Queries queries = project_queries(pass, layer, normed + (rows - asked) * width, asked,
                                              first + rows - asked);
      const Run part{&cache, queries, entries, nullptr, nullptr};
      method.take(context, layer.up_projections, {&part, 1}, first + rows == total);
    }
    // Then every chunk attends and goes through the rest of the layer.
    for (std::int64_t first = 0; first < total; first += chunk) {
      if (progress) {
        const double within = static_cast<double>(first) / static_cast<double>(total);
        progress((static_cast<double>(index) + within) / static_cast<double>(layers.size()));
      }
      const std::int64_t rows = std::min(chunk, total - first);
      float* part_hidden = hidden + first * width;
      const float* normed = norm_rows(pass, layer.attention_norm, part_hidden, rows);
      Run part{&cache, {}, {}, activations.attended.prepare(rows * out_width), nullptr};
      if (!waits) part.entries = project_entries(pass, layer, normed, rows, first);
      part.queries = project_queries(pass, layer, normed, rows, first);
      if (waits) {
        const std::int64_t position = run.first + first;
        method.attend(context, layer.up_projections, {&part, 1}, {&position, 1});
      } else {
        method.forward(context, layer.up_projections, {&part, 1});
      }
      layer_finish(pass, layer, part_hidden, rows);
    }
    if (waits) method.release(cache);
  }
}

void decoder_logits(Context& context, const Model& model, Activations& activations,
                    const float* hidden, std::int64_t rows, float* out) {
  const Pass pass{context, model.state(), activations};
  const float* normed = norm_rows(pass, pass.model.weights.norm, hidden, rows);
  const double divisor = pass.config().logit_divisor;
  if (divisor != 1) {
    auto* scaled = const_cast<float*>(normed);
    const auto factor = static_cast<float>(1 / divisor);
    for (std::int64_t i = 0; i < rows * pass.config().hidden; ++i) scaled[i] *= factor;
  }
  pass.product(pass.model.weights.head, normed, rows, out);
}

std::size_t Activations::bytes() const {
  std::size_t total = 0;
  for (const FloatBuffer* buffer :
       {&hidden, &normed, &query_latent, &queries, &keys, &values, &rounded_queries, &rounded_keys,
        &rounded_values, &attended, &branch, &gate, &up, &router, &gathered, &expert, &cos, &sin}) {
    total += buffer->bytes();
  }
  return total;
}

std::size_t activations_bytes(const Model& model, std::int64_t rows) {
  const ModelConfig& config = model.state().config();
  const AttentionShape& shape = config.attention;
  const bool narrow = model.cache_dtype() == DType::bf16;
  const std::int64_t queries = shape.heads * shape.d_score();
  std::int64_t values = 3 * config.hidden + config.query_latent + config.rope.width;
  values +=
      queries + shape.entry_values() + (narrow ? (queries + shape.entry_values()) / 2 + 3 : 0);
  values += shape.heads * shape.d_value;
  std::int64_t inner = config.feed_forward;
  if (config.experts.count > 0) {
    inner = std::max(inner, config.experts.shared * config.experts.width);
    inner = std::max(inner, config.experts.width);
    values += config.experts.count + 2 * config.hidden;
  }
  values += 2 * inner;
  return static_cast<std::size_t>(values * rows) * sizeof(float);
}

}  // namespace lca
