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

#include "attention/cuda/prefill.h"

#include <algorithm>
#include <vector>

#include "attention/cuda/warp_ops.cuh"

namespace lca::cuda {
namespace {

constexpr int kKeys = 64;        // keys of a block
constexpr int kPad = 8;          // elements behind each row in shared memory
constexpr int kInlineRuns = 16;  // runs that travel with the launch; more go through workspace
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// A run with the number of its first tile; positions of a document fit 31 bits.
struct TileRun {
  std::int64_t query_row, exact_row, group_row;
  int query_first, query_count, exact_gone, first_tile;
};
static_assert(sizeof(TileRun) <= 64, "prefill_workspace_bytes gives 64 bytes for each run");

struct Keys {
  HeadRows nope, rope, value;
  bool vector;  // all of it can be read 16 bytes at a time
};

struct Job {
  Layout layout;
  HeadRows q_nope, q_rope;
  Keys exact, groups;
  const float* bias;
  int bias_stride;
  float bias_all;  // in base 2, as the logits
  float scale;     // in base 2
  bf16* out;
  float* lse;
  int heads;
  int heads_per_kv;  // GQA; MLA: 1, every head has keys of its own
  bool gqa;
  bool q_vector;
  bool out_pairs;   // outputs can be written two at a time
  int score_steps;  // padded score width / 16
  const TileRun* table;
  int run_count;
  TileRun runs[kInlineRuns];
};

// The lowest `count` bits, of 64 at most.
__device__ __forceinline__ std::uint64_t ones(int count) {
  if (count <= 0) return 0;
  return ~std::uint64_t{0} >> (64 - min(count, 64));
}

// --- loading -------------------------------------------------------------------------------------

__device__ __forceinline__ const bf16* row_of(const HeadRows& rows, std::int64_t row, int head) {
  return rows.data + row * rows.row_stride + head * rows.head_stride;
}

// This thread's share, `part` of `parts`, of one row of `width` values.
__device__ __forceinline__ void row_copy(bf16* to, const bf16* from, int width, bool vector,
                                         bool valid, int part, int parts) {
  if (vector) {
#pragma unroll 1
    for (int i = 8 * part; i < width; i += 8 * parts)
      copy_chunk(shared_address(to + i), from + i, valid);
  } else {
#pragma unroll 1
    for (int i = part; i < width; i += parts) to[i] = valid ? from[i] : __float2bfloat16(0.0f);
  }
}

// A row of scores' operands: the part without position, then the rotated part.
__device__ __forceinline__ void score_row_copy(bf16* to, const HeadRows& nope, const HeadRows& rope,
                                               std::int64_t row, int head, bool vector, bool valid,
                                               int part, int parts) {
  if (!valid) row = 0;
  row_copy(to, row_of(nope, row, head), nope.width, vector, valid, part, parts);
  row_copy(to + nope.width, row_of(rope, row, head), rope.width, vector, valid, part, parts);
}

// Zeros in columns [from, to) of `rows` rows.
__device__ void columns_clear(bf16* data, int rows, int stride, int from, int to, int thread,
                              int threads) {
  const int columns = to - from;
  for (int i = thread; i < rows * columns; i += threads) {
    data[i / columns * stride + from + i % columns] = __float2bfloat16(0.0f);
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// What all threads of a block know, and what each row of queries sees. It lies in shared memory,
// in the padding behind V's first rows and behind Q's rows, and is read again for every block of
// keys: outputs and logits leave no registers for it.
struct alignas(16) ExactRows {
  std::int64_t row;
  int gone;
  int kv_head;
};
struct alignas(16) OtherRows {
  std::int64_t group;
  std::int64_t query;
};
struct alignas(16) WindowKeys {
  int begin, end;  // positions
  int sink_end;    // of the sink's own blocks: 0 where sink and window are one
  int sink;        // positions below are seen by all who come later
};
struct alignas(16) KeyBlocks {
  int window, sink, groups;  // how many
  int group_end;
};
struct alignas(16) RowView {
  int position, window_begin, groups, unused;
};
static_assert(sizeof(RowView) == kPad * sizeof(bf16));

// 64 consecutive keys, of which [begin, end) are loaded: positions, or numbers of representatives.
struct KeyBlock {
  int first, begin, end;
  bool groups;
};

__device__ __forceinline__ KeyBlock key_block(const WindowKeys& keys, const KeyBlocks& blocks,
                                              int i) {
  if (i < blocks.window) {  // from the diagonal down: most rows see something at once
    return {keys.end - kKeys * (i + 1), keys.begin, keys.end, false};
  }
  i -= blocks.window;
  if (i < blocks.sink) return {kKeys * i, 0, keys.sink_end, false};
  return {kKeys * (i - blocks.sink), 0, blocks.group_end, true};
}

__device__ __forceinline__ int blocks_of(int keys) { return (keys + kKeys - 1) / kKeys; }

// The keys of queries first … last. Where the first query has dropped nothing, it sees all tokens
// before it: sink and window are one.
__device__ WindowKeys window_keys(const Layout& layout, int first, int last) {
  WindowKeys keys{};
  keys.end = last + 1;
  keys.sink = static_cast<int>(layout.sink < keys.end ? layout.sink : keys.end);
  if (layout.dropped(first + 1) > 0) {
    const Visible visible = layout.visible(first);
    keys.begin = static_cast<int>(visible.window.begin);
    keys.sink_end = static_cast<int>(visible.sink.end);
  }
  return keys;
}

__device__ RowView row_view(const Layout& layout, int position) {
  const Visible visible = layout.visible(position);
  return {position, static_cast<int>(visible.window.begin), static_cast<int>(visible.groups), 0};
}

__device__ TileRun run_of(const Job& job, int tile) {
  int low = 0;
  int high = job.run_count;  // the run is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const int first =
        job.table != nullptr ? job.table[middle].first_tile : job.runs[middle].first_tile;
    if (first <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return job.table != nullptr ? job.table[low] : job.runs[low];
}

// kSteps: padded score width / 16 where known, so that the loop over it unrolls, and everything can
// be read 16 bytes at a time; 0 where not. Two blocks of eight warps fit an SM with 128 registers a
// thread; <8, 128, 0>, for odd widths, would spill there.
template <int kWarps, int kValue, int kSteps>
__global__ void __launch_bounds__(kWarps * 32, (kValue == 128 && kSteps == 0) ? 1 : 2)
    attend(const __grid_constant__ Job job) {
  constexpr int kThreads = kWarps * 32;
  constexpr int kQueries = kWarps * 16;
  constexpr int kParts = kThreads / kKeys;  // threads that load one row
  constexpr bool kAligned = kSteps > 0;
  constexpr int kValueStride = kValue + kPad;
  const int steps = kSteps > 0 ? kSteps : job.score_steps;
  const int score_stride = steps * 16 + kPad;

  extern __shared__ __align__(16) unsigned char shared[];
  bf16* const q_shared = reinterpret_cast<bf16*>(shared);     // [kQueries][score_stride]
  bf16* const k_shared = q_shared + kQueries * score_stride;  // [kKeys][score_stride]
  bf16* const v_shared = k_shared + kKeys * score_stride;     // [kKeys][kValueStride]

  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);

  ExactRows& exact_rows = *reinterpret_cast<ExactRows*>(v_shared + kValue);
  OtherRows& other_rows = *reinterpret_cast<OtherRows*>(v_shared + kValueStride + kValue);
  WindowKeys& window = *reinterpret_cast<WindowKeys*>(v_shared + 2 * kValueStride + kValue);
  KeyBlocks& key_blocks = *reinterpret_cast<KeyBlocks*>(v_shared + 3 * kValueStride + kValue);
  const auto view = [&](int row) -> RowView& {
    return *reinterpret_cast<RowView*>(q_shared + row * score_stride + steps * 16);
  };

  // --- which queries, and what they see. Rows behind the last query do as the last one, on zeros,
  // and are not written.
  int rows;
  {
    const TileRun run = run_of(job, static_cast<int>(blockIdx.x));
    const int tiles = (run.query_count + kQueries - 1) / kQueries;
    const int first_row = (tiles - 1 - (static_cast<int>(blockIdx.x) - run.first_tile)) * kQueries;
    rows = min(kQueries, run.query_count - first_row);
    const int first = run.query_first + first_row;
    const int last = first + rows - 1;
    if (thread == 0) {
      exact_rows = {run.exact_row, run.exact_gone, head / job.heads_per_kv};
      other_rows = {run.group_row, run.query_row + first_row};
      window = window_keys(job.layout, first, last);
      const int group_end = static_cast<int>(job.layout.groups(last + 1));
      key_blocks = {blocks_of(window.end - window.begin), blocks_of(window.sink_end),
                    blocks_of(group_end), group_end};
    }
    if (thread < kQueries) view(thread) = row_view(job.layout, min(first + thread, last));
  }
  __syncthreads();

  // --- loading
  const auto exact_row_of = [&](int p) {
    return exact_rows.row + (p < window.sink ? p : p - exact_rows.gone);
  };
  const auto keys_load = [&](const KeyBlock& block) {
    const unsigned thread = thread_again();
    const int load_row = static_cast<int>(thread / kParts);
    const int load_part = static_cast<int>(thread % kParts);
    const int kv_head = exact_rows.kv_head;
    const int p = block.first + load_row;
    const bool valid = p >= block.begin && p < block.end;
    bf16* const to = k_shared + load_row * score_stride;
    if (block.groups) {
      const std::int64_t row = other_rows.group + p;
      score_row_copy(to, job.groups.nope, job.groups.rope, row, kv_head,
                     kAligned || job.groups.vector, valid, load_part, kParts);
      if (job.bias != nullptr && load_part == 0) {
        const std::int64_t at = valid ? row * job.bias_stride + (job.gqa ? kv_head : 0) : 0;
        copy_word(shared_address(reinterpret_cast<float*>(to + steps * 16)), job.bias + at, valid);
      }
    } else {
      score_row_copy(to, job.exact.nope, job.exact.rope, exact_row_of(p), kv_head,
                     kAligned || job.exact.vector, valid, load_part, kParts);
    }
  };
  const auto values_load = [&](const KeyBlock& block) {
    const unsigned thread = thread_again();
    const int load_row = static_cast<int>(thread / kParts);
    const int load_part = static_cast<int>(thread % kParts);
    const int kv_head = exact_rows.kv_head;
    const int p = block.first + load_row;
    const bool valid = p >= block.begin && p < block.end;
    bf16* const to = v_shared + load_row * kValueStride;
    if (block.groups) {
      const std::int64_t row = valid ? other_rows.group + p : 0;
      row_copy(to, row_of(job.groups.value, row, kv_head), job.groups.value.width,
               kAligned || job.groups.vector, valid, load_part, kParts);
    } else {
      const std::int64_t row = valid ? exact_row_of(p) : 0;
      row_copy(to, row_of(job.exact.value, row, kv_head), job.exact.value.width,
               kAligned || job.exact.vector, valid, load_part, kParts);
    }
  };

  // Columns that pad Q, K and V are cleared once: loads do not touch them.
  const int score_width = job.q_nope.width + job.q_rope.width;
  columns_clear(q_shared, kQueries + kKeys, score_stride, score_width, steps * 16, thread,
                kThreads);
  columns_clear(v_shared, kKeys, kValueStride, job.exact.value.width, kValue, thread, kThreads);
  for (int row = thread / kParts; row < kQueries; row += kKeys) {
    score_row_copy(q_shared + row * score_stride, job.q_nope, job.q_rope, other_rows.query + row,
                   head, kAligned || job.q_vector, row < rows, thread % kParts, kParts);
  }
  keys_load(key_block(window, key_blocks, 0));

  float out[kValue / 8][4];  // fragments of 8 columns
#pragma unroll
  for (int n = 0; n < kValue / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] = 0;
  }
  float maximum[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of this lane's columns only

  const int blocks = key_blocks.window + key_blocks.sink + key_blocks.groups;
  for (int i = 0; i < blocks; ++i) {
    copy_wait_all();
    __syncthreads();  // K(i) is there, and nobody uses V(i − 1) any more
    const KeyBlock block = key_block(window, key_blocks, i);
    values_load(block);

    const unsigned thread = thread_again();
    const int warp = static_cast<int>(thread / 32);
    const unsigned lane = thread % 32;

    // Whether some row of the warp sees some key of the block, and whether every row sees all.
    bool some, all;
    {
      const int end = block.first + kKeys;
      const RowView top = view(warp * 16);
      const RowView bottom = view(warp * 16 + 15);
      if (block.groups) {
        some = block.first < bottom.groups;
        all = end <= top.groups;
      } else {
        some =
            block.first <= bottom.position && (end > top.window_begin || block.first < window.sink);
        all = end <= top.position + 1 && block.first >= block.begin &&
              (block.first >= bottom.window_begin || end <= window.sink);
      }
      some = some && warp * 16 < rows;
    }

    std::uint32_t weights[kKeys / 16][4];  // exp of the logits, as bf16
    if (some) {
      // Addresses for ldmatrix. Q: matrices are (rows 0–7, 8–15) × inner 0–7, then × inner 8–15. K:
      // keys 0–7 × (inner 0–7, 8–15), then keys 8–15.
      const std::uint32_t q_address =
          shared_address(q_shared + (warp * 16 + lane % 16) * score_stride + lane / 16 * 8);
      const std::uint32_t k_address =
          shared_address(k_shared + (lane % 8 + lane / 16 * 8) * score_stride + lane / 8 % 2 * 8);
      float logits[kKeys / 8][4];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) logits[n][e] = 0;
      }
#pragma unroll(kSteps > 0 ? kSteps : 2)
      for (int step = 0; step < steps; ++step) {
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

      // Into base 2, with the bias; then what a row does not see goes to −∞.
      if (block.groups && job.bias != nullptr) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          const bf16* const at = k_shared + (n * 8 + lane % 4 * 2) * score_stride + steps * 16;
          const float bias0 = *reinterpret_cast<const float*>(at) * kLog2E;
          const float bias1 = *reinterpret_cast<const float*>(at + score_stride) * kLog2E;
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
      if (!all) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // A bit for each column: what was loaded, up to the row's own token, less what lies
          // between sink and window; then those of this lane move to constant places.
          const RowView row = view(warp * 16 + static_cast<int>(lane / 4) + 8 * r);
          std::uint64_t seen;
          if (block.groups) {
            seen = ones(row.groups - block.first);
          } else {
            seen = ones(min(row.position + 1, block.end) - block.first) &
                   ~ones(block.begin - block.first);
            seen &= ~ones(row.window_begin - block.first) | ones(window.sink - block.first);
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
    __syncthreads();  // V(i) is there, and nobody uses K(i) and its bias any more
    if (i + 1 < blocks) keys_load(key_block(window, key_blocks, i + 1));

    if (some) {
      // Transposed: matrices are (keys 0–7, 8–15) × columns 0–7, then × columns 8–15.
      const unsigned lane = thread_again() % 32;
      const std::uint32_t v_address =
          shared_address(v_shared + lane % 16 * kValueStride + lane / 16 * 8);
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
        for (int n = 0; n < kValue / 16; ++n) {
          std::uint32_t b[4];
          matrix_load_transposed(b, v_address + k * 16 * kValueStride * 2 + n * 32);
          multiply(out[2 * n], weights[k], b[0], b[1]);
          multiply(out[2 * n + 1], weights[k], b[2], b[3]);
        }
      }
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
    const std::int64_t at = (other_rows.query + row) * job.heads + head;
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
Instance instance_for(int steps, int value, bool vector, std::size_t shared_most) {
  Instance found{attend<4, 256, 0>, 4, 256};
  const Instance widest = found;
  if (value <= 64) {
    found = {attend<8, 64, 0>, 8, 64};  // MiniCPM3 (96 | 64), small models (64 | 64)
  } else if (value <= 128) {
    found = {attend<8, 128, 0>, 8, 128};
    if (vector && steps == 12) found.kernel = attend<8, 128, 12>;  // DeepSeek-V2 (192 | 128)
    if (vector && steps == 8) found.kernel = attend<8, 128, 8>;    // Qwen, Llama (128 | 128)
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
                      cudaStream_t stream) {
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
  job.bias_all = problem.bias_all * kLog2E;
  job.scale = problem.scale * kLog2E;
  job.out = problem.out;
  job.lse = problem.lse;
  job.heads = problem.heads;
  job.gqa = problem.form == Form::gqa;
  job.heads_per_kv = job.gqa ? problem.heads / problem.kv_heads : 1;
  job.q_vector = aligned(problem.q_nope) && aligned(problem.q_rope);
  job.out_pairs = value % 2 == 0 && reinterpret_cast<std::uintptr_t>(problem.out) % 4 == 0;
  job.score_steps = steps;

  const Instance instance = instance_for(
      steps, value, job.q_vector && job.exact.vector && job.groups.vector, device().shared_bytes);
  int tiles = 0;
  const std::vector<TileRun> table = tile_runs(runs, instance.warps * 16, tiles);
  if (tiles == 0) return;
  job.run_count = static_cast<int>(table.size());
  if (table.size() <= kInlineRuns) {
    std::copy(table.begin(), table.end(), job.runs);
  } else {
    // From pageable memory: the call returns when it has taken the values.
    check(cudaMemcpyAsync(workspace, table.data(), table.size() * sizeof(TileRun),
                          cudaMemcpyHostToDevice, stream),
          "copying the runs of a prefill");
    job.table = static_cast<const TileRun*>(workspace);
  }

  const std::size_t shared = instance.shared_bytes(steps);
  check(cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "preparing a prefill");
  check(cudaFuncSetAttribute(instance.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "preparing a prefill");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(problem.heads));
  instance.kernel<<<grid, static_cast<unsigned>(instance.warps * 32), shared, stream>>>(job);
  check(cudaGetLastError(), "launching a prefill");
}

}  // namespace lca::cuda
