#pragma once
/// The new token of a decode step: its query as condensing reduces it, and its row of the cache.

#include "attention/cuda/decode/decode_tiles.cuh"

namespace lca::cuda::decoding {

/// Rows that a thread loads before it uses the first.
inline constexpr int kAtOnce = 16;

/// Threads that condense or store together: here all of a block.
template <typename R>
struct WholeBlock {
  static constexpr int kWarps = R::kWarps;
  static constexpr int kThreads = R::kThreads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ void sync() { __syncthreads(); }
};

/// The new token's query as condensing reduces it, columns 2·pair and 2·pair + 1: given for MLA,
/// the sum over the heads that share the KV head for GQA.
template <typename R>
__device__ float2 query_sum(const Args& args, int session, int kv, int pair) {
  if constexpr (R::kMla) {
    return reinterpret_cast<const float2*>(args.step.summary +
                                           static_cast<std::int64_t>(session) * R::kScore)[pair];
  }
  const int sharing = args.sharing;
  const bf16* query = args.step.queries +
                      (static_cast<std::int64_t>(session) * args.heads + kv * sharing) * R::kScore +
                      2 * pair;
  float2 sum{0.f, 0.f};
#pragma unroll 1
  for (int first = 0; first < sharing; first += kAtOnce) {
    std::uint32_t bits[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      bits[i] = 0;
      if (first + i < sharing) {
        bits[i] = *reinterpret_cast<const std::uint32_t*>(query + (first + i) * R::kScore);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float2 value = unpack_bf16(bits[i]);
      sum = {sum.x + value.x, sum.y + value.y};
    }
  }
  return sum;
}

/// The new token into its row of the ring, its summed query into the ring of summaries.
template <typename R, typename Team = WholeBlock<R>>
__device__ void token_store(const Args& args, const SessionView& view, const Place& at, int session,
                            int kv) {
  const int tid = Team::thread();
  const int kv_heads = R::kMla ? 1 : args.kv_heads;
  const std::int64_t from = static_cast<std::int64_t>(session) * kv_heads + kv;
  const std::int64_t to = static_cast<std::int64_t>(at.position_row(at.n - 1)) * kv_heads + kv;
  if (tid < R::kSemantic / 8) {
    reinterpret_cast<uint4*>(view.semantic + to * R::kSemantic)[tid] =
        reinterpret_cast<const uint4*>(args.step.semantic + from * R::kSemantic)[tid];
  } else if (tid < R::kChunks) {
    const int chunk = tid - R::kSemantic / 8;
    reinterpret_cast<uint4*>(view.positional + to * R::kPositional)[chunk] =
        reinterpret_cast<const uint4*>(args.step.positional + from * R::kPositional)[chunk];
  }
  if (args.layout.method != MethodKind::lca) return;
  const int row = (at.n - 1) % args.layout.summary_queries;
  auto* summary = reinterpret_cast<float2*>(
      view.summary + (static_cast<std::int64_t>(row) * kv_heads + kv) * R::kScore);
  for (int pair = tid; pair < R::kScore / 2; pair += Team::kThreads) {
    summary[pair] = query_sum<R>(args, session, kv, pair);
  }
}

}  // namespace lca::cuda::decoding
