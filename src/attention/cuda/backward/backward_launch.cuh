#pragma once
/// The two Hopper kernels of the backward pass seen from the host: what both are told, and how they
/// are started.

#include <lca/error.h>

#include <algorithm>

#include "attention/cuda/backward/backward_hopper.cuh"

namespace lca::cuda {

struct BackwardParams {
  int* counter;
  const float *lse, *delta;
  std::int64_t stat_rows;
  float scale, scale_log2;
  const float* bias;
  int bias_heads;
  float bias_all;  // in powers of two; where every representative has its own: 0
};

inline BackwardParams backward_params(const Prefill& forward, const BackwardPlan& plan,
                                      const BackwardSpace& space, int counter) {
  return {space.counters + counter,
          space.lse,
          space.delta,
          plan.stat_rows,
          forward.scale,
          forward.scale * kLog2e,
          forward.bias,
          forward.form == Form::gqa ? forward.kv_heads : 1,
          forward.bias == nullptr ? forward.bias_all * kLog2e : 0};
}

/// GQA's key is one part: the kernels know it as the part without position. `far` are the queries
/// as sink and representatives see them.
struct BackwardMaps {
  CUtensorMap q_nope, q_rope, far, dout;
  CUtensorMap k_nope, k_rope, value, group_nope, group_rope, group_value;
};

/// Boxes are `queries` rows of queries and `keys` rows of keys.
inline BackwardMaps backward_maps(const PrefillBackward& problem, const BackwardPlan& plan,
                                  const BackwardSpace& space, int queries, int keys) {
  const Prefill& forward = problem.forward;
  const bool gqa = forward.form == Form::gqa;
  const int heads = forward.heads, kv_heads = key_heads(forward);
  const KeyRows& exact = forward.exact;
  const KeyRows& groups = plan.groups > 0 ? forward.groups : forward.exact;
  const HeadRows far =
      space.far != nullptr ? head_rows(space.far, heads, forward.q_rope.width) : forward.q_rope;
  const auto query_map = [&](const HeadRows& rows) {
    return tensor_map(rows, heads, forward.query_rows, queries);
  };
  BackwardMaps maps{};
  maps.q_nope = query_map(gqa ? forward.q_rope : forward.q_nope);
  maps.far = query_map(far);
  maps.dout = query_map(problem.dout);
  maps.k_nope = tensor_map(gqa ? exact.rope : exact.nope, kv_heads, exact.rows, keys);
  maps.value = tensor_map(exact.value, kv_heads, exact.rows, keys);
  maps.group_nope = tensor_map(gqa ? groups.rope : groups.nope, kv_heads, groups.rows, keys);
  maps.group_value = tensor_map(groups.value, kv_heads, groups.rows, keys);
  if (!gqa) {
    maps.q_rope = query_map(forward.q_rope);
    maps.k_rope = tensor_map(exact.rope, 1, exact.rows, keys);
    maps.group_rope = tensor_map(groups.rope, 1, groups.rows, keys);
  }
  return maps;
}

/// The kernel's shared memory: wgmma and TMA want panels on 1 KiB.
template <typename Shared>
__device__ __forceinline__ Shared& shared_place(unsigned char* memory) {
  const std::uint32_t misaligned = cute::cast_smem_ptr_to_uint(memory) & 1023;
  return *reinterpret_cast<Shared*>(memory + (1024 - misaligned & 1023));
}

/// One block a multiprocessor, or `problem.blocks`: blocks take items until there are none.
template <typename Shared, typename Params>
void backward_launch(void (*kernel)(Params, BackwardMaps), const Params& params,
                     const BackwardMaps& maps, int items, const PrefillBackward& problem,
                     const Queue& queue, const char* doing) {
  constexpr std::size_t kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  const int blocks =
      std::min(items, problem.blocks > 0 ? problem.blocks : queue.device->multiprocessors);
  kernel<<<blocks, kBackwardThreads, kBytes, queue.stream>>>(params, maps);
  check(cudaGetLastError(), doing);
}

}  // namespace lca::cuda
