/// Gradients of queries on Hopper.
///
/// Shapes     a tile of 128 queries of one head stays, blocks of `Keys` keys pass by: the forward
///            pass's virtual list (prefill_tiles.cuh), sink and representatives before the window.
/// Products   S = Q·Kᵀ and dP = dO·Vᵀ from shared memory, then dQ += dS·K with dS from registers.
///            [S(n+1), dQ(n), dP(n+1)] are issued together: exponentials of n + 1 run under the
///            latter two.
/// Positions  with entry positions the tile has its queries in both forms. What sink and
///            representatives gave is rotated back in the accumulators before the window begins.
/// Sums       over blocks in one thread, in the order of the list.
/// Memory     128+64/128, 80 keys: Q 48, far form 16, dO 32 KiB, 2 stages × (K 30 + V 20) KiB =
///            196 KiB of 227. Registers: dQ 96 + S 40 + dP 40 + dS 20 of 240.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 64K: 3.2 G pairs × 1024 FLOP = 3.3 TFLOP, 4.2 ms at
///            782 TFLOP/s.

#include "attention/cuda/backward/backward_queries.cuh"

namespace lca::cuda {
namespace {

// --- producer ------------------------------------------------------------------------------------

/// Block n of a tile: those that the far form sees come first.
template <int kKeys>
__device__ __forceinline__ Block work_block(const QueryTile& tile, int n) {
  const int far = tile.sink_blocks + tile.group_blocks;
  return tile_block<kKeys>(tile, n < far ? tile.local_blocks + n : n - far);
}

template <typename C>
__device__ __forceinline__ void queries_serve(const QueriesParams& p, QueriesShared<C>& shared) {
  int at = 0;
  shared.queue.serve(p.items, p.counter, [&](int item, QueryWork& tile) {
    while (at + 1 < p.run_count && item >= p.runs[at + 1].first_tile_item) ++at;
    const BackwardRun& doc = p.runs[at];
    const RunWork run{doc.query_row, doc.exact_row, doc.group_row,      0, doc.count, 0,
                      doc.groups,    doc.tiles,     doc.first_tile_item};
    // The sink in blocks of its own, with any kind of positions: masks are simpler.
    tile_fill<C::kKeys, true>(p.layout, p.heads, run, item, tile);
    tile.stat_row = doc.stat_row + tile.first;
  });
}

template <typename C>
__device__ __forceinline__ void queries_load(const BackwardMaps& maps, QueriesShared<C>& shared) {
  constexpr int kKeys = C::kKeys;
  RingPhase<C::kKeyStages> keys;
  RingPhase<C::kValueStages> values;
  ClearNote clear;
  for (std::uint32_t k = 0;; ++k) {
    const QueryWork& tile = shared.queue.wait(k);
    if (tile.rows == 0) return;
    const int row = static_cast<int>(tile.query_row);
    shared.query_empty.wait((k & 1) ^ 1);
    LoadBarrier& full = shared.query_full;
    full.arrive_and_expect_tx(C::kQueryBytes + C::kFarBytes);
    panels_load<kQueries, C::kNope>(maps.q_nope, full, shared.query, tile.head, row);
    panels_load<kQueries, C::kRope>(maps.q_rope, full, shared.query + kQueries * C::kNope * 2,
                                    tile.head, row);
    if constexpr (C::kEntry) {
      panels_load<kQueries, C::kRotated>(maps.far, full, shared.far, tile.head, row);
    }
    const int blocks = tile.blocks();
    for (int n = 0; n < blocks; ++n) {
      const Block block = work_block<kKeys>(tile, n);
      const bool groups = block.kind == BlockKind::groups;
      const int key_row = block_row(tile, block);
      LoadBarrier& key = shared.key_full[keys.slot];
      LoadBarrier& value = shared.value_full[values.slot];
      shared.key_empty[keys.slot].wait(keys.phase ^ 1);
      const int2 owned = block_owned<kKeys>(tile, block);
      shared.notes[keys.slot] = {static_cast<int>(block.kind), block.base,
                                 block_needs_mask<kKeys>(tile, block),
                                 clear.next(owned.x, owned.y, kKeys)};
      key.arrive_and_expect_tx(C::kKeyBytes);
      panels_load<kKeys, C::kNope>(groups ? maps.group_nope : maps.k_nope, key,
                                   shared.key[keys.slot], tile.kv, key_row);
      panels_load<kKeys, C::kRope>(groups ? maps.group_rope : maps.k_rope, key,
                                   shared.key[keys.slot] + kKeys * C::kNope * 2, 0, key_row);
      if (n == 0) {  // needed after the first keys, and free later than the queries
        shared.dout_empty.wait((k & 1) ^ 1);
        shared.dout_full.arrive_and_expect_tx(C::kDoutBytes);
        panels_load<kQueries, C::kValue>(maps.dout, shared.dout_full, shared.dout, tile.head, row);
      }
      shared.value_empty[values.slot].wait(values.phase ^ 1);
      value.arrive_and_expect_tx(C::kValueBytes);
      panels_load<kKeys, C::kValue>(groups ? maps.group_value : maps.value, value,
                                    shared.value[values.slot], tile.kv, key_row);
      keys.next();
      values.next();
    }
    shared.queue.done(k).arrive();
  }
}

/// Biases of a block of representatives beside its keys, in powers of two.
template <typename C>
__device__ __forceinline__ void queries_load_bias(const QueriesParams& p,
                                                  QueriesShared<C>& shared) {
  const int lane = threadIdx.x & 31;
  RingPhase<C::kKeyStages> ring;
  for (std::uint32_t k = 0;; ++k) {
    const QueryWork& tile = shared.queue.wait(k);
    if (tile.rows == 0) return;
    const int blocks = tile.blocks();
    for (int n = 0; n < blocks; ++n) {
      const Block block = work_block<C::kKeys>(tile, n);
      shared.key_empty[ring.slot].wait(ring.phase ^ 1);
      if (block.kind == BlockKind::groups) {
        const float* bias = p.bias + tile.group_row * p.bias_heads + tile.kv % p.bias_heads;
        for (int c = lane; c < C::kKeys; c += 32) {
          const std::int64_t at = min(block.base + c, tile.groups - 1);  // the rest is masked
          shared.bias[ring.slot][c] = __ldg(bias + at * p.bias_heads) * kLog2e;
        }
      }
      shared.key_full[ring.slot].arrive();
      ring.next();
    }
    shared.queue.done(k).arrive();
  }
}

// --- kernel --------------------------------------------------------------------------------------

template <typename C>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    queries_kernel(const __grid_constant__ QueriesParams params,
                   const __grid_constant__ BackwardMaps maps) {
  extern __shared__ unsigned char memory[];
  auto& shared = shared_place<QueriesShared<C>>(memory);
  const bool biased = params.bias != nullptr;
  if (threadIdx.x == 0) {
    shared.query_full.init(1);
    shared.query_empty.init(kConsumerWarps);
    shared.dout_full.init(1);
    shared.dout_empty.init(kConsumerWarps);
    for (int i = 0; i < C::kKeyStages; ++i) {
      shared.key_full[i].init(biased ? 33 : 1);
      shared.key_empty[i].init(kConsumerThreads);
    }
    for (int i = 0; i < C::kValueStages; ++i) {
      shared.value_full[i].init(1);
      shared.value_empty[i].init(kConsumerWarps);
    }
    shared.cleared.init(kConsumerWarps);
    shared.queue.init(kConsumerThreads + (biased ? 33 : 1));
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<C::kProducerRegisters>();
    if (threadIdx.x == 0) {
      queries_load<C>(maps, shared);
    } else if (threadIdx.x == 32) {
      queries_serve<C>(params, shared);
    } else if (threadIdx.x / 32 == 2 && biased) {
      queries_load_bias<C>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<C::kRegisters>();
    QueriesConsumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

/// Heads whose keys and values stay in the L2 cache together.
int heads_together(const Prefill& problem, std::int64_t groups, int width) {
  constexpr double kResident = 24e6;
  const int step = problem.form == Form::gqa ? problem.heads / problem.kv_heads : 1;
  const double bytes = 2.0 * width * static_cast<double>(std::max<std::int64_t>(groups, 1024));
  const int fitting = std::max(1, static_cast<int>(kResident / bytes));
  return std::min(problem.heads, fitting * step);
}

template <typename C>
void queries_launch(const PrefillBackward& problem, const BackwardPlan& plan,
                    const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  QueriesParams params{};
  static_cast<BackwardParams&>(params) = backward_params(forward, plan, space, 1);
  params.layout = layout32(forward.layout);
  params.runs = space.runs;
  params.run_count = static_cast<int>(plan.runs.size());
  params.items = static_cast<int>(plan.tile_items);
  params.heads = {forward.heads, forward.heads / key_heads(forward),
                  heads_together(forward, plan.runs.front().groups, C::kNope + C::kValue)};
  params.rotation = forward.rotation;
  params.q_nope = problem.q_nope;
  params.q_rope = problem.q_rope;
  backward_launch<QueriesShared<C>>(
      queries_kernel<C>, params, backward_maps(problem, plan, space, kQueries, C::kKeys),
      params.items, problem, queue, "launching the gradients of queries");
}

// Entry positions take shared memory for the second form: MLA's blocks are shorter there.
template <bool Entry>
using QueriesMla = QueriesConfig<128, 64, 128, Entry ? 64 : 80, Entry ? 3 : 2, !Entry, Entry>;
template <bool Entry>
using QueriesGqa128 = QueriesConfig<128, 0, 128, 96, 2, false, Entry>;
template <bool Entry>
using QueriesGqa64 = QueriesConfig<64, 0, 64, 128, 3, false, Entry>;

template <bool Entry>
void queries_launch_form(const PrefillBackward& problem, const BackwardPlan& plan,
                         const BackwardSpace& space, const Queue& queue) {
  if (problem.forward.form == Form::mla) {
    queries_launch<QueriesMla<Entry>>(problem, plan, space, queue);
  } else if (problem.forward.q_rope.width == 128) {
    queries_launch<QueriesGqa128<Entry>>(problem, plan, space, queue);
  } else {
    queries_launch<QueriesGqa64<Entry>>(problem, plan, space, queue);
  }
}

}  // namespace

void backward_queries_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                           const BackwardSpace& space, const Queue& queue) {
  problem.forward.rotation.steps == nullptr
      ? queries_launch_form<false>(problem, plan, space, queue)
      : queries_launch_form<true>(problem, plan, space, queue);
}

}  // namespace lca::cuda
