#include "models/cpu/cpu_stages.h"

#include <lca/method.h>

#include <algorithm>
#include <array>

#include "attention/settings_kind.h"
#include "core/context_state.h"
#include "models/cpu/experts.h"
#include "ops/elementwise.h"

namespace lca {
namespace {

/// A view of rows as attention reads them: rounded where the cache stores bf16. `stride` is that of
/// a whole row; the view begins `offset` values into it.
struct StoredRows {
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

StoredRows stored_rows(Context& context, DType dtype, const float* x, std::int64_t rows,
                       std::int64_t width, FloatBuffer& rounded) {
  if (dtype == DType::f32) return {x, DType::f32, width};
  auto* narrow = reinterpret_cast<bf16_bits*>(rounded.prepare((rows * width + 1) / 2));
  round_bf16(context, x, rows * width, narrow);
  return {narrow, DType::bf16, width};
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

}  // namespace

void CpuStages::product(const Linear& layer, const float* x, std::span<const std::int64_t> runs,
                        float* out) const {
  linear(context_, layer, model_.product, x, runs, out);
}

bool CpuStages::waits(std::size_t layer) const {
  return summary_waits(cache(0, layer).spec().settings) && runs_.size() == 1 &&
         runs_[0].tokens.size() > 1;
}

std::span<const std::int64_t> CpuStages::runs_of(RowRange rows) {
  if (rows.count == rows_) return std::span(act_.lengths).first(runs_.size());
  act_.lengths.back() = rows.count;
  return std::span(act_.lengths).last(1);
}

const float* CpuStages::norm(const float* weight, const float* x, std::int64_t rows) {
  const std::int64_t width = config().hidden;
  float* normed = act_.normed.prepare(rows * width);
  rms_norm(context_, x, width, rows, width, weight, config().norm_eps, normed, width);
  return normed;
}

void CpuStages::rotate(float* x, std::int64_t rows, std::int64_t heads, std::int64_t stride,
                       std::int64_t head_stride, std::int64_t first_row) {
  const RopeConfig& rope = config().rope;
  const std::int64_t half = rope.width / 2;
  const auto some = [&](std::int64_t first, std::int64_t count) {
    rope_apply(x + first * stride, count, heads, stride, head_stride, rope.width, rope.layout,
               act_.cos.data() + (first_row + first) * half,
               act_.sin.data() + (first_row + first) * half);
  };
  constexpr std::int64_t kTask = 64;
  if (rows <= kTask) {
    some(0, rows);
    return;
  }
  context_.state().pool.run((rows + kTask - 1) / kTask, [&](std::int64_t task, int) {
    some(task * kTask, std::min(kTask, rows - task * kTask));
  });
}

/// The first product of the queries: into the query latent where queries are compressed, else into
/// q.
LinearCall CpuStages::first_query_call(const DecoderLayer& layer, std::int64_t rows) {
  if (!layer.q_a.empty()) {
    return {&layer.q_a, act_.query_latent.prepare(rows * config().query_latent)};
  }
  return {&layer.q, act_.queries.prepare(rows * shape().heads * shape().d_score())};
}

/// Queries of rows whose first product is computed.
Queries CpuStages::finish_queries(const DecoderLayer& layer, RowRange rows,
                                  std::span<const std::int64_t> runs) {
  const std::int64_t width = shape().d_score();
  const std::int64_t stride = shape().heads * width;
  float* q = act_.queries.prepare(rows.count * stride);
  if (!layer.q_a.empty()) {
    const std::int64_t rank = config().query_latent;
    float* latent = act_.query_latent.data();
    rms_norm(context_, latent, rank, rows.count, rank, layer.q_a_norm, config().latent_norm_eps,
             latent, rank);
    product(layer.q_b, latent, runs, q);
  }
  rotate(q + shape().d_nope, rows.count, shape().heads, stride, width, rows.first);
  const StoredRows stored =
      stored_rows(context_, model_.cache_dtype, q, rows.count, stride, act_.rounded_queries);
  Queries queries;
  queries.rope = stored.view(rows.count, shape().heads, width, shape().d_nope, shape().d_rope);
  if (shape().form == Form::mla) {
    queries.nope = stored.view(rows.count, shape().heads, width, 0, shape().d_nope);
  }
  return queries;
}

/// Queries of normed rows; the step has one run.
Queries CpuStages::project_queries(const DecoderLayer& layer, const float* normed, RowRange rows) {
  const LinearCall call = first_query_call(layer, rows.count);
  const std::int64_t run = rows.count;
  product(*call.layer, normed, {&run, 1}, call.out);
  return finish_queries(layer, rows, {&run, 1});
}

/// Cache entries of normed rows. With `queries_too` the first product of the queries is computed in
/// the same call, for finish_queries.
Entries CpuStages::project_entries(const DecoderLayer& layer, const float* normed, RowRange rows,
                                   bool queries_too) {
  const std::span<const std::int64_t> runs = runs_of(rows);
  // Rows of 8 bits are rounded once, by the cache.
  const bool int8 = model_.info.cache == CacheStorage::int8;
  const DType dtype = int8 ? DType::f32 : model_.cache_dtype;
  std::array<LinearCall, 3> calls;
  std::size_t count = 0;
  if (queries_too) calls[count++] = first_query_call(layer, rows.count);
  if (shape().form == Form::mla) {
    const std::int64_t width = shape().d_latent + shape().d_rope;
    float* latent = act_.keys.prepare(rows.count * width);
    calls[count++] = {&layer.kv_a, latent};
    linear_group(context_, std::span(calls).first(count), model_.product, normed, runs);
    rms_norm(context_, latent, width, rows.count, shape().d_latent, layer.kv_a_norm,
             config().latent_norm_eps, latent, width);
    rotate(latent + shape().d_latent, rows.count, 1, width, shape().d_rope, rows.first);
    const StoredRows stored =
        stored_rows(context_, dtype, latent, rows.count, width, act_.rounded_keys);
    return {stored.view(rows.count, 1, width, 0, shape().d_latent),
            stored.view(rows.count, 1, width, shape().d_latent, shape().d_rope)};
  }
  const std::int64_t kv_heads = shape().kv_heads;
  const std::int64_t key_width = kv_heads * shape().d_rope;
  const std::int64_t value_width = kv_heads * shape().d_value;
  float* k = act_.keys.prepare(rows.count * key_width);
  float* v = act_.values.prepare(rows.count * value_width);
  calls[count++] = {&layer.k, k};
  calls[count++] = {&layer.v, v};
  linear_group(context_, std::span(calls).first(count), model_.product, normed, runs);
  rotate(k, rows.count, kv_heads, key_width, shape().d_rope, rows.first);
  const StoredRows keys = stored_rows(context_, dtype, k, rows.count, key_width, act_.rounded_keys);
  const StoredRows values =
      stored_rows(context_, dtype, v, rows.count, value_width, act_.rounded_values);
  return {values.view(rows.count, kv_heads, shape().d_value, 0, shape().d_value),
          keys.view(rows.count, kv_heads, shape().d_rope, 0, shape().d_rope)};
}

void CpuStages::parts_fill(std::size_t layer, RowRange rows, const Queries& queries,
                           const Entries* entries, float* out) {
  const std::int64_t out_width = shape().heads * shape().d_value;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const bool whole = rows.count == rows_;
    const std::int64_t count =
        whole ? static_cast<std::int64_t>(runs_[i].tokens.size()) : rows.count;
    // There may be queries of the last rows only.
    const std::int64_t asked = whole && runs_.size() > 1 ? count : queries.rope.shape[0];
    act_.parts[i] = {&cache(i, layer), slice(queries, runs_.size() > 1 ? row : 0, asked),
                     entries == nullptr ? Entries{} : slice(*entries, row, count),
                     out == nullptr ? nullptr : out + row * out_width, nullptr};
    act_.positions[i] = runs_[i].first + (whole ? 0 : rows.first);
    row += count;
  }
}

template <typename Body>
void CpuStages::for_like_parts(const Body& body) {
  const std::span<const Run> parts(act_.parts);
  const std::span<const std::int64_t> positions(act_.positions);
  for (std::size_t begin = 0; begin < parts.size();) {
    const LayerSpec& spec = parts[begin].cache->spec();
    std::size_t end = begin + 1;
    while (end < parts.size() && parts[end].cache->spec() == spec) ++end;
    body(method_for(spec.settings.method), parts.subspan(begin, end - begin),
         positions.subspan(begin, end - begin));
    begin = end;
  }
}

void CpuStages::begin(std::span<const SequenceRun> runs) {
  runs_ = runs;
  rows_ = 0;
  queries_ready_ = false;
  // One more element for runs_of: the length of a piece of a single run.
  act_.lengths.resize(runs.size() + 1);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    act_.lengths[i] = static_cast<std::int64_t>(runs[i].tokens.size());
    rows_ += act_.lengths[i];
  }
  act_.parts.resize(runs.size());
  act_.positions.resize(runs.size());
  const std::int64_t half = config().rope.width / 2;
  float* cos = act_.cos.prepare(rows_ * half);
  float* sin = act_.sin.prepare(rows_ * half);
  float* to = act_.hidden.prepare(rows_ * config().hidden);
  for (const SequenceRun& run : runs) {
    const auto count = static_cast<std::int64_t>(run.tokens.size());
    model_.rope.table(run.first, count, run.rope_length, cos, sin);
    embed(context_, model_.weights.embedding, run.tokens.data(), count,
          static_cast<float>(config().embedding_scale), to);
    cos += count * half;
    sin += count * half;
    to += count * config().hidden;
  }
}

void CpuStages::entries(std::size_t index, RowRange rows) {
  const DecoderLayer& layer = weights(index);
  const float* normed = norm(layer.attention_norm, hidden(rows.first), rows.count);
  const bool waiting = waits(index);
  const Entries entries = project_entries(layer, normed, rows, !waiting);
  if (waiting) {
    // Only the queries that the summary may need; `attend` computes all of them.
    const std::int64_t asked =
        std::min(rows.count, cache(0, index).spec().settings.summary_queries);
    queries_ = project_queries(layer, normed + (rows.count - asked) * config().hidden,
                               {rows.end() - asked, asked});
  } else {
    queries_ = finish_queries(layer, rows, runs_of(rows));
  }
  queries_ready_ = !waiting;
  parts_fill(index, rows, queries_, &entries, nullptr);
  for_like_parts([&](const Method& method, std::span<const Run> parts, auto) {
    method.take(context_, layer.up_projections, parts, !waiting || rows.end() == rows_);
  });
}

void CpuStages::attend(std::size_t index, RowRange rows) {
  const DecoderLayer& layer = weights(index);
  if (!queries_ready_) {
    const float* normed = norm(layer.attention_norm, hidden(rows.first), rows.count);
    queries_ = project_queries(layer, normed, rows);
  }
  queries_ready_ = false;
  float* attended = act_.attended.prepare(rows.count * shape().heads * shape().d_value);
  parts_fill(index, rows, queries_, nullptr, attended);
  const bool released = !waits(index) || rows.end() == rows_;
  for_like_parts([&](const Method& method, std::span<const Run> parts, auto positions) {
    method.attend(context_, layer.up_projections, parts, positions);
    for (const Run& part : parts) {
      if (released) method.release(*part.cache);
    }
  });
  const std::int64_t values = rows.count * config().hidden;
  float* branch = act_.branch.prepare(values);
  product(layer.o, attended, runs_of(rows), branch);
  add_scaled(context_, static_cast<float>(config().residual_scale), branch, values,
             hidden(rows.first));
}

void CpuStages::feed_forward(std::size_t index, RowRange rows) {
  const DecoderLayer& layer = weights(index);
  const std::int64_t values = rows.count * config().hidden;
  const float* normed = norm(layer.feed_forward_norm, hidden(rows.first), rows.count);
  float* branch = act_.branch.prepare(values);
  if (layer.experts.empty()) {
    lca::feed_forward(context_, layer.feed_forward, model_.product, act_, normed, runs_of(rows),
                      branch);
  } else {
    experts_forward(context_, layer, config().experts, model_.product, act_, normed, runs_of(rows),
                    branch);
  }
  add_scaled(context_, static_cast<float>(config().residual_scale), branch, values,
             hidden(rows.first));
}

const float* CpuStages::logits(std::span<const RowRange> ranges) {
  const std::int64_t width = config().hidden;
  std::int64_t rows = 0;
  act_.logit_lengths.clear();
  for (const RowRange& range : ranges) {
    act_.logit_lengths.push_back(range.count);
    rows += range.count;
  }
  float* normed = act_.normed.prepare(rows * width);
  std::int64_t row = 0;
  for (const RowRange& range : ranges) {
    rms_norm(context_, hidden(range.first), width, range.count, width, model_.weights.norm,
             config().norm_eps, normed + row * width, width);
    row += range.count;
  }
  if (const double divisor = config().logit_divisor; divisor != 1) {
    const auto factor = static_cast<float>(1 / divisor);
    for (std::int64_t i = 0; i < rows * width; ++i) normed[i] *= factor;
  }
  float* out = act_.logits.prepare(rows * config().vocabulary);
  product(model_.weights.head, normed, act_.logit_lengths, out);
  return out;
}

}  // namespace lca
