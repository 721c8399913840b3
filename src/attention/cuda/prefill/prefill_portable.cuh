#pragma once
/// The arguments of the portable prefill kernel (prefill_portable.cu), which keys a tile of queries
/// meets, and how rows get to shared memory.

#include "attention/cuda/prefill/prefill.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda::portable {

inline constexpr int kKeys = 64;  // keys of a block
inline constexpr int kPad = 8;    // elements behind each row in shared memory
inline constexpr int kInlineRuns =
    16;  // runs that travel with the launch; more go through workspace

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
  RotationView rotation;
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
__device__ inline void columns_clear(bf16* data, int rows, int stride, int from, int to, int thread,
                                     int threads) {
  const int columns = to - from;
  for (int i = thread; i < rows * columns; i += threads) {
    data[i / columns * stride + from + i % columns] = __float2bfloat16(0.0f);
  }
}

// --- what a tile meets ---------------------------------------------------------------------------

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
  int position, window_begin, groups;
  int difference;  // of its entry position to its token position; 0 with token positions
};
static_assert(sizeof(RowView) == kPad * sizeof(bf16));

// 64 consecutive keys, of which [begin, end) are loaded: positions, or numbers of representatives.
struct KeyBlock {
  int first, begin, end;
  bool groups;
  bool sink;  // a block of the sink's own
};

__device__ __forceinline__ KeyBlock key_block(const WindowKeys& keys, const KeyBlocks& blocks,
                                              int i) {
  if (i < blocks.window) {  // from the diagonal down: most rows see something at once
    return {keys.end - kKeys * (i + 1), keys.begin, keys.end, false, false};
  }
  i -= blocks.window;
  if (i < blocks.sink) return {kKeys * i, 0, keys.sink_end, false, true};
  return {kKeys * (i - blocks.sink), 0, blocks.group_end, true, false};
}

__device__ __forceinline__ int blocks_of(int keys) { return (keys + kKeys - 1) / kKeys; }

// The keys of queries first … last. Where the first query has dropped nothing, it sees all tokens
// before it: sink and window are one. With entry positions (kEntry) queries after it that have
// dropped something see the sink in blocks of its own, with another form of the query.
template <bool kEntry>
__device__ inline WindowKeys window_keys(const Layout& layout, int first, int last) {
  WindowKeys keys{};
  keys.end = last + 1;
  keys.sink = static_cast<int>(layout.sink < keys.end ? layout.sink : keys.end);
  if (layout.dropped(first + 1) > 0) {
    const Visible visible = layout.visible(first);
    keys.begin = static_cast<int>(visible.window.begin);
    keys.sink_end = static_cast<int>(visible.sink.end);
  } else if (kEntry && layout.dropped(last + 1) > 0) {
    keys.sink_end = keys.sink;
  }
  return keys;
}

// With entry positions a row that has dropped nothing has a window that begins at 0, sink included.
template <bool kEntry>
__device__ inline RowView row_view(const Layout& layout, int position) {
  const Visible visible = layout.visible(position);
  RowView row{position, static_cast<int>(visible.window.begin), static_cast<int>(visible.groups),
              0};
  if constexpr (kEntry) {
    if (layout.dropped(position + 1) == 0) row.window_begin = 0;
    row.difference = -static_cast<int>(layout.position_shift(position + 1));
  }
  return row;
}

__device__ inline TileRun run_of(const Job& job, int tile) {
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

// --- a block's shared memory ---------------------------------------------------------------------

/// Q, K and V of a block, and in the padding behind their rows what all threads know.
template <int kWarps, int kValue, int kSteps, bool kEntry>
struct Tensors {
  static constexpr int kQueries = kWarps * 16;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kParts = kThreads / kKeys;  ///< threads that load one row
  static constexpr bool kAligned = kSteps > 0;
  static constexpr int kValueStride = kValue + kPad;
  const Job& job;
  const int steps;
  const int score_stride;
  bf16* const q;  ///< [kQueries][score_stride]
  bf16* const k;  ///< [kKeys][score_stride]
  bf16* const v;  ///< [kKeys][kValueStride]

  __device__ __forceinline__ Tensors(const Job& of, unsigned char* shared)
      : job(of),
        steps(kSteps > 0 ? kSteps : of.score_steps),
        score_stride(steps * 16 + kPad),
        q(reinterpret_cast<bf16*>(shared)),
        k(q + kQueries * score_stride),
        v(k + kKeys * score_stride) {}

  __device__ __forceinline__ ExactRows& exact_rows() const {
    return *reinterpret_cast<ExactRows*>(v + kValue);
  }
  __device__ __forceinline__ OtherRows& other_rows() const {
    return *reinterpret_cast<OtherRows*>(v + kValueStride + kValue);
  }
  __device__ __forceinline__ WindowKeys& window() const {
    return *reinterpret_cast<WindowKeys*>(v + 2 * kValueStride + kValue);
  }
  __device__ __forceinline__ KeyBlocks& key_blocks() const {
    return *reinterpret_cast<KeyBlocks*>(v + 3 * kValueStride + kValue);
  }
  __device__ __forceinline__ RowView& view(int row) const {
    return *reinterpret_cast<RowView*>(q + row * score_stride + steps * 16);
  }
  __device__ __forceinline__ KeyBlock block(int i) const {
    return key_block(window(), key_blocks(), i);
  }
  __device__ __forceinline__ std::int64_t exact_row_of(int p) const {
    return exact_rows().row + (p < window().sink ? p : p - exact_rows().gone);
  }

  /// Which queries this block has and what they see; returns how many. Rows behind the last query
  /// do as the last one, on zeros, and are not written.
  __device__ __forceinline__ int tile_prepare(int thread, int head) const {
    const TileRun run = run_of(job, static_cast<int>(blockIdx.x));
    const int tiles = (run.query_count + kQueries - 1) / kQueries;
    const int first_row = (tiles - 1 - (static_cast<int>(blockIdx.x) - run.first_tile)) * kQueries;
    const int rows = min(kQueries, run.query_count - first_row);
    const int first = run.query_first + first_row;
    const int last = first + rows - 1;
    if (thread == 0) {
      exact_rows() = {run.exact_row, run.exact_gone, head / job.heads_per_kv};
      other_rows() = {run.group_row, run.query_row + first_row};
      window() = window_keys<kEntry>(job.layout, first, last);
      const int group_end = static_cast<int>(job.layout.groups(last + 1));
      key_blocks() = {blocks_of(window().end - window().begin), blocks_of(window().sink_end),
                      blocks_of(group_end), group_end};
    }
    if (thread < kQueries) view(thread) = row_view<kEntry>(job.layout, min(first + thread, last));
    return rows;
  }

  /// Queries, asked for. Columns that pad Q, K and V are cleared once: loads do not touch them.
  __device__ __forceinline__ void queries_load(int thread, int head, int rows) const {
    const int score_width = job.q_nope.width + job.q_rope.width;
    columns_clear(q, kQueries + kKeys, score_stride, score_width, steps * 16, thread, kThreads);
    columns_clear(v, kKeys, kValueStride, job.exact.value.width, kValue, thread, kThreads);
    for (int row = thread / kParts; row < kQueries; row += kKeys) {
      score_row_copy(q + row * score_stride, job.q_nope, job.q_rope, other_rows().query + row, head,
                     kAligned || job.q_vector, row < rows, thread % kParts, kParts);
    }
  }

  /// This warp's queries as sink and representatives see them, in place; no other warp reads them.
  __device__ __forceinline__ void queries_rotate() const {
    const unsigned thread = thread_again();
    const int first = static_cast<int>(thread / 32) * 16;
    const int lane = static_cast<int>(thread % 32);
    bf16* const rope = q + first * score_stride + job.q_nope.width;
    __syncwarp();  // all lanes have read them
    rows_rotate(job.rotation, view(first + lane % 16).difference, lane,
                [&](int row, int channel) { return rope + row * score_stride + channel; });
    __syncwarp();
  }

  __device__ __forceinline__ void keys_load(const KeyBlock& block) const {
    const unsigned thread = thread_again();
    const int load_row = static_cast<int>(thread / kParts);
    const int load_part = static_cast<int>(thread % kParts);
    const int kv_head = exact_rows().kv_head;
    const int p = block.first + load_row;
    const bool valid = p >= block.begin && p < block.end;
    bf16* const to = k + load_row * score_stride;
    if (block.groups) {
      const std::int64_t row = other_rows().group + p;
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
  }

  __device__ __forceinline__ void values_load(const KeyBlock& block) const {
    const unsigned thread = thread_again();
    const int load_row = static_cast<int>(thread / kParts);
    const int load_part = static_cast<int>(thread % kParts);
    const int kv_head = exact_rows().kv_head;
    const int p = block.first + load_row;
    const bool valid = p >= block.begin && p < block.end;
    bf16* const to = v + load_row * kValueStride;
    if (block.groups) {
      const std::int64_t row = valid ? other_rows().group + p : 0;
      row_copy(to, row_of(job.groups.value, row, kv_head), job.groups.value.width,
               kAligned || job.groups.vector, valid, load_part, kParts);
    } else {
      const std::int64_t row = valid ? exact_row_of(p) : 0;
      row_copy(to, row_of(job.exact.value, row, kv_head), job.exact.value.width,
               kAligned || job.exact.vector, valid, load_part, kParts);
    }
  }
};

}  // namespace lca::cuda::portable
