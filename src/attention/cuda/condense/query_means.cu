// Means of the queries that score a group, plain or made while RoPE rotates the queries (mechanism
// §3).
//
// Shapes (DeepSeek-V2-Lite, 128K): queries [131072][16][128 + 64] bf16, 8128 groups of 16 queries.
// Means: 805 MB read, 70 MB written (high and low part and rope), 0.4 Gflop: 205 µs at 4.27 TB/s.
// With RoPE 268 MB more are written: 270 µs.
//
// How data moves: a block takes one group and one part of its columns. A part without position is
// up to 256 vectors of 8 columns, one for each thread, which reads them from all rows, 8 loads at a
// time (32 KB in flight in a block). The rope part of one output head is reduced over rows and
// query heads at once: threads are cut into slices over both, and a pass through shared memory
// (8 KB, with RoPE 16 KB) adds the slices up, always in the same order.
#include <lca/error.h>

#include <cstdint>

#include "attention/cuda/condense/condense.h"
#include "attention/cuda/condense/condense_vectors.h"

namespace lca::cuda {
namespace {

constexpr int kThreads = 256;

struct MeansJob {
  HeadRows nope;
  HeadRows rope;
  QueryMeans means;
  Layout layout;
  std::int64_t prompt = 0;
  std::int64_t first_group = 0;
  std::int64_t first = 0;  // position of row 0
  std::int64_t rows = 0;
  int heads = 0;
  int out_heads = 0;   // heads of the rope means
  int nope_parts = 0;  // blocks for the columns without position
  const float* cosine = nullptr;
  const float* sine = nullptr;
  bool interleaved = false;
  bool each = false;  // a query by itself is a mean; first_group counts rows
  Documents documents;
};

// Rows that a block averages, counted in the job's queries.
struct Rows {
  std::int64_t begin;
  int count;
  bool whole;  // false: a last piece that is rotated but has no mean
};

template <bool kRotate>
__device__ Rows rows_of(const MeansJob& job, std::int64_t index) {
  if constexpr (kRotate) {
    const std::int64_t begin = index * job.layout.group;
    const std::int64_t left = job.rows - begin;
    const bool whole = left >= job.layout.group;
    return {begin, static_cast<int>(whole ? job.layout.group : left), whole};
  } else {
    if (job.each) return {job.first_group + index, 1, true};
    if (job.documents.table != nullptr) {
      const std::int64_t group = job.first_group + index;
      const DocumentPlace document =
          document_of_group(job.documents, group, static_cast<int>(threadIdx.x) % 32);
      const Range range = job.layout.summary_range(group - document.group, 0);
      return {document.row + range.begin, static_cast<int>(range.size()), true};
    }
    const Range range = job.layout.summary_range(job.first_group + index, job.prompt);
    return {range.begin - job.first, static_cast<int>(range.size()), true};
  }
}

// One thread's columns of the part without position: their mean as a high and a low bf16.
template <int kVec>
__device__ void nope_mean(const MeansJob& job, std::int64_t index, int part, const Rows& rows) {
  const int per_head = job.nope.width / kVec;
  const int unit = part * kThreads + static_cast<int>(threadIdx.x);
  if (unit >= job.heads * per_head) return;
  const int head = unit / per_head;
  const std::int64_t stride = job.nope.row_stride;
  const bf16* from = job.nope.data + rows.begin * stride + head * job.nope.head_stride +
                     (unit - head * per_head) * kVec;

  constexpr int kBatch = 8;  // loads in flight before the first is used
  float sum[kVec] = {};
  float value[kVec];
  int t = 0;
  for (; t + kBatch <= rows.count; t += kBatch) {
    Vector<kVec> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) batch[b].load(from + b * stride);
    from += kBatch * stride;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      batch[b].get(value);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += value[i];
    }
  }
  for (; t < rows.count; ++t) {
    Vector<kVec> one;
    one.load(from);
    from += stride;
    one.get(value);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] += value[i];
  }

  const float share = 1.0f / static_cast<float>(rows.count);
  float rounded[kVec];
  Vector<kVec> high;
  Vector<kVec> low;
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum[i] *= share;
  high.set(sum);
  high.get(rounded);
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum[i] -= rounded[i];
  low.set(sum);
  const std::int64_t width = static_cast<std::int64_t>(job.heads) * job.nope.width;
  bf16* to = job.means.nope + index * 2 * width + static_cast<std::int64_t>(unit) * kVec;
  high.store(to);
  low.store(to + width);
}

__device__ void rotate(float& x, float& y, float cosine, float sine) {
  const float rotated = x * cosine - y * sine;
  y = y * cosine + x * sine;
  x = rotated;
}

// The mean over rows, and the sum over the query heads that share output head `out`. A unit is kVec
// columns, or with RoPE kVec pairs of columns: both members of a pair are in one thread.
template <int kVec, bool kRotate>
__device__ void rope_mean(const MeansJob& job, std::int64_t index, int out, const Rows& rows) {
  constexpr int kPair = kRotate ? 2 : 1;
  constexpr int kWidth = kPair * kVec;
  constexpr int kBatch = 8 / kPair;
  __shared__ __align__(16) float partial[kThreads * kWidth];  // [slices][units here][kWidth]

  const int tid = static_cast<int>(threadIdx.x);
  const int width = job.rope.width;
  const int units = width / kWidth;
  const int sharing = job.heads / job.out_heads;
  // Where the second vector of a unit begins, counted from the first, and how far units lie apart.
  const int second = kRotate && !job.interleaved ? width / 2 : kVec;
  const int unit_step = kRotate && job.interleaved ? kWidth : kVec;

  for (int base = 0; base < units; base += kThreads) {
    const int here = min(units - base, kThreads);
    const int slices = kThreads / here;
    const int row_slices = min(slices, rows.count);
    const int head_slices = min(slices / row_slices, sharing);
    const int used = row_slices * head_slices;
    const int slice = tid / here;
    const int unit = base + tid - slice * here;

    float sum[kWidth] = {};
    if (slice < used) {
      const int first_head = slice / row_slices;
      const std::int64_t step = head_slices * job.rope.head_stride;
      for (int t = slice - first_head * row_slices; t < rows.count; t += row_slices) {
        const std::int64_t row = rows.begin + t;
        const bf16* from =
            job.rope.data + row * job.rope.row_stride +
            static_cast<std::int64_t>(out * sharing + first_head) * job.rope.head_stride +
            unit * unit_step;
        float cosine[kVec];
        float sine[kVec];
        if constexpr (kRotate) {
          const std::int64_t at = row * (width / 2) + unit * kVec;
          load_floats<kVec>(job.cosine + at, cosine);
          load_floats<kVec>(job.sine + at, sine);
        }
        // All loads of a batch come before its stores: the compiler may not move them past.
        for (int h = first_head; h < sharing; h += kBatch * head_slices, from += kBatch * step) {
          Vector<kVec> batch[kBatch][kPair];
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if (h + b * head_slices < sharing) {
#pragma unroll
              for (int p = 0; p < kPair; ++p) batch[b][p].load(from + b * step + p * second);
            }
          }
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if (h + b * head_slices < sharing) {
              float value[kPair][kVec];
#pragma unroll
              for (int p = 0; p < kPair; ++p) batch[b][p].get(value[p]);
              if constexpr (kRotate) {
                // The pair's members: neighbours in the 2·kVec columns, or one in each vector.
                if (job.interleaved) {
#pragma unroll
                  for (int i = 0; i < kVec; ++i) {
                    rotate(value[2 * i / kVec][2 * i % kVec],
                           value[(2 * i + 1) / kVec][(2 * i + 1) % kVec], cosine[i], sine[i]);
                  }
                } else {
#pragma unroll
                  for (int i = 0; i < kVec; ++i)
                    rotate(value[0][i], value[1][i], cosine[i], sine[i]);
                }
                bf16* to = const_cast<bf16*>(from) + b * step;  // queries are rotated in place
#pragma unroll
                for (int p = 0; p < kPair; ++p) {
                  batch[b][p].set(value[p]);
                  batch[b][p].store(to + p * second);
                  batch[b][p].get(value[p]);  // means are of queries as stored
                }
              }
#pragma unroll
              for (int p = 0; p < kPair; ++p) {
#pragma unroll
                for (int i = 0; i < kVec; ++i) sum[p * kVec + i] += value[p][i];
              }
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        partial[tid * kWidth + i] = sum[i];  // tid: slice·here + unit
    }
    __syncthreads();

    if (rows.whole) {
      const float share = 1.0f / static_cast<float>(rows.count);
      float* to = job.means.rope + (index * job.out_heads + out) * width;
      for (int o = tid; o < here * kWidth; o += kThreads) {
        float total = 0;
#pragma unroll 8
        for (int s = 0; s < used; ++s) total += partial[s * here * kWidth + o];
        const int in_unit = o % kWidth;
        const int column =
            (base + o / kWidth) * unit_step + (in_unit / kVec) * second + in_unit % kVec;
        to[column] = total * share;
      }
    }
    __syncthreads();
  }
}

template <int kVec, bool kRotate>
__global__ __launch_bounds__(kThreads) void means_kernel(const MeansJob job) {
  const int parts = job.nope_parts + job.out_heads;
  const std::int64_t index = blockIdx.x / parts;
  const int part = static_cast<int>(blockIdx.x % parts);
  const Rows rows = rows_of<kRotate>(job, index);
  if (part < job.nope_parts) {
    if (rows.whole) nope_mean<kVec>(job, index, part, rows);
  } else {
    rope_mean<kVec, kRotate>(job, index, part - job.nope_parts, rows);
  }
}

bool rows_aligned(const HeadRows& rows, int multiple) {
  return rows.width % multiple == 0 && rows.row_stride % 8 == 0 && rows.head_stride % 8 == 0 &&
         aligned_16(rows.data);
}

template <bool kRotate>
void means_launch(MeansJob job, const AttentionShape& shape, std::int64_t count,
                  const Queue& queue) {
  const bool mla = shape.form == Form::mla;
  const bool wide = (!mla || (rows_aligned(job.nope, 8) && aligned_16(job.means.nope))) &&
                    rows_aligned(job.rope, kRotate ? 16 : 8) && aligned_16(job.cosine) &&
                    aligned_16(job.sine);
  const int vec = wide ? 8 : 1;
  job.heads = static_cast<int>(shape.heads);
  if (mla) {
    const std::int64_t units = shape.heads * job.nope.width / vec;
    job.nope_parts = static_cast<int>((units + kThreads - 1) / kThreads);
  }
  const std::int64_t blocks = count * (job.nope_parts + job.out_heads);
  if (blocks > INT32_MAX) {
    throw Error(ErrorKind::bad_input,
                "means of queries: too many groups at once; use less than 100 million");
  }
  if (wide) {
    means_kernel<8, kRotate><<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream>>>(job);
  } else {
    means_kernel<1, kRotate><<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream>>>(job);
  }
  check(cudaGetLastError(), "averaging the queries");
}

int rope_heads(const AttentionShape& shape, HeadReduce reduce) {
  return static_cast<int>(reduce == HeadReduce::max ? shape.heads : shape.kv_heads);
}

}  // namespace

void query_means(const AttentionShape& shape, HeadReduce reduce, const Layout& layout,
                 std::int64_t prompt, const QueryRows& queries, std::int64_t first_group,
                 std::int64_t count, const QueryMeans& means, const Queue& queue,
                 const Documents& documents) {
  if (count <= 0) return;
  MeansJob job;
  job.documents = documents;
  job.nope = queries.nope;
  job.rope = queries.rope;
  job.means = means;
  job.layout = layout;
  job.prompt = prompt;
  job.first_group = first_group;
  job.first = queries.first;
  job.rows = queries.rows;
  job.out_heads = rope_heads(shape, reduce);
  means_launch<false>(job, shape, count, queue);
}

void query_each(const AttentionShape& shape, HeadReduce reduce, const QueryRows& queries,
                std::int64_t first_row, std::int64_t count, const QueryMeans& means,
                const Queue& queue) {
  if (count <= 0) return;
  MeansJob job;
  job.nope = queries.nope;
  job.rope = queries.rope;
  job.means = means;
  job.first_group = first_row;
  job.rows = queries.rows;
  job.out_heads = rope_heads(shape, reduce);
  job.each = true;
  means_launch<false>(job, shape, count, queue);
}

void rope_query_means(const AttentionShape& shape, const Layout& layout, const QueryRows& queries,
                      const float* cosine, const float* sine, bool interleaved,
                      const QueryMeans& means, const Queue& queue) {
  if (queries.rows <= 0) return;
  if (queries.rope.width % 2 != 0) {
    throw Error(ErrorKind::bad_input,
                "RoPE rotates pairs of columns: the width of keys must be even");
  }
  MeansJob job;
  job.nope = queries.nope;
  job.rope = queries.rope;
  job.means = means;
  job.layout = layout;
  job.rows = queries.rows;
  job.out_heads = rope_heads(shape, HeadReduce::mean);
  job.cosine = cosine;
  job.sine = sine;
  job.interleaved = interleaved;
  means_launch<true>(job, shape, (queries.rows + layout.group - 1) / layout.group, queue);
}

}  // namespace lca::cuda
