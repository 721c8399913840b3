#pragma once
/// What all decode kernels share: their arguments, where a session stands, the list of entries that
/// a step reads, and merging of partial softmaxes.

#include <cmath>
#include <cstddef>

#include "attention/cuda/cache/quantised.cuh"
#include "attention/cuda/condense/condense_job.h"
#include "attention/cuda/decode/decode.h"
#include "attention/cuda/decode/decode_place.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda::decoding {

/// The workspace begins with this many bytes of counters, so that plans of different batches find
/// the same counters in the same place.
inline constexpr std::size_t kCounterBytes = std::size_t{1} << 20;
inline constexpr int kMostClusterBlocks = 8;

struct Args {
  Decode step;
  Layout32 layout;
  float bias_all = 0;  ///< on every representative's logit (natural log)
  float reduce = 1;    ///< ρ of the head reduction
  int chunk = 0;
  int blocks = 0;
  int cluster = 1;
  int jobs = 1;
  int stages = 2;
  int heads = 0;
  int kv_heads = 1;
  int sharing = 1;                ///< query heads of a KV head
  int* session_counts = nullptr;  ///< [batch]: blocks that know the length
  int* job_counts = nullptr;      ///< [batch][jobs][cluster]: partials that are there
  float* partials = nullptr;      ///< [batch][jobs][blocks / cluster][cluster][partial]
};

/// Which kernel a shape gets, and what a plan must know of it.
struct Shape {
  bool fast = false;
  int jobs = 1;  ///< per session
  int rows = 1;  ///< query rows of a job's partial result
};
Shape kernel_shape(const Device& device, const AttentionShape& shape, const Settings& settings);

void launch_mla(const Args& args, const Queue& queue);
/// Hopper's kernels for wide latents: whether they take this, in chunks of whole pages.
bool stream_fits(const Device& device, const AttentionShape& shape);
void launch_stream(Args args, const Queue& queue);
void launch_stream_quantised(Args args, const Queue& queue);
/// Exact tokens of a tile where representatives are quantised: a stage holds as many.
inline constexpr int kExactTile = kTile / 2;
void launch_gqa(const Args& args, const Queue& queue);
/// Blocks of these kernels that run at once in clusters of this size.
int slots_mla(const Device& device, const AttentionShape& shape, int cluster);
int slots_gqa(const Device& device, const AttentionShape& shape, int cluster);
void launch_generic(const Args& args, const Queue& queue);

/// Entries of a block: the plan's chunk, or more where the session has outgrown the plan.
__device__ inline int chunk_of(const Args& args, int entries) {
  return max(args.chunk, (entries + args.blocks - 1) / args.blocks);
}

__device__ inline Place place_of(const Args& args, int length, const int& ring, int block) {
  Place at(args.layout, length, ring);
  const int chunk = chunk_of(args, at.entries);
  at.first = min(block * chunk, at.entries);
  at.last = min(at.first + chunk, at.entries);
  return at;
}

__device__ inline Place place_of(const Args& args, const SessionView& view, int block) {
  // Read as volatile: the last block of the session changes it in this launch.
  return place_of(args, *static_cast<const volatile std::int32_t*>(&view.length), view.ring, block);
}

/// What a tensor-core step begins with, read once by every thread.
struct SessionStart {
  int length;
  int ring;
  const std::int32_t* pages;

  /// Loads that the L1 cache answers for all warps of a block. Volatile ones would all go to the
  /// same place of the L2 cache, thousands at once with one session: 1.1 µs more.
  __device__ __forceinline__ explicit SessionStart(const SessionView& view) {
    static_assert(offsetof(SessionView, length) % 16 == 0 &&
                  offsetof(SessionView, pages) % 16 == 0);
    static_assert(offsetof(SessionView, ring) == offsetof(SessionView, length) + 4);
    const uint4 numbers = load_after_wait(reinterpret_cast<const uint4*>(&view.length));
    const uint4 pointers = load_after_wait(reinterpret_cast<const uint4*>(&view.pages));
    length = static_cast<int>(numbers.x);
    ring = static_cast<int>(numbers.y);
    pages = reinterpret_cast<const std::int32_t*>(std::uint64_t{pointers.x} |
                                                  std::uint64_t{pointers.y} << 32);
  }
};

/// Blocks of a job that have entries.
__device__ inline int active_blocks(const Args& args, const Place& at) {
  const int chunk = chunk_of(args, at.entries);
  return (at.entries + chunk - 1) / chunk;
}

/// With entry positions (mechanism §10): by how much the new token's entry position differs from
/// its token position, and the end of the entries that are seen from there: representatives and
/// sink, none where the two are the same.
struct FarEntries {
  int difference;
  int end;

  __device__ __forceinline__ explicit FarEntries(const Place& at)
      : difference(at.groups + at.sink_size - at.window_begin),
        end(difference == 0 ? 0 : at.groups + at.sink_size) {}
};

/// Counts one more and gives how many came before. Who counts last sees what all that came before
/// it, and threads that had a barrier with them since, had written.
__device__ inline int arrival_count(int* counter) {
#if __CUDA_ARCH__ >= 700
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;\n"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#else
  return 0;
#endif
}

/// Counts one more block of the session that has read the length, and gives how many came before.
/// All threads of the block must have used it, with a barrier since; nothing else is ordered by
/// this, so that nobody waits for it but who uses the number.
__device__ inline int length_count(const Args& args, int session) {
#if __CUDA_ARCH__ >= 700
  int before;
  asm volatile("atom.add.relaxed.gpu.global.s32 %0, [%1], 1;\n"
               : "=r"(before)
               : "l"(args.session_counts + session)
               : "memory");
  return before;
#else
  return 0;
#endif
}

/// The last block to be counted adds the new token to the session's length.
__device__ inline void length_advance(const Args& args, int session, int n, int before) {
  if (before != args.blocks * args.jobs - 1) return;
  args.session_counts[session] = 0;
  if (n > 0) args.step.sessions[session].length = n;  // length −1: a free slot, which stays free
}
__device__ inline void length_advance(const Args& args, int session, int n) {
  length_advance(args, session, n, length_count(args, session));
}

// --- partial softmaxes -------------------------------------------------------------------------

/// A softmax over some entries: the largest logit (base 2), the sum of weights relative to it, and
/// the weighted sum of values (of some columns).
struct Partial {
  float top;
  float sum;
  float4 value;
};

/// The partials load(0) … load(count − 1) as one. Eight are loaded at a time, because each load is
/// a round trip. A partial without entries has top −∞ and zeros.
template <typename Load>
__device__ Partial partials_merge(int count, Load load) {
  Partial all{-INFINITY, 0.f, {0.f, 0.f, 0.f, 0.f}};
  for (int begin = 0; begin < count; begin += 8) {
    Partial part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      part[i] = {-INFINITY, 0.f, {0.f, 0.f, 0.f, 0.f}};
      if (begin + i < count) part[i] = load(begin + i);
    }
    float top = all.top;
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, part[i].top);
    const float keep = all.top == -INFINITY ? 0.f : exp2f(all.top - top);
    all.top = top;
    all.sum *= keep;
    all.value.x *= keep;
    all.value.y *= keep;
    all.value.z *= keep;
    all.value.w *= keep;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float weight = part[i].top == -INFINITY ? 0.f : exp2f(part[i].top - top);
      all.sum += weight * part[i].sum;
      all.value.x += weight * part[i].value.x;
      all.value.y += weight * part[i].value.y;
      all.value.z += weight * part[i].value.z;
      all.value.w += weight * part[i].value.w;
    }
  }
  return all;
}

/// Softmax of `count` scores by one warp: the largest, its lowest index, Σ exp(s − largest). Scores
/// are numbers (score_bounded), so that all lanes agree on them.
struct GroupWeights {
  float top;
  int best;
  float sum;
};
__device__ inline GroupWeights group_weights(const float* scores, int count) {
  GroupWeights w{-INFINITY, 0x7fffffff, 0.f};
  for (int i = threadIdx.x & 31; i < count; i += 32) {
    if (scores[i] > w.top || w.best == 0x7fffffff) {
      w.top = scores[i];
      w.best = i;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const float top = __shfl_xor_sync(~0u, w.top, step);
    const int best = __shfl_xor_sync(~0u, w.best, step);
    if (top > w.top || (top == w.top && best < w.best)) {
      w.top = top;
      w.best = best;
    }
  }
  for (int i = threadIdx.x & 31; i < count; i += 32) w.sum += expf(scores[i] - w.top);
  w.sum = warp_sum(w.sum);
  return w;
}

}  // namespace lca::cuda::decoding
