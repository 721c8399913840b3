/// Gradients of keys, values and biases on Hopper.
///
/// Shapes     a block of 128 keys of one KV head stays, tiles of `Tile` queries of the heads it
///            serves pass by. Score width 128+64 (MLA), 128, 64 (GQA); value width 128, 128, 64.
/// Products   transposed, keys as rows: Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ from shared memory, then
///            dV += Pᵀ·dO and dK += dSᵀ·Q with Pᵀ and dSᵀ from registers. A key's row never leaves
///            its thread group: nothing is exchanged, and gradients are written once.
/// Order      of a tile: [Sᵀ(n+1), dK(n)] are issued together, exponentials of n + 1 run under
///            dK(n); then [dPᵀ, dV], and dSᵀ is made under dV. Sᵀ and dPᵀ never live at the same
///            time: P waits as bf16.
/// Sums       over heads and tiles in one thread, heads ascending, tiles of a head descending. A
///            column of keys that is too long for one item is cut into slices of that sequence,
///            whose sums in float32 are added slice 0 first (backward_prepare.cu).
/// Memory     128+64/128: K 48, V 32 KiB, 3 stages × (Q 24 + dO 16.5 KiB) = 202 KiB of 227.
///            Registers: dK 96 + dV 64 + Sᵀ or dPᵀ 32 + P 16 + dS 16 of 240.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 64K: 3.2 G pairs × 1280 FLOP = 4.1 TFLOP, 5.2 ms at
///            782 TFLOP/s.

#include "attention/cuda/backward/backward_keys.cuh"

namespace lca::cuda {
namespace {

// --- producer ------------------------------------------------------------------------------------

template <typename C>
__device__ __forceinline__ void keys_load(const KeysParams& p, const BackwardMaps& maps,
                                          KeysShared<C>& shared) {
  constexpr int kTile = C::kTile;
  RingPhase<C::kStages> ring;
  ClearNote clear;
  for (std::uint32_t k = 0;; ++k) {
    const KeyItem& item = shared.queue.wait(k);
    if (item.rows == 0) return;
    const bool groups = item.kind == KeyKind::groups;
    const bool far = item.kind != KeyKind::local;
    shared.keys_empty.wait((k & 1) ^ 1);
    shared.keys_full.arrive_and_expect_tx(C::kKeyBytes);
    panels_load<kKeyBlock, C::kNope>(groups ? maps.group_nope : maps.k_nope, shared.keys_full,
                                     shared.key, item.kv, item.key_row);
    if constexpr (C::kRope > 0) {
      panels_load<kKeyBlock, C::kRope>(groups ? maps.group_rope : maps.k_rope, shared.keys_full,
                                       shared.key + kKeyBlock * C::kNope * 2, 0, item.key_row);
    }
    // Values are needed after the first tile, and free later than the keys.
    const auto values_load = [&] {
      shared.values_empty.wait((k & 1) ^ 1);
      shared.values_full.arrive_and_expect_tx(C::kValueBytes);
      panels_load<kKeyBlock, C::kValue>(groups ? maps.group_value : maps.value, shared.values_full,
                                        shared.value, item.kv, item.key_row);
    };
    if (item.step_begin == item.step_end) values_load();
    const CUtensorMap& nope = C::kRope == 0 && far ? maps.far : maps.q_nope;
    const CUtensorMap& rope = far ? maps.far : maps.q_rope;
    int h = item.head + item.step_begin / item.tile_count;
    int t = item.tile_first + item.tile_count - 1 - item.step_begin % item.tile_count;
    for (int n = item.step_begin; n < item.step_end; ++n) {
      const std::int64_t stats = h * p.stat_rows + item.stat_row + t * kTile;
      const int row = item.query_row + t * kTile;
      LoadBarrier& full = shared.tile_full[ring.slot];
      shared.tile_empty[ring.slot].wait(ring.phase ^ 1);
      const int position = t * kTile;
      shared.notes[ring.slot] = {position,
                                 position < item.all_begin || position + kTile > item.all_end,
                                 clear.next(0, min(kTile, item.count - position), kTile)};
      full.arrive_and_expect_tx(C::kQueryBytes + C::kDoutBytes + 2 * kTile * 4);
      panels_load<kTile, C::kNope>(nope, full, shared.query[ring.slot], h, row);
      panels_load<kTile, C::kRope>(rope, full, shared.query[ring.slot] + kTile * C::kNope * 2, h,
                                   row);
      cute::SM90_BULK_COPY_G2S::copy(p.lse + stats, reinterpret_cast<std::uint64_t*>(&full),
                                     shared.lse[ring.slot], kTile * 4);
      panels_load<kTile, C::kValue>(maps.dout, full, shared.dout[ring.slot], h, row);
      cute::SM90_BULK_COPY_G2S::copy(p.delta + stats, reinterpret_cast<std::uint64_t*>(&full),
                                     shared.delta[ring.slot], kTile * 4);
      ring.next();
      if (n == item.step_begin) values_load();
      if (--t < item.tile_first) {
        t += item.tile_count;
        ++h;
      }
    }
    shared.queue.done(k).arrive();
  }
}

// --- kernel --------------------------------------------------------------------------------------

template <typename C>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    keys_kernel(const __grid_constant__ KeysParams params,
                const __grid_constant__ BackwardMaps maps) {
  extern __shared__ unsigned char memory[];
  auto& shared = shared_place<KeysShared<C>>(memory);
  if (threadIdx.x == 0) {
    shared.keys_full.init(1);
    shared.keys_empty.init(kConsumerWarps);
    shared.values_full.init(1);
    shared.values_empty.init(kConsumerWarps);
    for (int i = 0; i < C::kStages; ++i) {
      shared.tile_full[i].init(1);
      shared.tile_empty[i].init(kConsumerThreads);
    }
    shared.cleared.init(kConsumerWarps);
    shared.queue.init(kConsumerThreads + 1);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<C::kProducerRegisters>();
    if (threadIdx.x == 0) {
      keys_load<C>(params, maps, shared);
    } else if (threadIdx.x == 32) {
      int run = 0;
      shared.queue.serve(params.items.items, params.counter, [&](int index, KeyItem& item) {
        item_fill<C::kTile>(params.items, index, run, item);
      });
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<C::kRegisters>();
    KeysConsumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

template <typename C>
void keys_launch(const PrefillBackward& problem, const BackwardPlan& plan,
                 const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  const int kv_heads = key_heads(forward);
  KeysParams params{};
  static_cast<BackwardParams&>(params) = backward_params(forward, plan, space, 0);
  params.items = {layout32(forward.layout),
                  space.runs,
                  static_cast<int>(plan.runs.size()),
                  static_cast<int>(plan.far_items),
                  static_cast<int>(plan.far_items + plan.local_items),
                  kv_heads,
                  forward.heads / kv_heads,
                  space.far_slices,
                  space.local_slices,
                  C::kScore + C::kValue + kSlicePad};
  params.exact = problem.exact;
  params.groups = problem.groups;
  params.rope_partials = space.rope_partials;
  params.bias_partials = space.bias_partials;
  params.keys = plan.keys;
  params.dbias = problem.dbias;
  backward_launch<KeysShared<C>>(
      keys_kernel<C>, params, backward_maps(problem, plan, space, C::kTile, kKeyBlock),
      params.items.items, problem, queue, "launching the gradients of keys");
}

using KeysMla = KeysConfig<128, 64, 128, 64, 3, true>;
using KeysGqa128 = KeysConfig<128, 0, 128, 96, 3, true>;
using KeysGqa64 = KeysConfig<64, 0, 64, 128, 4, false>;

}  // namespace

void backward_keys_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                        const BackwardSpace& space, const Queue& queue) {
  if (problem.forward.form == Form::mla) {
    keys_launch<KeysMla>(problem, plan, space, queue);
  } else if (problem.forward.q_rope.width == 128) {
    keys_launch<KeysGqa128>(problem, plan, space, queue);
  } else {
    keys_launch<KeysGqa64>(problem, plan, space, queue);
  }
}

}  // namespace lca::cuda
