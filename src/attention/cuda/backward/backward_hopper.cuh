#pragma once
/// What the two Hopper kernels of the backward pass share.

#include "attention/cuda/backward/backward_plan.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/tensor_map.h"

namespace lca::cuda {

inline constexpr int kBackwardConsumers = 2;  ///< warp groups that multiply
inline constexpr int kBackwardThreads = 128 * (kBackwardConsumers + 1);
inline constexpr int kConsumerThreads = 128 * kBackwardConsumers;
inline constexpr int kConsumerWarps = 4 * kBackwardConsumers;
/// What the producer gives up is what the consumers take: 168 registers each at the start. With
/// more in all the last warp group would wait for ever.
constexpr int producer_registers(int consumer) {
  return 168 * (kBackwardConsumers + 1) - kBackwardConsumers * consumer;
}

// --- who waits for whom --------------------------------------------------------------------------
// Everything that one thread writes to shared memory and another reads is ordered by an mbarrier.
// What lanes read by themselves every lane gives back with an arrival of its own. After __syncwarp
// one lane could speak for all, but racecheck takes an arrival for its own thread's alone and
// reports a hazard with everything the other lanes read; the time is the same.

/// One lane arrives for its warp where products alone are concerned: they have read what is given
/// back, or read next what lanes wrote.
__device__ __forceinline__ void warp_arrive(Barrier& barrier) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) barrier.arrive();
}

/// Position in a ring: slot and phase.
template <int Slots>
struct RingPhase {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// Items of work in shared memory: one is worked on, the next one lies ready. An item without rows
/// ends the work.
template <typename Item>
struct ItemQueue {
  Item items[2];
  Barrier full[2], empty[2];

  /// `readers` arrivals give an item back.
  __device__ __forceinline__ void init(int readers) {
    for (int i = 0; i < 2; ++i) {
      full[i].init(1);
      empty[i].init(readers);
    }
  }

  /// Called by one thread: the block's own item first, then what `counter` hands out.
  template <typename Fill>
  __device__ __forceinline__ void serve(int count, int* counter, Fill fill) {
    int index = blockIdx.x;
    for (std::uint32_t k = 0;; ++k) {
      const bool real = index < count;
      const int next = real ? gridDim.x + atomicAdd(counter, 1) : index;
      Item& item = items[k & 1];
      empty[k & 1].wait((k >> 1 & 1) ^ 1);
      if (real) {
        fill(index, item);
      } else {
        item.rows = 0;
      }
      full[k & 1].arrive();
      if (!real) return;
      index = next;
    }
  }

  /// Waits for item k, which its readers give back with an arrival at `done(k)`.
  __device__ __forceinline__ const Item& wait(std::uint32_t k) {
    full[k & 1].wait(k >> 1 & 1);
    return items[k & 1];
  }
  __device__ __forceinline__ Barrier& done(std::uint32_t k) { return empty[k & 1]; }
};

/// Rows of a stage that are not the document's, as the producer tells the consumers: even a
/// probability of zero does not cancel a NaN. All consumers clear them together and meet before
/// anything multiplies. Meetings are rare, so the producer counts their phases.
class ClearNote {
 public:
  static constexpr std::int32_t kNone = -1;

  /// Of `rows` rows those in [begin, end) stay.
  __device__ __forceinline__ std::int32_t next(int begin, int end, int rows) {
    if (begin == 0 && end == rows) return kNone;
    const std::int32_t note = begin | end << 8 | phase_ << 16;
    phase_ ^= 1;
    return note;
  }
  __device__ __forceinline__ static int begin(std::int32_t note) { return note & 0xff; }
  __device__ __forceinline__ static int end(std::int32_t note) { return note >> 8 & 0xff; }

  /// Consumers come here after their writes, which wgmma will read.
  __device__ __forceinline__ static void meet(std::int32_t note, Barrier& cleared) {
    async_proxy_fence();
    warp_arrive(cleared);
    cleared.wait(note >> 16);
  }

 private:
  std::int32_t phase_ = 0;
};

/// Clears rows outside the note's of panels of 64 columns; all consumers call it. Swizzling moves
/// bytes within a row only.
template <int Rows, int Columns>
__device__ __forceinline__ void rows_clear(unsigned char* panels, std::int32_t note) {
  static_assert(Rows < 256);
  const int begin = ClearNote::begin(note), end = ClearNote::end(note);
  for (int i = threadIdx.x - 128; i < Rows * Columns / 8; i += kConsumerThreads) {
    const int row = i / 8 % Rows;
    if (row >= begin && row < end) continue;
    reinterpret_cast<uint4*>(panels)[i] = uint4{0, 0, 0, 0};
  }
}

// --- loads, products and results -----------------------------------------------------------------

/// Loads `Columns` columns of `Rows` rows of one head in panels of 64 columns.
template <int Rows, int Columns>
__device__ __forceinline__ void panels_load(const CUtensorMap& map, LoadBarrier& full,
                                            unsigned char* to, int head, int row) {
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
  for (int c = 0; c < Columns; c += 64) {
    cute::SM90_TMA_LOAD_3D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                                 to + c * Rows * 2, c, head, row);
  }
}

/// S [64×N] = A·Bᵀ over `Columns` columns: rows of A from `a` on, panels `ARows` rows high.
template <int N, int Columns, int ARows, int BRows>
__device__ __forceinline__ void product_panels(float (&s)[N / 2], std::uint32_t a, std::uint32_t b,
                                               bool add) {
  // A stays for many products: its descriptors are made anew each time, a loop would keep them in
  // registers that are needed elsewhere.
  asm volatile("" : "+r"(a));
#pragma unroll
  for (int c = 0; c < Columns; c += 16) {
    const int panel = c / 64 * 128, inside = (c & 63) * 2;
    product_shared<N>(s, descriptor<128>(a, panel * ARows + inside),
                      descriptor<128>(b, panel * BRows + inside), c > 0 || add);
  }
}

/// D [64×N] (+)= A [64×Inner]·B [Inner×N]: A in registers, B in panels of 64 columns.
template <int N, int Inner>
__device__ __forceinline__ void product_rows(float (&d)[N / 2], const std::uint32_t* a,
                                             std::uint32_t b, bool add) {
#pragma unroll
  for (int k = 0; k < Inner; k += 16) {
    product_registers<N>(d, a + k / 4, descriptor<128>(b, k * 128, Inner * 128), k > 0 || add);
  }
}

/// Writes `Columns` columns of accumulators from column `From` on, times `scale`, as bf16: one row
/// in the first (r = 0) or second half of the thread's. All lanes call it.
template <int From, int Columns, int N>
__device__ __forceinline__ void row_write(const float (&d)[N], int r, float scale, bool real,
                                          bf16* to, int quad) {
#pragma unroll
  for (int i = From / 2; i < (From + Columns) / 2; i += 16) {  // four chunks of 8 columns
    std::uint32_t chunk[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      chunk[c] = pack_bf16(d[i + 4 * c + 2 * r] * scale, d[i + 4 * c + 2 * r + 1] * scale);
    }
    quad_transpose(chunk, quad);
    if (real) {
      *reinterpret_cast<uint4*>(to + 2 * i - From + 8 * quad) =
          uint4{chunk[0], chunk[1], chunk[2], chunk[3]};
    }
  }
}

}  // namespace lca::cuda
