// From scored tokens to representatives (mechanism §3–§5).
//
// Shapes (DeepSeek-V2-Lite, 128K): latents [131072][512] and RoPE keys [131072][64] bf16 in 8128
// groups of 16, summary [8128 or 1][576] float, out [8128][512] and [8128][64].
// Bytes: 151 MB read (and 19 MB of summaries in mode `streaming`), 9 MB written: 38 µs at 4.27 TB/s
// (42 streaming). Operations: 2 · 131072 · 576 for scores and as many for pooling, 0.3 Gflop.
// No tensor cores; about 1000 instructions a warp, two warps a group: 18 µs if SMs issue perfectly.
//
// How data moves: a warp (GQA: for a group of one KV head) or several (two for 16 rows of 512 + 64
// columns, half of them each) hold a whole group in registers. 16 rows are 18 loads of 16 bytes a
// lane, all issued before the first is used: 18 KB a group, and 16 warps of 128 registers have 147
// KB in flight on an SM. Scores, softmax, pooling and the representative's own score need no second
// read; 0.8 KB of shared memory a block transpose scores and weights. Everything that no instance
// here covers goes to condense_plain.cu.
#include <lca/error.h>

#include <cmath>
#include <cstdint>

#include "attention/cuda/condense/condense.h"
#include "attention/cuda/condense/condense_job.h"
#include "attention/cuda/condense/condense_tile.cuh"
#include "attention/cuda/condense/condense_vectors.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// Warps of a block.
constexpr int block_warps(int split) { return split == 1 ? 2 : split; }

// kSplit warps share a group, each with its part of the columns: more than 1 where a group is too
// much for one warp's registers, and then a block has one group. kEntry: the positional part is
// selected, and rotated on to its representative's position.
template <bool kSemanticScored, int kSemantic, int kPositional, int G, int kSplit, bool kEntry>
__global__ __launch_bounds__(block_warps(kSplit) *
                             32) void condense_warp_kernel(const CondenseJob job) {
  static_assert(G <= 32);
  constexpr int kWarps = block_warps(kSplit);
  using Semantic = Tile<kSemantic / kSplit, G>;
  using Positional = Tile<kPositional / kSplit, G>;
  __shared__ float scores[kWarps][2][32];  // of the semantic and the positional part
  __shared__ float weights[kWarps][32];
  __shared__ float own_parts[kWarps];
  const auto sync = [] {
    if constexpr (kSplit == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = kSplit == 1 ? 0 : warp;
  const std::int64_t item =
      kSplit == 1 ? static_cast<std::int64_t>(blockIdx.x) * kWarps + warp : blockIdx.x;
  if (item >= job.items) return;                            // all that meet at a barrier, or none
  const int kv_heads = kSemanticScored ? 1 : job.kv_heads;  // MLA: rows lie at fixed distances
  const std::int64_t group = item / kv_heads;
  const int head = static_cast<int>(item - group * kv_heads);

  constexpr int kSummary = kPositional + (kSemanticScored ? kSemantic : 0);
  const int semantic_column = part * (kSemantic / kSplit);
  const int positional_column = part * (kPositional / kSplit);
  const float* summary = job.summary + group * job.summary_step + head * kSummary;
  const float* semantic_summary = summary + semantic_column;  // MLA alone
  const float* positional_summary = summary + kSummary - kPositional + positional_column;
  const GroupPlace place = group_place(job, group, lane);
  const std::int64_t semantic_stride = job.semantic.row_stride;
  const std::int64_t positional_stride = job.positional.row_stride;

  Semantic semantic;
  Positional positional;
  semantic.load(job.semantic.data + place.row * semantic_stride + head * job.semantic.head_stride +
                    semantic_column,
                semantic_stride, lane);
  positional.load(job.positional.data + place.row * positional_stride +
                      head * job.positional.head_stride + positional_column,
                  positional_stride, lane);
  __syncwarp();  // all loads are on their way: see load_now
  typename Positional::Query positional_query;
  if (!kSemanticScored && job.queries.data != nullptr) {
    static_assert(kSemanticScored || kSplit == 1);
    const bf16* from = job.queries.data + place.document * job.queries.row_stride +
                       head * job.sharing * job.queries.head_stride;
    positional_query = Positional::mean(from, job.queries, job.layout.summary_range(place.index, 0),
                                        job.sharing, lane);
  } else {
    positional_query.load(positional_summary, lane);
  }
  if constexpr (kSemanticScored) {
    typename Semantic::Query semantic_query;
    semantic_query.load(semantic_summary, lane);
    semantic.dots(semantic_query, scores[warp][0], lane);
  }
  positional.dots(positional_query, scores[warp][1], lane);
  sync();

  // Lane i has token i, in every warp.
  float score = -INFINITY;
  if (lane < G) {
    score = 0;
#pragma unroll
    for (int w = 0; w < kSplit; ++w) {
      const int from = kSplit == 1 ? warp : w;
      if constexpr (kSemanticScored) score += scores[from][0][lane];
      score += scores[from][1][lane];
    }
    score = score_bounded(score * job.factor);
    if (job.out_scores != nullptr && part == 0) job.out_scores[item * G + lane] = score;
  }
  const float top = warp_max(score);
  const int best = __ffs(static_cast<int>(__ballot_sync(kAll, score == top))) - 1;
  const float weight = exp2f((score - top) * kLog2e);
  const float total = warp_sum(weight);
  float* alpha = weights[warp];
  alpha[lane] = weight / total;
  __syncwarp();

  float own = 0;
  {
    float value[Semantic::kAcross][8];
    uint4 stored[Semantic::kAcross];
    semantic.pool(job.semantic_pool, alpha, best, lane, value, stored);
    Semantic::store(stored,
                    job.out_semantic.data + group * job.out_semantic.row_stride +
                        head * job.out_semantic.head_stride + semantic_column,
                    lane);
    if constexpr (kSemanticScored) {
      if (job.mass == Mass::score) own = Semantic::own_dot(value, semantic_summary, lane);
    }
  }
  {
    float value[Positional::kAcross][8];
    uint4 stored[Positional::kAcross];
    bf16* const out = job.out_positional.data + group * job.out_positional.row_stride +
                      head * job.out_positional.head_stride;
    if constexpr (kEntry) {
      __shared__ alignas(16) bf16 chosen[kWarps / kSplit][kPositional];
      bf16* const row = chosen[kSplit == 1 ? warp : 0];
      positional.pool(Pool::select, alpha, best, lane, value, stored);
      Positional::store(stored, row + positional_column, lane);
      sync();
      const RotationView& rotation = job.rotation;
      const int thread = kSplit == 1 ? lane : static_cast<int>(threadIdx.x);
      for (int pair = thread; pair < rotation.pairs; pair += 32 * kSplit) {
        const int2 channel = pair_channels(rotation, pair);
        const float2 kept =
            turn_of(__ldg(rotation.steps + pair), job.difference(place.index, best))(
                __bfloat162float(row[channel.x]), __bfloat162float(row[channel.y]));
        out[channel.x] = __float2bfloat16_rn(kept.x);
        out[channel.y] = __float2bfloat16_rn(kept.y);
      }
      for (int i = 2 * rotation.pairs + thread; i < kPositional; i += 32 * kSplit) out[i] = row[i];
    } else {
      positional.pool(job.positional_pool, alpha, best, lane, value, stored);
      Positional::store(stored, out + positional_column, lane);
    }
    if (job.mass == Mass::score) own += Positional::own_dot(value, positional_query, lane);
  }
  if (job.out_bias != nullptr) {  // the same for all threads
    own = warp_sum(own);
    if constexpr (kSplit > 1) {
      if (lane == 0) own_parts[warp] = own;
      sync();
      own = 0;
#pragma unroll
      for (int w = 0; w < kSplit; ++w) own += own_parts[w];
    }
    own = score_bounded(own * job.factor);
    if (lane == 0 && part == 0) job.out_bias[item] = mass_bias(job.mass, G, total, top, own);
  }
}

// --- which -----------------------------------------------------------------------------------

template <bool kSemanticScored, int kSemantic, int kPositional, int G>
void fast_launch(const CondenseJob& job, const Queue& queue) {
  constexpr int kValues = (kSemantic + kPositional) * G;  // 128 registers a lane are 8192 of them
  constexpr int kSplit = kValues > 16384 ? 4 : kValues > 8192 ? 2 : 1;
  constexpr int kWarps = block_warps(kSplit);
  constexpr int kItems = kWarps / kSplit;  // of a block
  const auto blocks = static_cast<unsigned>((job.items + kItems - 1) / kItems);
  if (job.rotation.steps == nullptr) {
    condense_warp_kernel<kSemanticScored, kSemantic, kPositional, G, kSplit, false>
        <<<blocks, kWarps * 32, 0, queue.stream>>>(job);
  } else {
    condense_warp_kernel<kSemanticScored, kSemantic, kPositional, G, kSplit, true>
        <<<blocks, kWarps * 32, 0, queue.stream>>>(job);
  }
}

template <bool kSemanticScored, int kSemantic, int kPositional>
void fast_launch_group(const CondenseJob& job, const Queue& queue) {
  switch (job.group) {
    case 4:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 4>(job, queue);
    case 8:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 8>(job, queue);
    case 16:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 16>(job, queue);
    default:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 32>(job, queue);
  }
}

// Whether fast_launch_any has an instance.
bool fast_covers(const CondenseJob& job) {
  if (!rows_fit_vectors(job.semantic) || !rows_fit_vectors(job.positional) ||
      !rows_fit_vectors(job.out_semantic) || !rows_fit_vectors(job.out_positional) ||
      !aligned_16(job.summary)) {
    return false;
  }
  if (job.rotation.steps != nullptr && job.positional_pool != Pool::select) return false;
  return widths_known(job);
}

void fast_launch_any(const CondenseJob& job, const Queue& queue) {
  if (job.semantic_scored) {
    if (job.d_semantic == 512) return fast_launch_group<true, 512, 64>(job, queue);
    return fast_launch_group<true, 256, 32>(job, queue);
  }
  if (job.d_semantic == 128) return fast_launch_group<false, 128, 128>(job, queue);
  return fast_launch_group<false, 64, 64>(job, queue);
}

}  // namespace

int summary_width(const AttentionShape& shape, HeadReduce reduce) {
  const std::int64_t one =
      shape.d_rope + (shape.form == Form::mla ? shape.d_latent : std::int64_t{0});
  return static_cast<int>(reduce == HeadReduce::max ? shape.heads_per_kv() * one : one);
}

CondenseJob condense_job(const Condense& request) {
  const AttentionShape& shape = request.shape;
  const Settings& settings = request.settings;
  CondenseJob job{};
  job.semantic = request.semantic;
  job.positional = request.positional;
  job.summary = request.summary;
  job.summary_step =
      request.one_summary ? 0 : shape.kv_heads * summary_width(shape, settings.head_reduce);
  job.out_semantic = request.out_semantic;
  job.out_positional = request.out_positional;
  job.out_bias = request.out_bias;
  job.out_scores = request.out_scores;
  job.items = request.count * shape.kv_heads;
  job.kv_heads = static_cast<int>(shape.kv_heads);
  job.group = static_cast<int>(settings.group);
  job.d_semantic = static_cast<int>(shape.d_semantic());
  job.d_positional = static_cast<int>(shape.d_positional());
  job.score_heads =
      static_cast<int>(settings.head_reduce == HeadReduce::max ? shape.heads_per_kv() : 1);
  job.factor = settings.head_reduce == HeadReduce::mean
                   ? request.scale / static_cast<float>(shape.heads_per_kv())
                   : request.scale;
  job.semantic_pool = settings.semantic_pool;
  job.positional_pool = settings.positional_pool;
  job.mass = settings.mass;
  job.semantic_scored = shape.form == Form::mla;
  job.rotation = request.rotation;
  job.first_group = request.first_group;
  job.documents = request.documents;
  job.sink = settings.sink;
  if (request.queries.rows > 0) job.queries = request.queries.rope;
  job.layout = Layout(settings);
  job.sharing = static_cast<int>(shape.heads_per_kv());
  if (job.items > INT32_MAX || settings.group > INT32_MAX) {
    throw Error(ErrorKind::bad_input, "condensing on the GPU: too many groups, or too large ones");
  }
  return job;
}

bool queries_sum(const Condense& request) {
  // A lane's 16-byte loads of queries one after another: more are faster by many blocks.
  constexpr std::int64_t kMostLoads = 24;
  const AttentionShape& shape = request.shape;
  const std::int64_t values =
      shape.heads_per_kv() * request.settings.summary_queries * shape.d_rope;
  return values <= kMostLoads * 32 * 8 && request.shape.form == Form::gqa &&
         request.settings.head_reduce != HeadReduce::max && !request.one_summary &&
         request.first_group == 0 && request.queries.rows > 0 && request.queries.first == 0 &&
         rows_fit_vectors(request.queries.rope);
}

bool condense_sums(const Condense& request) {
  return queries_sum(request) && fast_covers(condense_job(request));
}

void condense(const Condense& request, const Queue& queue) {
  if (request.count <= 0) return;
  const CondenseJob job = condense_job(request);
  if (fast_covers(job)) {
    fast_launch_any(job, queue);
  } else {
    condense_plain(job, queue);
  }
  check(cudaGetLastError(), "condensing");
}

}  // namespace lca::cuda
