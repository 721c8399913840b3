// Gradients of queries from those of their means, zeros where condensation has no gradient, and
// sums over groups (mechanism §8).
//
// Shapes (DeepSeek-V2-Lite, 64K): gradients of means [4032][16][128] bf16 and [4032][64] float,
// queries' [65536][16][128 + 64] bf16: 403 MB written, 17 MB read (and again from L2 by
// neighbours): 98 µs at 4.27 TB/s; twice that where it adds to what is there.
//
// How data moves: a block takes 16 queries, more where they are short. Which groups a query scores
// is law (Layout), so each query adds up its own groups in order and is written once. A thread has
// the same columns of several queries: neighbours mostly score the same groups, and the sum stays
// in registers.
#include <lca/error.h>

#include <algorithm>
#include <cstdint>

#include "attention/cuda/condense/condense_backward.h"
#include "attention/cuda/condense/condense_vectors.h"

namespace lca::cuda {
namespace {

constexpr int kGradThreads = 384;  // the vectors of a query of DeepSeek-V2-Lite
constexpr int kGradVectors = 16;   // of a thread
constexpr int kGradRowsMost = 64;  // queries of a block

// A token's document: where it lies in it, and the document's groups.
struct TokenPlace {
  std::int64_t position;
  std::int64_t group_first;
  std::int64_t groups;
};

__device__ TokenPlace token_place(const Documents& documents, std::int64_t groups,
                                  std::int64_t row) {
  if (documents.table == nullptr) return {row, 0, groups};
  const DocumentPlace* const at = documents.table + document_of_row(documents, row);
  return {row - at[0].row, at[0].group, at[1].group - at[0].group};
}

// The groups that a query scores, counted through all documents.
struct QueryGroups {
  std::int64_t begin, end;
  std::int64_t first;  // of its document
};

struct Columns {
  const void* from;  // [groups][heads of it][width] bf16 or float
  OutRows to;
  int heads;     // of `from`
  int sharing;   // query heads for each of them
  int per_head;  // vectors
};

// kVec values of a group's gradient.
template <int kVec>
__device__ void grad_load(const bf16* from, float (&value)[kVec]) {
  Vector<kVec> raw;
  raw.load(from);
  raw.get(value);
}
template <int kVec>
__device__ void grad_load(const float* from, float (&value)[kVec]) {
  load_floats<kVec>(from, value);
}

template <int kVec, typename Value>
__device__ void columns_write(const QueryGrads& job, const Columns& columns,
                              const QueryGroups* queries, std::int64_t first_row, int rows,
                              int unit, int slice, int slices) {
  const int head = unit / columns.per_head;
  const int column = (unit - head * columns.per_head) * kVec;
  const int width = columns.to.width;
  const Value* const from = static_cast<const Value*>(columns.from) +
                            static_cast<std::int64_t>(head / columns.sharing) * width + column;
  const std::int64_t step = static_cast<std::int64_t>(columns.heads) * width;
  bf16* const to = columns.to.data + head * columns.to.head_stride + column;

  float sum[kVec] = {};
  std::int64_t begin = 0, end = 0;                      // the groups that `sum` is of
  const int share_rows = (rows + slices - 1) / slices;  // neighbours stay together
  const int last = min(rows, (slice + 1) * share_rows);
  for (int r = slice * share_rows; r < last; ++r) {
    const QueryGroups query = queries[r];
    if (query.begin != begin || query.end != end) {
      begin = query.begin;
      end = query.end;
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] = 0;
      for (std::int64_t j = begin; j < end; ++j) {
        const std::int64_t size = job.layout.summary_range(j - query.first, job.prompt).size();
        const float share = 1.0f / static_cast<float>(size);
        float value[kVec];
        grad_load<kVec>(from + j * step, value);
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[i] += share * value[i];
      }
    }
    bf16* const at = to + (first_row + r) * columns.to.row_stride;
    Vector<kVec> out;
    if (job.accumulate) {
      if (begin >= end) continue;
      float value[kVec];
      out.load(at);
      out.get(value);
#pragma unroll
      for (int i = 0; i < kVec; ++i) value[i] += sum[i];
      out.set(value);
    } else {
      out.set(sum);
    }
    out.store(at);
  }
}

template <int kVec>
__global__ __launch_bounds__(kGradThreads) void query_grads_kernel(
    const __grid_constant__ QueryGrads job, int nope_units, int units, int block_rows) {
  __shared__ QueryGroups queries[kGradRowsMost];
  const int tid = static_cast<int>(threadIdx.x);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * block_rows;
  const std::int64_t left = job.tokens - first_row;
  const int rows = left < block_rows ? static_cast<int>(left) : block_rows;
  if (tid < rows) {
    if (job.prompt > 0) {
      const bool scores =
          job.groups > 0 && job.layout.summary_range(0, job.prompt).contains(first_row + tid);
      queries[tid] = {0, scores ? 1 : 0, 0};
    } else {
      const TokenPlace place = token_place(job.documents, job.groups, first_row + tid);
      const Range range = job.layout.summary_groups(place.position, place.groups);
      queries[tid] = {place.group_first + range.begin, place.group_first + range.end,
                      place.group_first};
    }
  }
  __syncthreads();

  const int heads = static_cast<int>(job.heads);
  const int rope_heads = static_cast<int>(job.rope_heads);
  const Columns nope{job.nope, job.q_nope, heads, 1, job.q_nope.width / kVec};
  const Columns rope{job.rope, job.q_rope, rope_heads, heads / rope_heads, job.q_rope.width / kVec};
  const int slices = units < kGradThreads ? kGradThreads / units : 1;
  const int slice = units < kGradThreads ? tid / units : 0;
  if (slice >= slices) return;
  for (int unit = tid - slice * units; unit < units; unit += kGradThreads) {
    if (unit < nope_units) {
      columns_write<kVec, bf16>(job, nope, queries, first_row, rows, unit, slice, slices);
    } else {
      columns_write<kVec, float>(job, rope, queries, first_row, rows, unit - nope_units, slice,
                                 slices);
    }
  }
}

bool grads_aligned(const OutRows& rows) {
  return rows.data == nullptr || (rows.width % 8 == 0 && rows.row_stride % 8 == 0 &&
                                  rows.head_stride % 8 == 0 && aligned_16(rows.data));
}

// --- zeros -------------------------------------------------------------------------------------

constexpr int kClearThreads = 128;
constexpr int kClearRows = 32;

template <int kVec>
__device__ void row_clear(const OutRows& rows, std::int64_t row, int heads) {
  if (rows.data == nullptr) return;
  const int per_head = rows.width / kVec;
  const float zero[kVec] = {};
  Vector<kVec> out;
  out.set(zero);
  for (int unit = static_cast<int>(threadIdx.x); unit < heads * per_head; unit += kClearThreads) {
    const int head = unit / per_head;
    out.store(rows.data + row * rows.row_stride + head * rows.head_stride +
              (unit - head * per_head) * kVec);
  }
}

template <int kVec>
__global__ __launch_bounds__(kClearThreads) void gaps_clear_kernel(
    const Layout layout, const Documents documents, std::int64_t tokens, std::int64_t groups,
    int heads, const OutRows semantic, const OutRows positional) {
  __shared__ bool gap[kClearRows];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kClearRows;
  if (threadIdx.x < kClearRows) {
    const std::int64_t row = first + threadIdx.x;
    bool outside = false;
    if (row < tokens) {
      const TokenPlace place = token_place(documents, groups, row);
      outside = place.groups == 0 || place.position < layout.group_range(0).begin ||
                place.position >= layout.group_range(place.groups - 1).end;
    }
    gap[threadIdx.x] = outside;
  }
  __syncthreads();
  for (int r = 0; r < kClearRows; ++r) {
    if (!gap[r]) continue;
    row_clear<kVec>(semantic, first + r, heads);
    row_clear<kVec>(positional, first + r, heads);
  }
}

// --- sums --------------------------------------------------------------------------------------

constexpr int kSumColumns = 32;
constexpr int kSumSlices = 8;

__device__ inline float as_float(bf16 value) { return __bfloat162float(value); }
__device__ inline float as_float(float value) { return value; }
__device__ inline void from_float(float value, bf16& to) { to = __float2bfloat16_rn(value); }
__device__ inline void from_float(float value, float& to) { to = value; }

template <typename Value>
__global__ __launch_bounds__(kSumColumns* kSumSlices) void rows_sum_kernel(const Value* values,
                                                                           std::int64_t rows,
                                                                           std::int64_t width,
                                                                           Value* to) {
  __shared__ float parts[kSumSlices][kSumColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  float sum = 0;
  if (column < width) {
    for (std::int64_t row = threadIdx.y; row < rows; row += kSumSlices) {
      sum += as_float(values[row * width + column]);
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int s = 1; s < kSumSlices; ++s) sum += parts[s][threadIdx.x];
  from_float(sum, to[column]);
}

template <typename Value>
void sum_launch(const Value* values, std::int64_t rows, std::int64_t width, Value* sum,
                const Queue& queue) {
  const auto blocks = static_cast<unsigned>((width + kSumColumns - 1) / kSumColumns);
  rows_sum_kernel<<<blocks, dim3(kSumColumns, kSumSlices), 0, queue.stream>>>(values, rows, width,
                                                                              sum);
  check(cudaGetLastError(), "adding up gradients of groups");
}

unsigned tile_blocks(std::int64_t tokens, int rows) {
  const std::int64_t blocks = (tokens + rows - 1) / rows;
  if (blocks > INT32_MAX) {
    throw Error(ErrorKind::bad_input, "condensing's backward pass: too many tokens for one call");
  }
  return static_cast<unsigned>(blocks);
}

}  // namespace

void rows_sum(const bf16* values, std::int64_t rows, std::int64_t width, bf16* sum,
              const Queue& queue) {
  sum_launch(values, rows, width, sum, queue);
}

void rows_sum(const float* values, std::int64_t rows, std::int64_t width, float* sum,
              const Queue& queue) {
  sum_launch(values, rows, width, sum, queue);
}

void gaps_clear(const Layout& layout, const Documents& documents, std::int64_t tokens,
                std::int64_t groups, std::int64_t heads, const OutRows& semantic,
                const OutRows& positional, const Queue& queue) {
  if (tokens <= 0 || (semantic.data == nullptr && positional.data == nullptr)) return;
  const auto kernel = grads_aligned(semantic) && grads_aligned(positional) ? gaps_clear_kernel<8>
                                                                           : gaps_clear_kernel<1>;
  kernel<<<tile_blocks(tokens, kClearRows), kClearThreads, 0, queue.stream>>>(
      layout, documents, tokens, groups, static_cast<int>(heads), semantic, positional);
  check(cudaGetLastError(), "clearing gradients");
}

void query_grads(const QueryGrads& request, const Queue& queue) {
  const bool wanted = request.q_nope.data != nullptr || request.q_rope.data != nullptr;
  if (request.tokens <= 0 || !wanted) return;
  const bool wide = grads_aligned(request.q_nope) && grads_aligned(request.q_rope) &&
                    aligned_16(request.nope) && aligned_16(request.rope);
  const int vec = wide ? 8 : 1;
  const auto units_of = [&](const OutRows& rows) {
    return rows.data == nullptr ? 0 : static_cast<int>(request.heads) * (rows.width / vec);
  };
  const int nope = units_of(request.q_nope);
  const int units = nope + units_of(request.q_rope);
  const auto kernel = wide ? query_grads_kernel<8> : query_grads_kernel<1>;
  const int rows = std::clamp(kGradVectors * kGradThreads / units, kGradVectors, kGradRowsMost);
  kernel<<<tile_blocks(request.tokens, rows), kGradThreads, 0, queue.stream>>>(request, nope, units,
                                                                               rows);
  check(cudaGetLastError(), "gradients of queries");
}

}  // namespace lca::cuda
