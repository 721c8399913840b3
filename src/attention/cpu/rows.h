#pragma once
/// Attention of all heads to rows as the cache stores them: the inner loop of decoding.
///
/// Shapes: R heads to each KV head (16 for DeepSeek-V2-Lite, all on one latent) against `count`
/// rows of d_c + d_r values; the value of a row is its semantic part. Operations per row:
/// 2·R·(2·d_c + d_r) = 34,816; bytes: 4·(d_c + d_r) = 2,304 in float32. Rows go by in blocks of 64
/// (144 KiB), which stay in the second-level cache while the heads pass over them four at a time.
/// With several KV heads a row holds one after another, and is read as it lies: memory likes one
/// stream.

#include <lca/tensor.h>

#include <cstdint>

#include "attention/row_format.h"

namespace lca::cpu {

constexpr std::int64_t kRowBlock = 64;  ///< rows in one step of the online softmax

/// One head's query in 16 bits: step·(256·high + low), both signed. Rows are multiplied as q + 128,
/// which has no sign; `excess` is what that adds to the sum.
struct Int8Query {
  const std::int8_t* high = nullptr;  ///< [d_positional], then as many low bytes
  float step = 0;
  std::int32_t excess = 0;
};

/// Heads with what they have gathered so far; `rows_attend` adds to it.
struct RowHeads {
  std::int64_t kv_heads = 1;
  std::int64_t heads = 0;  ///< of each KV head; those of the first come first below
  std::int64_t d_semantic = 0, d_positional = 0;
  const float* q_semantic =
      nullptr;  ///< [KV][heads][d_semantic]; null: rows are scored by position only
  const float* q_positional = nullptr;  ///< [KV][heads][d_positional]; both times scale·log₂e
  /// The same in bfloat16 and without the factor, where `rows_run_bf16` says so; null: not.
  const std::uint16_t* q_bf16 = nullptr;
  float q_factor = 0;  ///< scale·log₂e, for q_bf16
  /// Where `rows_run_int8` says so, q_positional in 16 bits as well, for rows of 8 bits; else null.
  const Int8Query* q_int8 = nullptr;  ///< [KV][heads]
  float* out = nullptr;               ///< [KV][heads][d_semantic], not yet divided by `sum`
  float* top = nullptr;               ///< [KV][heads], the largest score so far, in powers of two
  float* sum = nullptr;               ///< [KV][heads]
  float* scratch = nullptr;           ///< rows_scratch_floats(...)
};

/// Rows in the cache: row i starts i strides further, and holds one piece for each KV head.
struct RowSpan {
  const void* semantic = nullptr;
  const void* positional = nullptr;
  std::int64_t semantic_stride = 0, positional_stride = 0;
  DType dtype = DType::f32;
  /// Of rows of 8 bits, whose strides count bytes; null: rows are plain.
  const RowFormat* format = nullptr;
  const float* scales = nullptr;  ///< of the first row, and so on
  std::int64_t count = 0;
  /// Of row i and KV head j at bias[i·bias_stride + j], or with stride 0 one for all; null: none.
  const float* bias = nullptr;
  std::int64_t bias_stride = 0;
};

constexpr std::int64_t rows_scratch_floats(std::int64_t heads, std::int64_t kv_heads,
                                           std::int64_t d_semantic, std::int64_t d_positional) {
  return kRowBlock * (heads * kv_heads + kv_heads * (d_semantic + d_positional)) + heads * kv_heads;
}

/// Asks for memory, into the second-level cache: what goes to the first waits in a shorter queue.
inline void prefetch_lines(const void* from, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  const auto* line = static_cast<const std::uint8_t*>(from);
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(line + at, 0, 2);
}

/// Whether rows of this dtype and width, scored by position only, are multiplied in bfloat16.
bool rows_run_bf16(DType dtype, std::int64_t d_semantic, std::int64_t d_positional);

/// Whether rows of 8 bits of this width, scored by position only, are multiplied as they are.
bool rows_run_int8(std::int64_t d_semantic, std::int64_t d_positional);

/// Writes a query in 16 bits into 2·count bytes.
Int8Query query_quantise(const float* from, std::int64_t count, std::int8_t* to);

/// Empties what the heads have gathered.
void rows_begin(const RowHeads& heads);

/// Prefetches the first block of rows of 8 bits, where no earlier call did; else does nothing.
void rows_prefetch(const RowHeads& heads, const RowSpan& rows);

/// Adds rows to what the heads have gathered. `next`, where known, are those of the next call: of 8
/// bits, they are prefetched.
void rows_attend(const RowHeads& heads, const RowSpan& rows, const RowSpan* next = nullptr);

}  // namespace lca::cpu
