// Prefill attention for every GPU since sm_80: mma.sync, ldmatrix, cp.async.
//
// Shapes. A block takes kWarps·16 queries of one head and walks over a list of blocks of 64 keys:
// the window from the diagonal down to its left edge, the sink where it is apart from the window,
// the representatives. One online softmax in base 2 runs over all of them. Each warp owns 16 rows
// of queries: their logits (16 × 64) and outputs (16 × kValue) stay in its registers. Score width
// (MLA d_n + d_r, GQA d) is padded with zeros to a multiple of 16, d_v to kValue.
//
// How data moves. Q lies in shared memory for the whole walk; there is one buffer for K and one for
// V, and each is filled while the other is used: V(i) arrives under Q·K(i)ᵀ and the softmax,
// K(i + 1) under P·V(i). So a block needs only (kWarps·16 + 64)·(width + 8)·2 + 64·(kValue + 8)·2
// bytes: 94,208 at 192 | 128, two blocks on a Hopper SM, one on an SM with 99 KiB. The 8 elements
// behind each row make row strides odd multiples of 16 bytes, so that ldmatrix has no bank
// conflicts; K's also carry the row's bias. Rows that no query of the tile sees are filled with
// zeros and never read.
//
// Operations and bytes, DeepSeek-V2-Lite at 128K (16 heads, 192 | 128, g 16, w 1024): 6.8 TFLOP, so
// 8.7 ms at 782 TFLOP/s; K, V, Q and outputs read or written once are 3.2 GB, 0.75 ms. A warp reads
// 46 KiB of shared memory for the 0.66 MFLOP of one block: at 128 bytes a clock that caps an H200
// at about 410 TFLOP/s, and is what bounds this kernel. K and V come from L2: a head's
// representatives (5.2 MB) are used by all its tiles, which therefore run one after another,
// heaviest first.

#include "attention/cuda/prefill/prefill_portable.cuh"

#include <algorithm>
#include <vector>

#include "attention/cuda/prefill/run_table.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda {
namespace {

using namespace portable;

using Logits = float[kKeys / 8][4];

// Q·Kᵀ of 16 queries and all keys of the block.
template <int kSteps, typename T>
__device__ __forceinline__ void logits_make(const T& tensors, int warp, unsigned lane,
                                            Logits& logits) {
  // Addresses for ldmatrix. Q: matrices are (rows 0–7, 8–15) × inner 0–7, then × inner 8–15. K:
  // keys 0–7 × (inner 0–7, 8–15), then keys 8–15.
  const int score_stride = tensors.score_stride;
  const std::uint32_t q_address =
      shared_address(tensors.q + (warp * 16 + lane % 16) * score_stride + lane / 16 * 8);
  const std::uint32_t k_address =
      shared_address(tensors.k + (lane % 8 + lane / 16 * 8) * score_stride + lane / 8 % 2 * 8);
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) logits[n][e] = 0;
  }
#pragma unroll(kSteps > 0 ? kSteps : 2)
  for (int step = 0; step < tensors.steps; ++step) {
    std::uint32_t a[4];
    matrix_load(a, q_address + step * 32);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t b[4];
      matrix_load(b, k_address + n * 16 * score_stride * 2 + step * 32);
      multiply(logits[2 * n], a, b[0], b[1]);
      multiply(logits[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// What a row does not see goes to −∞.
template <bool kEntry, typename T>
__device__ __forceinline__ void logits_mask(const T& tensors, const KeyBlock& block, int warp,
                                            unsigned lane, Logits& logits) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // A bit for each column: what was loaded, up to the row's own token, less what lies between
    // sink and window; then those of this lane move to constant places.
    const RowView row = tensors.view(warp * 16 + static_cast<int>(lane / 4) + 8 * r);
    std::uint64_t seen;
    if (block.groups) {
      seen = ones(row.groups - block.first);
    } else {
      seen =
          ones(min(row.position + 1, block.end) - block.first) & ~ones(block.begin - block.first);
      if constexpr (kEntry) {
        if (!block.sink) seen &= ~ones(row.window_begin - block.first);
        if (block.sink && row.window_begin == 0) seen = 0;  // the window had it
      } else {
        seen &= ~ones(row.window_begin - block.first) | ones(tensors.window().sink - block.first);
      }
    }
    seen >>= lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if ((seen >> (n * 8 + e) & 1) == 0) logits[n][2 * r + e] = -INFINITY;
      }
    }
  }
}

// out += P·V.
template <int kFragments, typename T>
__device__ __forceinline__ void values_add(const T& tensors,
                                           const std::uint32_t (&weights)[kKeys / 16][4],
                                           float (&out)[kFragments][4]) {
  // Transposed: matrices are (keys 0–7, 8–15) × columns 0–7, then × columns 8–15.
  const unsigned lane = thread_again() % 32;
  const std::uint32_t v_address =
      shared_address(tensors.v + lane % 16 * T::kValueStride + lane / 16 * 8);
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kFragments / 2; ++n) {
      std::uint32_t b[4];
      matrix_load_transposed(b, v_address + k * 16 * T::kValueStride * 2 + n * 32);
      multiply(out[2 * n], weights[k], b[0], b[1]);
      multiply(out[2 * n + 1], weights[k], b[2], b[3]);
    }
  }
}

// Scaling, softmax and the writing of outputs stay in the kernel's own text: as functions they are
// scheduled differently, and the kernel is 5 % slower.
//
// kSteps: padded score width / 16 where known, so that the loop over it unrolls, and everything can
// be read 16 bytes at a time; 0 where not. Two blocks of eight warps fit an SM with 128 registers a
// thread; <8, 128, 0>, for odd widths, would spill there.
//
// kEntry: positions are those of entries. A warp rotates its queries between the window's blocks
// and the rest.
template <int kWarps, int kValue, int kSteps, bool kEntry>
__global__ void __launch_bounds__(kWarps * 32, (kValue == 128 && kSteps == 0) ? 1 : 2)
    attend(const __grid_constant__ Job job) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Tensors<kWarps, kValue, kSteps, kEntry> tensors(job, shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int rows = tensors.tile_prepare(thread, head);
  __syncthreads();
  tensors.queries_load(thread, head, rows);
  tensors.keys_load(tensors.block(0));

  float out[kValue / 8][4];  // fragments of 8 columns
#pragma unroll
  for (int n = 0; n < kValue / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] = 0;
  }
  float maximum[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of this lane's columns only

  const int blocks =
      tensors.key_blocks().window + tensors.key_blocks().sink + tensors.key_blocks().groups;
  for (int i = 0; i < blocks; ++i) {
    copy_wait_all();
    __syncthreads();  // K(i) has arrived, and V(i − 1) has been read
    const KeyBlock block = tensors.block(i);
    tensors.values_load(block);
    if constexpr (kEntry) {
      if (i == tensors.key_blocks().window) tensors.queries_rotate();
    }

    const unsigned thread = thread_again();
    const int warp = static_cast<int>(thread / 32);
    const unsigned lane = thread % 32;

    // Whether some row of the warp sees some key of the block, and whether every row sees all.
    bool some, all;
    {
      const int end = block.first + kKeys;
      const RowView top = tensors.view(warp * 16);
      const RowView bottom = tensors.view(warp * 16 + 15);
      if (block.groups) {
        some = block.first < bottom.groups;
        all = end <= top.groups;
      } else if (kEntry && block.sink) {
        some = bottom.window_begin > 0;
        all = false;
      } else if (kEntry) {
        some = block.first <= bottom.position && end > top.window_begin;
        all = end <= top.position + 1 && block.first >= block.begin &&
              block.first >= bottom.window_begin;
      } else {
        some = block.first <= bottom.position &&
               (end > top.window_begin || block.first < tensors.window().sink);
        all = end <= top.position + 1 && block.first >= block.begin &&
              (block.first >= bottom.window_begin || end <= tensors.window().sink);
      }
      some = some && warp * 16 < rows;
    }

    std::uint32_t weights[kKeys / 16][4];  // exp of the logits, as bf16
    if (some) {
      Logits logits;
      logits_make<kSteps>(tensors, warp, lane, logits);
      // Into base 2, with the bias; then what a row does not see goes to −∞.
      if (block.groups && job.bias != nullptr) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          const bf16* const at =
              tensors.k + (n * 8 + lane % 4 * 2) * tensors.score_stride + tensors.steps * 16;
          const float bias0 = *reinterpret_cast<const float*>(at) * kLog2e;
          const float bias1 = *reinterpret_cast<const float*>(at + tensors.score_stride) * kLog2e;
          logits[n][0] = fmaf(logits[n][0], job.scale, bias0);
          logits[n][1] = fmaf(logits[n][1], job.scale, bias1);
          logits[n][2] = fmaf(logits[n][2], job.scale, bias0);
          logits[n][3] = fmaf(logits[n][3], job.scale, bias1);
        }
      } else {
        const float bias = block.groups ? job.bias_all : 0.0f;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) logits[n][e] = fmaf(logits[n][e], job.scale, bias);
        }
      }
      if (!all) logits_mask<kEntry>(tensors, block, warp, lane, logits);
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = maximum[r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          best = fmaxf(best, fmaxf(logits[n][2 * r], logits[n][2 * r + 1]));
        }
        best = quad_max(best);
        const float base = best == -INFINITY ? 0.0f : best;  // a row that has seen nothing yet
        factor[r] = exp2_fast(maximum[r] - base);
        maximum[r] = best;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            logits[n][e] = exp2_fast(logits[n][e] - base);
            sum += logits[n][e];
          }
        }
        total[r] = total[r] * factor[r] + sum;
      }
      // The maximum rarely moves after the first blocks.
      if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kValue / 8; ++n) {
          out[n][0] *= factor[0];
          out[n][1] *= factor[0];
          out[n][2] *= factor[1];
          out[n][3] *= factor[1];
        }
      }
      // Two logit fragments side by side are one operand of the second product.
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        weights[k][0] = pack_bf16(logits[2 * k][0], logits[2 * k][1]);
        weights[k][1] = pack_bf16(logits[2 * k][2], logits[2 * k][3]);
        weights[k][2] = pack_bf16(logits[2 * k + 1][0], logits[2 * k + 1][1]);
        weights[k][3] = pack_bf16(logits[2 * k + 1][2], logits[2 * k + 1][3]);
      }
    }

    copy_wait_all();
    __syncthreads();  // V(i) has arrived, and K(i) and its bias have been read
    if (i + 1 < blocks) tensors.keys_load(tensors.block(i + 1));

    if (some) {
      values_add(tensors, weights, out);
    }
  }

  // --- outputs
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int width = job.exact.value.width;
  total[0] = quad_sum(total[0]);  // all lanes take part, whether their rows are written or not
  total[1] = quad_sum(total[1]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * 16 + lane / 4 + 8 * r;
    if (row >= rows) continue;
    const float inverse = 1.0f / total[r];
    const std::int64_t at = (tensors.other_rows().query + row) * job.heads + head;
    bf16* const to = job.out + at * width;
#pragma unroll
    for (int n = 0; n < kValue / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      const float x = out[n][2 * r] * inverse;
      const float y = out[n][2 * r + 1] * inverse;
      if (job.out_pairs) {
        if (column < width) *reinterpret_cast<std::uint32_t*>(to + column) = pack_bf16(x, y);
      } else {
        if (column < width) to[column] = __float2bfloat16(x);
        if (column + 1 < width) to[column + 1] = __float2bfloat16(y);
      }
    }
    if (job.lse != nullptr && lane % 4 == 0) job.lse[at] = (maximum[r] + log2f(total[r])) * kLn2;
  }
}

// --- the host's half -----------------------------------------------------------------------------

bool aligned(const HeadRows& rows) {
  return rows.width == 0 ||
         (reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.width % 8 == 0 &&
          rows.row_stride % 8 == 0 && rows.head_stride % 8 == 0);
}

Keys keys_of(const KeyRows& rows) {
  return {rows.nope, rows.rope, rows.value,
          aligned(rows.nope) && aligned(rows.rope) && aligned(rows.value)};
}

struct Instance {
  void (*kernel)(Job);
  int warps, value;

  std::size_t shared_bytes(int steps) const {
    const int score_rows = warps * 16 + kKeys;
    return sizeof(bf16) *
           static_cast<std::size_t>(score_rows * (steps * 16 + kPad) + kKeys * (value + kPad));
  }
};

// The widest works for all widths and in 99 KiB, with half the queries in a tile.
template <bool kEntry>
Instance instance_for(int steps, int value, bool vector, std::size_t shared_most) {
  Instance found{attend<4, 256, 0, kEntry>, 4, 256};
  const Instance widest = found;
  if (value <= 64) {
    found = {attend<8, 64, 0, kEntry>, 8, 64};  // MiniCPM3 (96 | 64), small models (64 | 64)
  } else if (value <= 128) {
    found = {attend<8, 128, 0, kEntry>, 8, 128};
    if (vector && steps == 12)
      found.kernel = attend<8, 128, 12, kEntry>;                         // DeepSeek-V2 (192 | 128)
    if (vector && steps == 8) found.kernel = attend<8, 128, 8, kEntry>;  // Qwen, Llama (128 | 128)
  }
  return found.shared_bytes(steps) <= shared_most ? found : widest;
}

// The runs with the most to see last come first, so that the GPU does not end on a long one.
std::vector<TileRun> tile_runs(std::span<const PrefillRun> runs, int queries, int& tiles) {
  std::vector<TileRun> table;
  table.reserve(runs.size());
  for (const PrefillRun& run : runs) {
    if (run.query_count <= 0) continue;
    table.push_back({run.query_row, run.exact_row, run.group_row, static_cast<int>(run.query_first),
                     static_cast<int>(run.query_count), static_cast<int>(run.exact_gone), 0});
  }
  std::stable_sort(table.begin(), table.end(), [](const TileRun& a, const TileRun& b) {
    return a.query_first + a.query_count > b.query_first + b.query_count;
  });
  std::int64_t all = 0;  // fits 31 bits: `prefill` has looked
  for (TileRun& run : table) {
    run.first_tile = static_cast<int>(all);
    all += (run.query_count + queries - 1) / queries;
  }
  tiles = static_cast<int>(all);
  return table;
}

}  // namespace

void prefill_portable(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                      const Queue& queue) {
  const int value = problem.exact.value.width;
  const int steps = (problem.q_nope.width + problem.q_rope.width + 15) / 16;
  Job job{};
  job.layout = problem.layout;
  job.q_nope = problem.q_nope;
  job.q_rope = problem.q_rope;
  job.exact = keys_of(problem.exact);
  job.groups = keys_of(problem.groups);
  job.bias = problem.bias;
  job.bias_stride = problem.kv_heads;
  job.bias_all = problem.bias_all * kLog2e;
  job.scale = problem.scale * kLog2e;
  job.out = problem.out;
  job.lse = problem.lse;
  job.rotation = problem.rotation;
  job.heads = problem.heads;
  job.gqa = problem.form == Form::gqa;
  job.heads_per_kv = job.gqa ? problem.heads / problem.kv_heads : 1;
  job.q_vector = aligned(problem.q_nope) && aligned(problem.q_rope);
  job.out_pairs = value % 2 == 0 && reinterpret_cast<std::uintptr_t>(problem.out) % 4 == 0;
  job.score_steps = steps;

  const bool vector = job.q_vector && job.exact.vector && job.groups.vector;
  const Instance instance =
      problem.rotation.steps == nullptr
          ? instance_for<false>(steps, value, vector, queue.device->shared_bytes)
          : instance_for<true>(steps, value, vector, queue.device->shared_bytes);
  int tiles = 0;
  const std::vector<TileRun> table = tile_runs(runs, instance.warps * 16, tiles);
  if (tiles == 0) return;
  job.run_count = static_cast<int>(table.size());
  if (table.size() <= kInlineRuns) {
    std::copy(table.begin(), table.end(), job.runs);
  } else {
    run_table_write(std::span<const TileRun>(table), static_cast<TileRun*>(workspace), queue);
    job.table = static_cast<const TileRun*>(workspace);
  }

  const std::size_t shared = instance.shared_bytes(steps);
  queue.device->shared_allow(reinterpret_cast<const void*>(instance.kernel), shared);
  check(cudaFuncSetAttribute(instance.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "preparing a prefill");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(problem.heads));
  instance.kernel<<<grid, static_cast<unsigned>(instance.warps * 32), shared, queue.stream>>>(job);
  check(cudaGetLastError(), "launching a prefill");
}

}  // namespace lca::cuda
