// A layer's prompts: a chunk's keys and values are rebuilt beside those still held, the groups that
// leave the window are condensed, and all queries of the chunk attend in one call.

#include <cmath>

#include "attention/cuda/layer_state.h"
#include "attention/cuda/product.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// Groups that are condensed together: bounds the memory of their query means.
constexpr std::int64_t kSlice = 8448;  // 64 for each multiprocessor of an H200

}  // namespace

void Layer::State::prefill(std::span<const HostRun> runs) {
  if (runs.empty()) return;
  Rows rows;
  const std::vector<Piece> pieces = pieces_plan(runs, rows);
  workspace_make(rows);
  for (const Piece& piece : pieces) {
    queries_load(piece);
    entries_load(piece);
    if (piece.groups_after > piece.groups_before) groups_condense(piece);
    if (piece.groups_after > 0) {
      float* bias = pool_.bias == nullptr
                        ? nullptr
                        : group_bias_.as<float>() + piece.group_row * shape_.kv_heads;
      groups_gather(shape_, pool_, piece.sequence->pages.as<std::int32_t>(), 0, piece.groups_after,
                    group_semantic_.as<bf16>() + piece.group_row * semantic_values(),
                    group_positional_.as<bf16>() + piece.group_row * positional_values(), bias,
                    stream_);
    }
  }
  attend(pieces, rows);
  for (const Piece& piece : pieces) {
    entries_keep(piece);
    queries_keep(piece);
    piece.sequence->length = piece.after;
    transfer_.upload({static_cast<std::int32_t>(piece.after)},
                     &views_.as<SessionView>()[piece.run->sequence].length);
    const std::int64_t row = piece.query_row + piece.recent;
    transfer_.download(out_.as<bf16>() + row * shape_.heads * shape_.d_value,
                       piece.tokens() * shape_.heads * shape_.d_value, piece.run->out);
    if (piece.run->lse != nullptr) {
      transfer_.download(lse_.as<float>() + row * shape_.heads, piece.tokens() * shape_.heads,
                         piece.run->lse);
    }
  }
  planned_ = false;  // lengths are others now
}

std::vector<Layer::State::Piece> Layer::State::pieces_plan(std::span<const HostRun> runs,
                                                           Rows& rows) {
  std::vector<Piece> pieces;
  std::vector<Sequence*> list;
  std::vector<std::int64_t> after;
  for (const HostRun& run : runs) {
    check_run(run, longest_);
    Piece piece;
    piece.run = &run;
    piece.sequence = &sequences_[static_cast<std::size_t>(run.sequence)];
    if (std::ranges::find(list, piece.sequence) != list.end()) {
      fail_input("sequence {} is twice in one call", run.sequence);
    }
    piece.before = piece.sequence->length;
    piece.after = piece.before + run.entries.semantic.shape[0];
    if (condensing() && spec_.settings.summary == Summary::prompt && piece.before > 0) {
      fail_input(
          "in summary mode `prompt` the GPU takes a prompt as one run; sequence {} holds {} "
          "tokens already",
          run.sequence, piece.before);
    }
    piece.groups_before = layout_.groups(piece.before);
    piece.groups_after = layout_.groups(piece.after);
    piece.gone = layout_.dropped(piece.before);
    piece.recent = std::min(recent_, piece.before);
    piece.query_row = rows.query;
    piece.exact_row = rows.exact;
    piece.group_row = rows.group;
    rows.query += piece.query_rows();
    rows.exact += piece.exact_rows();
    rows.group += piece.groups_after;
    pieces.push_back(piece);
    list.push_back(piece.sequence);
    after.push_back(piece.after);
  }
  pages_require(list, after);
  return pieces;
}

void Layer::State::workspace_make(const Rows& rows) {
  const std::int64_t heads = shape_.heads;
  const std::int64_t rebuilt = is_mla() ? heads : 0;
  const std::int64_t query_values = heads * (shape_.d_score() + shape_.d_value + 2);
  const std::int64_t key_values =
      shape_.entry_values() + rebuilt * (shape_.d_nope + shape_.d_value) + 2 * shape_.kv_heads;
  double held = 0;
  for (const Buffer* buffer : {&nope_, &rope_, &out_, &lse_, &exact_semantic_, &exact_positional_,
                               &exact_nope_, &exact_value_, &group_semantic_, &group_positional_,
                               &group_bias_, &group_nope_, &group_value_}) {
    held += static_cast<double>(buffer->bytes());
  }
  memory_require(2.0 * static_cast<double>(rows.query * query_values +
                                           (rows.exact + rows.group) * key_values) -
                     held,
                 fmt::format("a prompt of {} tokens at once", rows.query));

  transfer_.room<bf16>(nope_, rows.query * heads * shape_.d_nope);  // [rows][H][d_n]
  transfer_.room<bf16>(rope_, rows.query * heads * shape_.d_rope);  // [rows][H][d_r]
  transfer_.room<bf16>(out_, rows.query * heads * shape_.d_value);  // [rows][H][d_v]
  transfer_.room<float>(lse_, rows.query * heads);                  // [rows][H]
  transfer_.room<bf16>(exact_semantic_, rows.exact * semantic_values());
  transfer_.room<bf16>(exact_positional_, rows.exact * positional_values());
  transfer_.room<bf16>(group_semantic_, rows.group * semantic_values());
  transfer_.room<bf16>(group_positional_, rows.group * positional_values());
  transfer_.room<float>(group_bias_, rows.group * shape_.kv_heads);
  transfer_.room<bf16>(exact_nope_, rows.exact * rebuilt * shape_.d_nope);
  transfer_.room<bf16>(exact_value_, rows.exact * rebuilt * shape_.d_value);
  transfer_.room<bf16>(group_nope_, rows.group * rebuilt * shape_.d_nope);
  transfer_.room<bf16>(group_value_, rows.group * rebuilt * shape_.d_value);
}

void Layer::State::queries_load(const Piece& piece) {
  const Queries& queries = piece.run->queries;
  const auto load = [&](Buffer& to, const Buffer& kept, const ConstTensor& chunk,
                        std::int64_t width) {
    const std::int64_t values = shape_.heads * width;
    bf16* at = to.as<bf16>() + piece.query_row * values;
    ring_visit(piece.before - piece.recent, piece.before, std::max<std::int64_t>(recent_, 1),
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 transfer_.copy(kept.as<bf16>() + row * values, count * values, at);
                 at += count * values;
               });
    transfer_.upload(chunk, at);
  };
  if (is_mla()) load(nope_, piece.sequence->recent_nope, queries.nope, shape_.d_nope);
  load(rope_, piece.sequence->recent_rope, queries.rope, shape_.d_rope);
}

void Layer::State::entries_load(const Piece& piece) {
  const std::int64_t sink = std::min(layout_.sink, piece.before);
  const auto load = [&](Buffer& to, const bf16* kept, const ConstTensor& chunk,
                        std::int64_t values) {
    bf16* at = to.as<bf16>() + piece.exact_row * values;
    transfer_.copy(kept, sink * values, at);
    at += sink * values;
    // Positions [sink + gone, before), as the ring counts them: from the sink's end.
    ring_visit(piece.gone, piece.before - sink, ring_,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 transfer_.copy(kept + (sink + row) * values, count * values, at);
                 at += count * values;
               });
    transfer_.upload(chunk, at);
  };
  load(exact_semantic_, piece.sequence->semantic, piece.run->entries.semantic, semantic_values());
  load(exact_positional_, piece.sequence->positional, piece.run->entries.positional,
       positional_values());
}

HeadRows Layer::State::heads_view(const bf16* data, std::int64_t heads, std::int64_t width) const {
  return {data, heads * width, width, static_cast<int>(width)};
}

QueryRows Layer::State::query_rows(const Piece& piece) const {
  const std::int64_t heads = shape_.heads;
  QueryRows queries;
  if (is_mla()) {
    queries.nope = heads_view(nope_.as<bf16>() + piece.query_row * heads * shape_.d_nope, heads,
                              shape_.d_nope);
  }
  queries.rope =
      heads_view(rope_.as<bf16>() + piece.query_row * heads * shape_.d_rope, heads, shape_.d_rope);
  queries.first = piece.before - piece.recent;
  queries.rows = piece.query_rows();
  return queries;
}

const float* Layer::State::summaries(const Layout& law, std::int64_t prompt,
                                     const QueryRows& queries, std::int64_t first,
                                     std::int64_t count) {
  const HeadReduce reduce = spec_.settings.head_reduce;
  QueryMeans means;
  if (!is_mla()) {
    means.rope = transfer_.room<float>(means_rope_, count * summary_width_);
    query_means(shape_, reduce, law, prompt, queries, first, count, means, stream_);
    return means.rope;
  }
  if (prompt == 0 && query_summary_pays(count) &&
      query_summary_fits(shape_, reduce, law, queries, first, w_uk_.as<bf16>())) {
    float* fused = transfer_.room<float>(summary_, count * summary_width_);
    query_summary(shape_, law, queries, first, count, w_uk_.as<bf16>(), fused, stream_);
    return fused;
  }
  means.nope = transfer_.room<bf16>(means_nope_, count * 2 * shape_.heads * shape_.d_nope);
  means.rope = transfer_.room<float>(means_rope_, count * shape_.heads * shape_.d_rope);
  query_means(shape_, reduce, law, prompt, queries, first, count, means, stream_);
  float* summary = transfer_.room<float>(summary_, count * summary_width_);
  summary_absorb(shape_, reduce, means, count, w_uk_.as<bf16>(), summary, stream_);
  return summary;
}

void Layer::State::groups_condense(const Piece& piece) {
  const bool one = spec_.settings.summary == Summary::prompt;
  const QueryRows queries = query_rows(piece);
  for (std::int64_t first = piece.groups_before; first < piece.groups_after; first += kSlice) {
    const std::int64_t count = std::min(kSlice, piece.groups_after - first);
    // The first group begins at position sink + first·g; its tokens are rows in order.
    const std::int64_t row = piece.exact_row + layout_.group_range(first).begin - piece.gone;
    Condense job;
    job.shape = shape_;
    job.settings = spec_.settings;
    job.scale = scale_;
    job.semantic = exact_semantic_.as<bf16>() + row * semantic_values();
    job.positional = exact_positional_.as<bf16>() + row * positional_values();
    job.summary = summaries(layout_, one ? piece.after : 0, queries, first, one ? 1 : count);
    job.one_summary = one;
    job.count = count;
    job.out_semantic = transfer_.room<bf16>(new_semantic_, count * semantic_values());
    job.out_positional = transfer_.room<bf16>(new_positional_, count * positional_values());
    if (pool_.bias != nullptr) {
      job.out_bias = transfer_.room<float>(new_bias_, count * shape_.kv_heads);
    }
    condense(job, stream_);
    groups_append(shape_, pool_, piece.sequence->pages.as<std::int32_t>(), first, count,
                  job.out_semantic, job.out_positional, job.out_bias, stream_);
  }
}

void Layer::State::keys_rebuild(const bf16* latents, std::int64_t rows, bf16* nope, bf16* value) {
  if (rows == 0) return;
  Product up;
  up.a = latents;
  up.rows = rows;
  up.inner = up.a_stride = up.b_stride = shape_.d_latent;
  up.b = w_uk_.as<bf16>();
  up.c = nope;
  up.columns = up.c_stride = shape_.heads * shape_.d_nope;
  product(up, stream_);
  up.b = w_uv_.as<bf16>();
  up.c = value;
  up.columns = up.c_stride = shape_.heads * shape_.d_value;
  product(up, stream_);
}

void Layer::State::attend(std::span<const Piece> pieces, const Rows& rows) {
  const std::int64_t heads = shape_.heads;
  const std::int64_t kv = shape_.kv_heads;
  Prefill problem;
  problem.heads = static_cast<int>(heads);
  problem.kv_heads = static_cast<int>(kv);
  problem.form = shape_.form;
  problem.layout = layout_;
  problem.scale = scale_;
  problem.q_rope = heads_view(rope_.as<bf16>(), heads, shape_.d_rope);
  problem.query_rows = rows.query;
  problem.exact.rows = rows.exact;
  problem.groups.rows = rows.group;
  if (is_mla()) {
    keys_rebuild(exact_semantic_.as<bf16>(), rows.exact, exact_nope_.as<bf16>(),
                 exact_value_.as<bf16>());
    keys_rebuild(group_semantic_.as<bf16>(), rows.group, group_nope_.as<bf16>(),
                 group_value_.as<bf16>());
    const auto shared = [&](const Buffer& buffer) {
      return HeadRows{buffer.as<bf16>(), shape_.d_rope, 0, static_cast<int>(shape_.d_rope)};
    };
    problem.q_nope = heads_view(nope_.as<bf16>(), heads, shape_.d_nope);
    problem.exact.nope = heads_view(exact_nope_.as<bf16>(), heads, shape_.d_nope);
    problem.exact.rope = shared(exact_positional_);
    problem.exact.value = heads_view(exact_value_.as<bf16>(), heads, shape_.d_value);
    problem.groups.nope = heads_view(group_nope_.as<bf16>(), heads, shape_.d_nope);
    problem.groups.rope = shared(group_positional_);
    problem.groups.value = heads_view(group_value_.as<bf16>(), heads, shape_.d_value);
  } else {
    problem.exact.rope = heads_view(exact_positional_.as<bf16>(), kv, shape_.d_rope);
    problem.exact.value = heads_view(exact_semantic_.as<bf16>(), kv, shape_.d_value);
    problem.groups.rope = heads_view(group_positional_.as<bf16>(), kv, shape_.d_rope);
    problem.groups.value = heads_view(group_semantic_.as<bf16>(), kv, shape_.d_value);
  }
  if (pool_.bias != nullptr) problem.bias = group_bias_.as<float>();
  if (spec_.settings.mass == Mass::count) {
    problem.bias_all = static_cast<float>(std::log(static_cast<double>(layout_.group)));
  }
  problem.out = out_.as<bf16>();
  problem.lse = lse_.as<float>();

  std::vector<PrefillRun> runs;
  for (const Piece& piece : pieces) {
    runs.push_back({piece.query_row + piece.recent, piece.before, piece.tokens(), piece.exact_row,
                    piece.gone, piece.group_row});
  }
  char* workspace =
      transfer_.room<char>(runs_, static_cast<std::int64_t>(prefill_workspace_bytes(runs.size())));
  cuda::prefill(problem, runs, workspace, kernels_, stream_);
}

void Layer::State::entries_keep(const Piece& piece) {
  const auto keep = [&](const Buffer& from, bf16* to, std::int64_t values) {
    const bf16* rows = from.as<bf16>() + piece.exact_row * values;
    const std::int64_t sink = std::min(layout_.sink, piece.after);
    if (sink > piece.before) {
      transfer_.copy(rows + piece.before * values, (sink - piece.before) * values,
                     to + piece.before * values);
    }
    // What the window still holds of this chunk, counted from the sink's end.
    const std::int64_t first = std::max(layout_.dropped(piece.after), piece.before - sink);
    ring_visit(std::max<std::int64_t>(first, 0), piece.after - sink, ring_,
               [&](std::int64_t position, std::int64_t row, std::int64_t count) {
                 transfer_.copy(rows + (sink + position - piece.gone) * values, count * values,
                                to + (sink + row) * values);
               });
  };
  keep(exact_semantic_, piece.sequence->semantic, semantic_values());
  keep(exact_positional_, piece.sequence->positional, positional_values());
}

void Layer::State::recent_keep(Sequence& sequence, std::int64_t first, std::int64_t end,
                               const bf16* nope, const bf16* rope) {
  const std::int64_t begin = std::max(first, end - recent_);
  if (recent_ == 0) return;
  ring_visit(begin, end, recent_, [&](std::int64_t position, std::int64_t row, std::int64_t count) {
    const auto keep = [&](const bf16* from, const Buffer& to, std::int64_t width) {
      const std::int64_t values = shape_.heads * width;
      transfer_.copy(from + (position - first) * values, count * values,
                     to.as<bf16>() + row * values);
    };
    if (is_mla()) keep(nope, sequence.recent_nope, shape_.d_nope);
    keep(rope, sequence.recent_rope, shape_.d_rope);
  });
}

void Layer::State::queries_keep(const Piece& piece) {
  if (!condensing()) return;
  const QueryRows queries = query_rows(piece);
  recent_keep(*piece.sequence, piece.before, piece.after,
              queries.nope.data + piece.recent * shape_.heads * shape_.d_nope,
              queries.rope.data + piece.recent * shape_.heads * shape_.d_rope);

  // The reduced query of one token is the mean that a law with n_q = 1 asks for. Under g = w = 1
  // the group with the token's number is scored by the query after it: rows count from one more.
  Layout single;
  single.group = single.window = single.summary_queries = 1;
  QueryRows shifted = queries;
  ++shifted.first;
  const std::int64_t n_q = layout_.summary_queries;
  for (std::int64_t first = std::max(piece.before, piece.after - n_q); first < piece.after;
       first += kSlice) {
    const std::int64_t count = std::min(kSlice, piece.after - first);
    const float* reduced = summaries(single, 0, shifted, first, count);
    ring_visit(first, first + count, n_q,
               [&](std::int64_t position, std::int64_t row, std::int64_t length) {
                 transfer_.copy(reduced + (position - first) * summary_width_,
                                length * summary_width_,
                                piece.sequence->summary.as<float>() + row * summary_width_);
               });
  }
}

}  // namespace lca::cuda
