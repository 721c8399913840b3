// The attention half of a layer on the GPU: projections, RoPE and placing, the
// attention calls of all groups of runs, output projection.

#include <algorithm>
#include <array>

#include "attention/settings_kind.h"
#include "core/cuda/profile_range.h"
#include "models/cuda/cuda_stages.h"
#include "models/cuda/stage_spaces.h"

namespace lca::cuda {

/// Whether the layer condenses only at the end of the prompt: then the step is
/// the whole prompt of a single run.
bool CudaStages::waits(std::size_t layer) const {
  return runs_.size() == 1 && !single_ &&
         summary_waits(groups_[0].store->spec(static_cast<int>(layer)).settings);
}

/// The spaces of all groups for a layer, behind what projecting needs; returns
/// the bytes of both.
std::size_t CudaStages::spaces_prepare(std::size_t index, RowRange rows, void* memory) {
  const auto layer = static_cast<int>(index);
  std::size_t used = projected_bytes(config(), model_.widths, single_ ? padded_ : rows.count);
  for (Group& group : groups_) {
    const LayerSpec& spec = group.store->spec(layer);
    void* const at = memory == nullptr ? nullptr : static_cast<char*>(memory) + used;
    if (group.single) {
      const DecodePlan& plan = group.plans.at(group.store->kind(layer));
      if (at != nullptr) {
        group.step = step_space(spec, plan, false, at);
        group.step.kernel_space = kernel_space_.as<void>();
        group.step.sessions = group.views + layer * group.batch;
      }
      used += step_space_bytes(spec, plan, false);
    } else {
      if (at == nullptr) {
        std::vector<ChunkRequest> requests;
        for (const std::size_t run : group.runs) {
          const bool whole = rows.count == rows_;
          const auto count =
              whole ? static_cast<std::int64_t>(runs_[run].tokens.size()) : rows.count;
          auto& caches = static_cast<DeviceCaches&>(*runs_[run].caches);
          requests.push_back(caches.sequence().chunk(whole ? 0 : rows.first, count));
        }
        group.chunk = chunk_plan(*group.store, layer, requests);
      } else {
        group.space = chunk_space(spec, group.chunk.rows, at);
      }
      used += chunk_space_bytes(spec, group.chunk.rows);
    }
    used = (used + 255) / 256 * 256;
  }
  return used;
}

void CudaStages::up_projections_turn() {
  if (shape().form != Form::mla) return;
  const DeviceScope scope(model_.device);
  const std::int64_t values = shape().heads * shape().d_nope * shape().d_latent;
  const std::size_t layers = model_.weights.layers.size();
  turned_ = Buffer(layers * static_cast<std::size_t>(values) * sizeof(bf16));
  for (std::size_t i = 0; i < layers; ++i) {
    matrices_turn(weights(i).w_uk, shape().heads, shape().d_nope, shape().d_latent,
                  turned_.as<bf16>() + static_cast<std::int64_t>(i) * values,
                  model_.stream.queue());
  }
}

LayerView CudaStages::view(const CacheStore& store, std::size_t layer) const {
  LayerView made = model_.stores->view(store, static_cast<int>(layer));
  if (shape().form == Form::mla && model_.kernels == Kernels::fast) {
    made.w_uk_turned = turned_.as<bf16>() + static_cast<std::int64_t>(layer) * shape().heads *
                                                shape().d_nope * shape().d_latent;
  }
  return made;
}

/// The first products of normed rows: of queries, of entries, or of both.
CudaStages::Projected CudaStages::project(std::size_t index, RowRange rows, bool queries,
                                          bool entries) {
  const DeviceLayer& layer = weights(index);
  DeviceCarver carver(lane_->work.as<void>());
  const ProjectionSpace space(config(), model_.widths, rows.count, carver);
  norm(layer.attention_norm, rows);
  const std::int64_t query_out = shape().form == Form::gqa ? shape().heads * shape().d_rope
                                 : layer.q_b.empty()       ? shape().heads * shape().d_score()
                                                           : config().query_latent;
  const std::int64_t from = queries ? 0 : query_out;
  const std::int64_t end = entries ? layer.first.out : query_out;
  product_part(layer.first, from, end - from, space.normed, rows.count, space.first + from,
               layer.first.out);
  attended_ = space.attended;
  if (layer.q_b.empty() || !queries) return {space.first, nullptr};
  RowsNorm job;
  job.x = space.first;
  job.x_stride = layer.first.out;
  job.bias = layer.first.bias;
  job.weight = layer.q_a_norm;
  job.eps = config().latent_norm_eps;
  job.rows = rows.count;
  job.width = config().query_latent;
  job.out = space.query_latent;
  rows_norm(job, queue_);
  product(layer.q_b, space.query_latent, rows.count, space.queries, true);
  return {space.first, space.queries};
}

/// Rows `part` of the rows that were projected, to where attention reads them.
void CudaStages::place(std::size_t index, const Projected& from, RowRange rows, RowRange part,
                       const Places& to, const std::int32_t* source) {
  const DeviceLayer& layer = weights(index);
  const std::int64_t stride = layer.first.out;
  const auto bias = [&](std::int64_t at) {
    return layer.first.bias == nullptr ? nullptr : layer.first.bias + at;
  };
  RowsPlace job;
  job.source = source;
  job.first = part.first;
  job.rows = part.count;
  job.turns = turns_ + rows.first * model_.rope_pairs();
  job.pairs = static_cast<int>(model_.rope_pairs());
  job.layout = config().rope.layout;
  std::array<PlacedPart, kPlacedParts> parts;
  std::size_t count = 0;
  const auto add = [&](const float* data, std::int64_t row, const float* added, std::int64_t heads,
                       std::int64_t width, bool rotated, std::int64_t first_to,
                       bf16* out) -> PlacedPart& {
    PlacedPart& made = parts[count++];
    made = {};
    made.from = data;
    made.stride = row;
    made.bias = added;
    made.heads = static_cast<int>(heads);
    made.width = static_cast<int>(width);
    made.rotated = rotated;
    made.first_to = first_to;
    made.out = out;
    return made;
  };
  const bool mla = shape().form == Form::mla;
  const std::int64_t queries = shape().heads * shape().d_score();
  if (to.rope != nullptr) {
    const bool compressed = from.queries != nullptr;
    PlacedPart& q = add(compressed ? from.queries : from.first, compressed ? queries : stride,
                        compressed ? nullptr : bias(0), shape().heads, shape().d_score(), true,
                        to.query_row, to.rope);
    q.plain = static_cast<int>(shape().d_nope);
    q.plain_out = to.nope;
  }
  if (to.positional != nullptr && mla) {
    const std::int64_t at = layer.q_b.empty() ? queries : config().query_latent;
    PlacedPart& latent = add(from.first + at, stride, bias(at), 1, shape().d_latent, false,
                             to.entry_row, to.semantic);
    latent.norm = layer.kv_a_norm;
    latent.eps = config().latent_norm_eps;
    const std::int64_t key = at + shape().d_latent;
    add(from.first + key, stride, bias(key), 1, shape().d_rope, true, to.entry_row, to.positional);
  } else if (to.positional != nullptr) {
    const std::int64_t value = queries + shape().kv_heads * shape().d_rope;
    add(from.first + queries, stride, bias(queries), shape().kv_heads, shape().d_rope, true,
        to.entry_row, to.positional);
    add(from.first + value, stride, bias(value), shape().kv_heads, shape().d_value, false,
        to.entry_row, to.semantic);
  }
  rows_place(job, std::span(parts).first(count), queue_);
}

void CudaStages::entries(std::size_t layer, RowRange rows) {
  if (mode_ == Mode::replay) return;
  const DeviceScope scope(model_.device);
  const ProfileRange range("lca entries");
  if (waits(layer)) {
    waiting_entries(layer, rows);
    clock_.mark("projections", queue_);
    return;
  }
  grow(lane_->work, spaces_prepare(layer, rows, nullptr));
  spaces_prepare(layer, rows, lane_->work.as<void>());
  const RowRange all = single_ ? RowRange{0, padded_} : rows;
  const Projected projected = project(layer, all, true, true);
  for (const Group& group : groups_) {
    if (group.single) {
      const StepSpace& step = group.step;
      const std::int32_t* const source =
          single_ && groups_.size() == 1 ? nullptr : table_.single + group.first_session;
      place(layer, projected, all, {0, group.batch},
            {step.nope, step.rope, step.semantic, step.positional}, source);
      continue;
    }
    std::int64_t row = 0;
    std::size_t run = 0;
    for (std::size_t i = 0; i < group.runs.size(); ++i) {
      for (; run < group.runs[i]; ++run) row += static_cast<std::int64_t>(runs_[run].tokens.size());
      const ChunkPiece& piece = group.chunk.pieces[i];
      const ChunkSpace& space = group.space;
      place(layer, projected, all, {rows.count == rows_ ? row : 0, piece.tokens()},
            {space.nope, space.rope, space.exact_semantic, space.exact_positional,
             piece.query_row(), piece.exact_row()});
    }
  }
  clock_.mark("projections", queue_);
}

void CudaStages::attend(std::size_t layer, RowRange rows) {
  if (mode_ == Mode::replay) return;
  const DeviceScope scope(model_.device);
  const ProfileRange range("lca attend");
  if (waits(layer)) {
    output(layer, waiting_attend(layer, rows), rows);
    return;
  }
  for (const Group& group : groups_) {
    const LayerView called = view(*group.store, layer);
    if (group.single) {
      step_run(called, group.plans.at(group.store->kind(static_cast<int>(layer))), group.step,
               model_.product_space(), queue_);
    } else {
      chunk_run(called, group.chunk, group.space, model_.product_space(), queue_);
    }
  }
  const RowRange all = single_ ? RowRange{0, padded_} : rows;
  output(layer, attended_rows(all), all);
}

/// Outputs of all groups in the order of rows.
const bf16* CudaStages::attended_rows(RowRange rows) {
  const std::int64_t width = shape().heads * shape().d_value;
  if (groups_.size() == 1) {
    const Group& group = groups_[0];
    if (group.single) return group.step.out;
    if (group.runs.size() == 1) return group.space.out + group.chunk.pieces[0].query_row() * width;
  }
  for (const Group& group : groups_) {
    if (group.single) {
      rows_move(group.step.out, nullptr, group.batch, width, attended_,
                table_.single + group.first_session, queue_);
      continue;
    }
    std::int64_t row = 0;
    std::size_t run = 0;
    for (std::size_t i = 0; i < group.runs.size(); ++i) {
      for (; run < group.runs[i]; ++run) row += static_cast<std::int64_t>(runs_[run].tokens.size());
      const ChunkPiece& piece = group.chunk.pieces[i];
      Transfer::device_copy(group.space.out + piece.query_row() * width,
                            static_cast<std::size_t>(piece.tokens() * width) * sizeof(bf16),
                            attended_ + (rows.count == rows_ ? row : 0) * width, queue_);
    }
  }
  return attended_;
}

void CudaStages::output(std::size_t index, const bf16* attended, RowRange rows) {
  clock_.mark("attention", queue_);
  const DeviceLayer& layer = weights(index);
  product(layer.o, attended, rows.count, hidden(rows.first), true, true);
  if (layer.o.bias != nullptr) {
    rows_add_bias(layer.o.bias, static_cast<float>(config().residual_scale), rows.count,
                  config().hidden, hidden(rows.first), queue_);
  }
  clock_.mark("output", queue_);
}

// --- prompts whose groups wait for their end
// ----------------------------------------------------

ChunkSpace CudaStages::waiting_space(std::size_t layer, const ChunkPlan& chunk, std::int64_t rows) {
  const LayerSpec& spec = groups_[0].store->spec(static_cast<int>(layer));
  const std::size_t before = projected_bytes(config(), model_.widths, rows);
  grow(lane_->work, before + chunk_space_bytes(spec, chunk.rows));
  return chunk_space(spec, chunk.rows, lane_->work.as<char>() + before);
}

/// Entries of a chunk of the prompt, and the queries that score all groups.
void CudaStages::waiting_entries(std::size_t index, RowRange rows) {
  const auto layer = static_cast<int>(index);
  CacheStore& store = *groups_[0].store;
  CacheSequence& sequence = static_cast<DeviceCaches&>(*runs_[0].caches).sequence();
  const LayerView view = model_.stores->view(store, layer);
  if (rows.first == 0) {
    waiting_plan_ = prompt_plan(view.spec, sequence.chunk(0, rows_));
    grow(prompt_rows_, prompt_rows_bytes(view.spec, waiting_plan_));
    waiting_rows_ = prompt_rows(view.spec, waiting_plan_, prompt_rows_.as<void>());
    prompt_begin(view, waiting_plan_, waiting_rows_, queue_);
  }
  grow(lane_->work, projected_bytes(config(), model_.widths, rows.count));
  const std::int64_t first = runs_[0].first + rows.first;
  const std::int64_t end = first + rows.count;
  const std::int64_t tail = std::max(first, waiting_plan_.tail_first());
  const Projected projected = project(index, rows, tail < end, true);
  Places entries;
  entries.semantic = waiting_rows_.semantic;
  entries.positional = waiting_rows_.positional;
  entries.entry_row = waiting_plan_.row(first);
  place(index, projected, rows, {0, rows.count}, entries);
  if (tail < end) {
    Places queries;
    queries.nope = waiting_rows_.tail_nope;
    queries.rope = waiting_rows_.tail_rope;
    queries.query_row = tail - waiting_plan_.tail_first();
    place(index, projected, rows, {tail - first, end - tail}, queries);
  }
  if (rows.end() == rows_) {
    const ChunkPlan chunk = prompt_chunk(store, layer, waiting_plan_, rows.first, rows.count);
    prompt_condense(view, waiting_plan_, waiting_rows_, waiting_space(index, chunk, rows.count),
                    model_.product_space(), queue_);
  }
}

const bf16* CudaStages::waiting_attend(std::size_t index, RowRange rows) {
  const auto layer = static_cast<int>(index);
  CacheStore& store = *groups_[0].store;
  const LayerView view = model_.stores->view(store, layer);
  const ChunkPlan chunk = prompt_chunk(store, layer, waiting_plan_, rows.first, rows.count);
  const ChunkSpace space = waiting_space(index, chunk, rows.count);
  const Projected projected = project(index, rows, true, false);
  Places queries;
  queries.nope = space.nope;
  queries.rope = space.rope;
  queries.query_row = chunk.pieces[0].query_row();
  place(index, projected, rows, {0, rows.count}, queries);
  prompt_attend(view, waiting_plan_, waiting_rows_, chunk, space, model_.product_space(), queue_);
  if (rows.end() == rows_) {
    prompt_end(view, waiting_plan_, waiting_rows_, space, model_.product_space(), queue_);
  }
  return space.out + queries.query_row * shape().heads * shape().d_value;
}

}  // namespace lca::cuda
