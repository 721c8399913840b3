/// Prefill on Hopper: one online softmax over window, sink and representatives.
///
/// Shapes     a tile is 64·C queries of one head (C consumer warp groups), a block 128 keys.
///            Score width 128+64, 64+32 (MLA), 128, 64 (GQA); value width 128, 64, 128, 64.
/// Moving     a producer warp group: one thread fills rings of K and V blocks by TMA: no-position
/// and RoPE parts
///            are boxes of their own tensors side by side in one stage, so the RoPE key that all
///            heads of MLA share is never copied per head. Consumers multiply with wgmma from
///            shared memory; probabilities stay in registers. While one warp group exponentiates,
///            another multiplies (ping-pong), and QKᵀ of block n is issued before PV of block n−1.
/// Memory     128+64/128, C = 2: Q 48 KiB, 2 stages × (K 48 + V 32) KiB = 208 KiB of 227.
/// Work       a persistent grid takes (head, tile) items, heaviest first, from a counter. The block
///            list of a tile is virtual: local blocks from the diagonal down to the left window
///            edge, sink blocks, representatives from the last to the first. Only coordinates and
///            masks differ; dense and window are other lists. Every row meets its own token in the
///            first block, so no row begins empty. With entry positions the tile's queries are
///            rotated in shared memory between the local blocks and the rest.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 128K: 6.8 TFLOP of visible pairs, 8.7 ms at the
///            measured 782 TFLOP/s; 2.9 GB of q, k, v, out, 0.7 ms.

#include <lca/error.h>

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "attention/cuda/prefill/prefill.h"
#include "attention/cuda/prefill/prefill_consumer.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/tensor_map.h"

namespace lca::cuda {
namespace prefilling {
namespace {

template <typename C>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = cute::cast_smem_ptr_to_uint(memory) & 1023;
  auto& shared = *reinterpret_cast<Shared<C>*>(memory + (1024 - misaligned & 1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * kConsumers;
    const bool biased = params.bias != nullptr;
    shared.query_full.init(1);
    shared.query_empty.init(kWarps);
    for (int i = 0; i < C::kStages; ++i) {
      shared.key_full[i].init(biased ? 2 : 1);
      shared.value_full[i].init(1);
      shared.key_empty[i].init(kWarps);
      shared.value_empty[i].init(kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      shared.tile_full[i].init(1);
      shared.tile_empty[i].init(kWarps + (biased ? 2 : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      load<C>(maps, shared);
    } else if (threadIdx.x == 32) {
      schedule<C>(params, shared);
    } else if (threadIdx.x / 32 == 2 && params.bias != nullptr) {
      load_bias<C>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    Consumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host --------------------------------------------------------------------------------------

[[noreturn]] void fail(const char* what) { throw Error(ErrorKind::internal, what); }

bool keys_fit(const KeyRows& keys) {
  return tensor_map_fits(keys.nope) && tensor_map_fits(keys.rope) && tensor_map_fits(keys.value);
}

/// Heads whose representatives stay in the L2 cache together.
int heads_at_once(const Prefill& problem, std::int64_t groups, int width) {
  constexpr double kResident = 24e6;
  const int shared = problem.heads / problem.kv_heads;
  const int step = problem.form == Form::gqa ? shared : 1;
  const double bytes = 2.0 * width * static_cast<double>(std::max<std::int64_t>(groups, 1024));
  const int fitting = std::max(1, static_cast<int>(kResident / bytes));
  return std::min(problem.heads, fitting * step);
}

template <typename C>
void launch_with(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                 const Queue& queue) {
  const bool gqa = problem.form == Form::gqa;
  const int kv_heads = gqa ? problem.kv_heads : problem.heads;
  Params params{};
  params.layout = layout32(problem.layout);
  params.scale_log2 = problem.scale * kLog2e;
  params.inverse_scale = 1.0f / problem.scale;
  params.bias = problem.bias;
  params.bias_log2 = problem.bias == nullptr ? problem.bias_all * kLog2e : 0;
  params.bias_heads = gqa ? problem.kv_heads : 1;
  params.counter = static_cast<int*>(workspace);
  params.out = problem.out;
  params.lse = problem.lse;
  params.rotation = problem.rotation;

  std::vector<RunWork> work;
  std::int64_t most_groups = 0;
  for (const PrefillRun& run : runs) {
    if (run.query_count == 0) continue;
    const std::int64_t groups = problem.layout.groups(run.query_first + run.query_count);
    most_groups = std::max(most_groups, groups);
    work.push_back({run.query_row, run.exact_row, run.group_row,
                    static_cast<std::int32_t>(run.query_first),
                    static_cast<std::int32_t>(run.query_count),
                    static_cast<std::int32_t>(run.exact_gone), static_cast<std::int32_t>(groups),
                    static_cast<std::int32_t>((run.query_count + kQueries - 1) / kQueries), 0});
  }
  if (work.empty()) return;
  // The longest first: what is left at the end is short.
  std::stable_sort(work.begin(), work.end(), [](const RunWork& a, const RunWork& b) {
    return a.query_first + a.query_count > b.query_first + b.query_count;
  });
  std::int64_t items = 0;
  for (RunWork& run : work) {
    run.first_item = static_cast<std::int32_t>(items);
    items += std::int64_t{run.tiles} * problem.heads;
  }
  if (items > INT32_MAX) fail("too many queries in one call; use smaller chunks");
  params.items = static_cast<int>(items);
  params.runs = static_cast<int>(work.size());
  params.heads = {problem.heads, problem.heads / kv_heads,
                  heads_at_once(problem, most_groups, C::kNope + C::kValue)};
  if (work.size() <= kInlineRuns) {
    std::copy(work.begin(), work.end(), params.inline_runs);
  } else {
    params.table = reinterpret_cast<RunWork*>(static_cast<char*>(workspace) + 256);
    run_table_write(std::span<const RunWork>(work), const_cast<RunWork*>(params.table), queue);
  }

  // GQA's key is one part: the kernel knows it as the part without position.
  const HeadRows& q = gqa ? problem.q_rope : problem.q_nope;
  const HeadRows& k = gqa ? problem.exact.rope : problem.exact.nope;
  const KeyRows& groups = most_groups > 0 ? problem.groups : problem.exact;
  Maps maps{};
  maps.q_nope = tensor_map(q, problem.heads, problem.query_rows, kQueries);
  maps.k_nope = tensor_map(k, kv_heads, problem.exact.rows, C::kKeys);
  maps.value = tensor_map(problem.exact.value, kv_heads, problem.exact.rows, C::kKeys);
  maps.group_nope = tensor_map(gqa ? groups.rope : groups.nope, kv_heads, groups.rows, C::kKeys);
  maps.group_value = tensor_map(groups.value, kv_heads, groups.rows, C::kKeys);
  if constexpr (C::kRope > 0) {
    maps.q_rope = tensor_map(problem.q_rope, problem.heads, problem.query_rows, kQueries);
    maps.k_rope = tensor_map(problem.exact.rope, 1, problem.exact.rows, C::kKeys);
    maps.group_rope = tensor_map(groups.rope, 1, groups.rows, C::kKeys);
  }

  constexpr std::size_t kBytes = sizeof(Shared<C>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(prefill_kernel<C>), kBytes);
  check(cudaMemsetAsync(params.counter, 0, sizeof(int), queue), "clearing the work counter");
  const int blocks = std::min<int>(params.items, queue.device->multiprocessors);
  prefill_kernel<C><<<blocks, kThreads, kBytes, queue.stream>>>(params, maps);
  check(cudaGetLastError(), "launching prefill");
}

template <typename C>
void launch(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
            const Queue& queue) {
  problem.rotation.steps == nullptr
      ? launch_with<C>(problem, runs, workspace, queue)
      : launch_with<typename C::WithEntry>(problem, runs, workspace, queue);
}

// One instance for each pair of widths that models have. Narrow heads leave shared memory for
// longer blocks.
using V2Lite = Config<128, 64, 128, 128, 2>;
using MiniCpm3 = Config<64, 32, 64, 192, 3>;
using Gqa128 = Config<128, 0, 128, 176, 2>;
using Gqa64 = Config<64, 0, 64, 192, 3>;

}  // namespace
}  // namespace prefilling

bool prefill_has_fast(const Prefill& problem) {
  using namespace prefilling;
  if (!tensor_map_fits(problem.q_nope) || !tensor_map_fits(problem.q_rope) ||
      !keys_fit(problem.exact) || !keys_fit(problem.groups) ||
      reinterpret_cast<std::uintptr_t>(problem.out) % 16 != 0) {
    return false;
  }
  const int nope = problem.q_nope.width, rope = problem.q_rope.width;
  const int value = problem.exact.value.width;
  if (problem.form == Form::gqa) return rope == value && (rope == 128 || rope == 64);
  return (nope == 128 && rope == 64 && value == 128) || (nope == 64 && rope == 32 && value == 64);
}

void prefill_sm90(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                  const Queue& queue) {
  using namespace prefilling;
  if (problem.form == Form::gqa) {
    problem.q_rope.width == 128 ? launch<Gqa128>(problem, runs, workspace, queue)
                                : launch<Gqa64>(problem, runs, workspace, queue);
  } else {
    problem.q_nope.width == 128 ? launch<V2Lite>(problem, runs, workspace, queue)
                                : launch<MiniCpm3>(problem, runs, workspace, queue);
  }
}

}  // namespace lca::cuda
