// From scored tokens to representatives (mechanism §3–§5).
//
// Shapes (DeepSeek-V2-Lite, 128K): latents [131072][512] and RoPE keys [131072][64] bf16 in 8128
// groups of 16, summary [8128 or 1][576] float, out [8128][512] and [8128][64].
// Bytes: 151 MB read (and 19 MB of summaries in mode `streaming`), 9 MB written: 38 µs at 4.27 TB/s
// (42 streaming). Operations: 2 · 131072 · 576 for scores and as many for pooling, 0.3 Gflop.
// No tensor cores; about 1300 instructions a warp and group, 12 µs if all SMs issue well.
//
// How data moves: one warp takes a group (GQA: of one KV head) and holds all of it in registers: 16
// rows of 512 are 32 loads of 16 bytes a lane, all in flight at once, 18 KB a warp; 8 warps of an
// SM have 147 KB in flight. Scores, softmax, pooling and the representative's own score need no
// second read and no barrier but the warp's; 384 bytes of shared memory a warp turn scores and
// weights around. Everything that no fast instance covers goes through one plain kernel.
#include <lca/error.h>

#include <cmath>
#include <cstdint>

#include "attention/cuda/condense.h"
#include "attention/cuda/condense_job.h"
#include "attention/cuda/condense_vectors.h"

namespace lca::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr unsigned kAll = 0xffffffffu;

// --- a warp for each group -----------------------------------------------------------------------

__device__ uint4 max_each(const uint4& a, const uint4& b) {
  const auto larger = [](std::uint32_t x, std::uint32_t y) {
    const __nv_bfloat162 z = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&x),
                                     *reinterpret_cast<const __nv_bfloat162*>(&y));
    return *reinterpret_cast<const std::uint32_t*>(&z);
  };
  return {larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w)};
}

// A load that stays where it is written: left alone, the compiler puts loads off until registers
// are free, and a warp waits for memory three times instead of once. Plain loads may not pass the
// barrier that follows them.
__device__ uint4 load_now(const bf16* from) {
  uint4 raw;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return raw;
}

// G rows of W values in the registers of a warp. A row is W/8 vectors of 16 bytes; kLanes
// consecutive lanes read kLanes consecutive vectors of one row, so one load of the whole warp
// covers kRows rows (1 where a row is wider than a warp's 512 bytes). Lane l holds, of rows
// l / kLanes + k·kRows (k < kLoads), vectors l % kLanes + a·kLanes (a < kAcross).
template <int W, int G>
struct Tile {
  static constexpr int kLanes = W / 8 < 32 ? W / 8 : 32;
  static constexpr int kRows = 32 / kLanes;
  static constexpr int kLoads = G / kRows;
  static constexpr int kAcross = W / 8 / kLanes;
  static_assert(kLanes * kAcross * 8 == W && kLoads * kRows == G);

  uint4 raw[kLoads][kAcross];

  __device__ void load(const bf16* first, int stride, int lane) {
    const bf16* from =
        first + static_cast<std::int64_t>(lane / kLanes) * stride + lane % kLanes * 8;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        raw[k][a] = load_now(from + static_cast<std::int64_t>(k * kRows) * stride + a * kLanes * 8);
      }
    }
  }

  // The columns of a summary that a lane's vectors meet.
  struct Query {
    float value[kAcross][8];
    __device__ void load(const float* summary, int lane) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        load_floats<8>(summary + (lane % kLanes + a * kLanes) * 8, value[a]);
      }
    }
  };

  // Products of the lane's rows with the summary, summed over the lanes of a row and written to
  // scores[G]. The sum transposes as it goes: in each step a lane gives half of its rows to its
  // partner and takes the partner's part of the other half, 1 + 2 + 4 + … shuffles in all.
  __device__ void dots(const Query& query, float* scores, int lane) const {
    float sum[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      sum[k] = 0;
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        float x[8];
        unpack(raw[k][a], x);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[k] += x[i] * query.value[a][i];
      }
    }
    int held = kLoads;  // sum[0 … held) are rows `first` … in units of kRows; compile-time
    int first = 0;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      if (held > 1) {
        held /= 2;
        const bool upper = (lane & mask) != 0;
        if (upper) first += held;
#pragma unroll
        for (int i = 0; i < kLoads / 2; ++i) {
          if (i < held) {
            const float keep = upper ? sum[i + held] : sum[i];
            const float give = upper ? sum[i] : sum[i + held];
            sum[i] = keep + __shfl_xor_sync(kAll, give, mask);
          }
        }
      } else {
        sum[0] += __shfl_xor_sync(kAll, sum[0], mask);
      }
    }
    // Lanes that ended with the same row write the same value.
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i < held) scores[(first + i) * kRows + lane / kLanes] = sum[i];
    }
  }

  // The pooled row. Afterwards every lane has the columns of its vectors, as unrounded floats and
  // as they are stored.
  __device__ void pool(Pool how, const float* alpha, int best, int lane, float (&value)[kAcross][8],
                       uint4 (&stored)[kAcross]) const {
    if (how == Pool::select) {
      const int from = best % kRows * kLanes + lane % kLanes;
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        // By masks: choosing with ?: makes the compiler index memory, and rows leave registers.
        stored[a] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          const std::uint32_t mask = k == best / kRows ? kAll : 0;
          stored[a].x |= raw[k][a].x & mask;
          stored[a].y |= raw[k][a].y & mask;
          stored[a].z |= raw[k][a].z & mask;
          stored[a].w |= raw[k][a].w & mask;
        }
        if constexpr (kRows > 1) {
          stored[a].x = __shfl_sync(kAll, stored[a].x, from);
          stored[a].y = __shfl_sync(kAll, stored[a].y, from);
          stored[a].z = __shfl_sync(kAll, stored[a].z, from);
          stored[a].w = __shfl_sync(kAll, stored[a].w, from);
        }
        unpack(stored[a], value[a]);
      }
    } else if (how == Pool::max) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        stored[a] = raw[0][a];
#pragma unroll
        for (int k = 1; k < kLoads; ++k) stored[a] = max_each(stored[a], raw[k][a]);
#pragma unroll
        for (int mask = kLanes; mask < 32; mask *= 2) {
          uint4 other;
          other.x = __shfl_xor_sync(kAll, stored[a].x, mask);
          other.y = __shfl_xor_sync(kAll, stored[a].y, mask);
          other.z = __shfl_xor_sync(kAll, stored[a].z, mask);
          other.w = __shfl_xor_sync(kAll, stored[a].w, mask);
          stored[a] = max_each(stored[a], other);
        }
        unpack(stored[a], value[a]);
      }
    } else {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[a][i] = 0;
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const float weight = how == Pool::mean ? 1.0f / G : alpha[k * kRows + lane / kLanes];
#pragma unroll
        for (int a = 0; a < kAcross; ++a) {
          float x[8];
          unpack(raw[k][a], x);
#pragma unroll
          for (int i = 0; i < 8; ++i) value[a][i] += weight * x[i];
        }
      }
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int mask = kLanes; mask < 32; mask *= 2) {
#pragma unroll
          for (int i = 0; i < 8; ++i) value[a][i] += __shfl_xor_sync(kAll, value[a][i], mask);
        }
        stored[a] = pack(value[a]);
      }
    }
  }

  // A lane's part of pooled · summary: each column counts once.
  __device__ static float own_dot(const float (&value)[kAcross][8], const float* summary,
                                  int lane) {
    float sum = 0;
    if (lane < kLanes) {
      Query query;
      query.load(summary, lane);
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += value[a][i] * query.value[a][i];
      }
    }
    return sum;
  }

  __device__ static void store(const uint4 (&stored)[kAcross], bf16* to, int lane) {
    if (lane >= kLanes) return;
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
      reinterpret_cast<uint4*>(to)[lane + a * kLanes] = stored[a];
    }
  }
};

constexpr int kWarps = 2;

// kSplit warps share a group, each with its part of the columns: 1, or kWarps where a group is too
// much for one warp's registers.
template <bool kSemanticScored, int kSemantic, int kPositional, int G, int kSplit>
__global__ __launch_bounds__(kWarps * 32) void condense_warp_kernel(const CondenseJob job) {
  static_assert(G <= 32 && (kSplit == 1 || kSplit == kWarps));
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
  const std::int64_t row = group * G * kv_heads + head;

  Semantic semantic;
  Positional positional;
  semantic.load(job.semantic + row * kSemantic + semantic_column, kv_heads * kSemantic, lane);
  positional.load(job.positional + row * kPositional + positional_column, kv_heads * kPositional,
                  lane);
  __syncwarp();  // all loads are on their way: see load_now
  {
    typename Positional::Query positional_query;
    positional_query.load(positional_summary, lane);
    if constexpr (kSemanticScored) {
      typename Semantic::Query semantic_query;
      semantic_query.load(semantic_summary, lane);
      semantic.dots(semantic_query, scores[warp][0], lane);
    }
    positional.dots(positional_query, scores[warp][1], lane);
  }
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
    Semantic::store(stored, job.out_semantic + item * kSemantic + semantic_column, lane);
    if constexpr (kSemanticScored) {
      if (job.mass == Mass::score) own = Semantic::own_dot(value, semantic_summary, lane);
    }
  }
  {
    float value[Positional::kAcross][8];
    uint4 stored[Positional::kAcross];
    positional.pool(job.positional_pool, alpha, best, lane, value, stored);
    Positional::store(stored, job.out_positional + item * kPositional + positional_column, lane);
    if (job.mass == Mass::score) own += Positional::own_dot(value, positional_summary, lane);
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
bool fast_launch(const CondenseJob& job, cudaStream_t stream) {
  constexpr int kSplit = (kSemantic + kPositional) * G > 512 * 16 ? kWarps : 1;
  constexpr int kItems = kWarps / kSplit;  // of a block
  const auto blocks = static_cast<unsigned>((job.items + kItems - 1) / kItems);
  condense_warp_kernel<kSemanticScored, kSemantic, kPositional, G, kSplit>
      <<<blocks, kWarps * 32, 0, stream>>>(job);
  return true;
}

// Groups of 8 and 32 cost nothing but compile time; 32 rows of 512 values do not fit in registers.
template <bool kSemanticScored, int kSemantic, int kPositional>
bool fast_launch_group(const CondenseJob& job, cudaStream_t stream) {
  switch (job.group) {
    case 8:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 8>(job, stream);
    case 16:
      return fast_launch<kSemanticScored, kSemantic, kPositional, 16>(job, stream);
    case 32:
      if constexpr (kSemantic < 512) {
        return fast_launch<kSemanticScored, kSemantic, kPositional, 32>(job, stream);
      }
      return false;
    default:
      return false;
  }
}

bool fast_launch_any(const CondenseJob& job, cudaStream_t stream) {
  for (const void* pointer :
       {static_cast<const void*>(job.semantic), static_cast<const void*>(job.positional),
        static_cast<const void*>(job.summary), static_cast<const void*>(job.out_semantic),
        static_cast<const void*>(job.out_positional)}) {
    if (!aligned_16(pointer)) return false;
  }
  if (job.score_heads != 1) return false;
  const int s = job.d_semantic;
  const int p = job.d_positional;
  if (job.semantic_scored) {
    if (s == 512 && p == 64) return fast_launch_group<true, 512, 64>(job, stream);
    if (s == 256 && p == 32) return fast_launch_group<true, 256, 32>(job, stream);
    return false;
  }
  if (s == 128 && p == 128) return fast_launch_group<false, 128, 128>(job, stream);
  if (s == 64 && p == 64) return fast_launch_group<false, 64, 64>(job, stream);
  return false;
}

}  // namespace

int summary_width(const AttentionShape& shape, HeadReduce reduce) {
  const std::int64_t one =
      shape.d_rope + (shape.form == Form::mla ? shape.d_latent : std::int64_t{0});
  return static_cast<int>(reduce == HeadReduce::max ? shape.heads_per_kv() * one : one);
}

void condense(const Condense& request, cudaStream_t stream) {
  if (request.count <= 0) return;
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
  if (job.items > INT32_MAX || settings.group > INT32_MAX) {
    throw Error(ErrorKind::bad_input, "condensing on the GPU: too many groups, or too large ones");
  }
  if (!fast_launch_any(job, stream)) condense_plain(job, stream);
  check(cudaGetLastError(), "condensing");
}

}  // namespace lca::cuda
