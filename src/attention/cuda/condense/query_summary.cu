// From queries straight to absorbed summaries: Σ_h W_uk_hᵀ q̄_h beside Σ_h q̄_h^R (mechanism §3).
//
// Shapes (DeepSeek-V2-Lite, 128K): queries [131072][16][128 + 64] bf16, W_uk [2048][512], summary
// [8128][512 + 64] float. 805 MB read once, 19 MB written: 193 µs at 4.27 TB/s. Two products of
// 17 Gflop (a mean is two bf16, high and low part) hide behind that: 70 µs of tensor cores. Each
// block reads all of W_uk, 266 MB in all, from L2. The means themselves never leave the SM.
//
// Shared memory, 225 KB: means of two heads 64, W_uk 48, sums of the RoPE part 16, queries 96, and
// where each group's queries begin.
//
// How data moves: a block takes 64 groups (127 blocks) and every column of the summary, a warp 32
// of them: 64 × 32 sums in registers. While the tensor cores work on a head, 16 of its columns in a
// step, the next head is averaged. A thread copies (cp.async) just those vectors that it adds up
// itself, all rows of 8 columns of a group, so queries need no barrier and always have 80 KB on
// their way: what one vector leaves free, the vector 12 places later takes. W_uk is a warp's own
// too. Only means are shared: one barrier a head.
#include <lca/error.h>

#include <cstdint>

#include "attention/cuda/condense/condense.h"
#include "attention/cuda/condense/condense_vectors.h"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {
namespace {

constexpr int kGroups = 64;       // of a block
constexpr int kWeightStages = 3;  // one in use, two on their way
constexpr int kBatch = 2;         // vectors that are awaited, added and replaced together

struct SummaryJob {
  HeadRows nope;
  HeadRows rope;
  const bf16* w_uk = nullptr;
  float* summary = nullptr;
  std::int64_t first_row = 0;  // the first group's first query
  std::int64_t group = 0;      // rows from one group's first query to the next one's
  Documents documents;         // a table: first_row counts from a document's begin
  std::int64_t first_group = 0;
  std::int64_t count = 0;
  int queries = 0;  // of a group
  int heads = 0;
};

// kSlots: vectors of queries that a thread has on their way.
template <int kNope, int kRope, int kLatent, int kSlots>
struct Plan {
  static constexpr int kThreads = kLatent;  // 32 columns for each warp
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSteps = kNope / 16;  // products of a head, 16 of its columns each
  static constexpr int kNopeVectors = kNope / 8;
  static constexpr int kRopeVectors = kRope / 8;
  static constexpr int kLatents = kLatent;
  static constexpr int kWidth = kLatent + kRope;
  static constexpr int kBatches = kSlots / kBatch;
  static constexpr int kNopeShift = kNope == 128 ? 4 : 3;
  static constexpr int kRopeShift = kNopeShift - 1;
  static_assert(kNopeVectors == 1 << kNopeShift && kRopeVectors == 1 << kRopeShift);
  // For each head a thread sums up three units: two of the part without position, one of RoPE's.
  static_assert(kGroups * kNopeVectors == 2 * kThreads && kGroups * kRopeVectors == kThreads);
  static_assert(kBatch == 2 && kSlots % kBatch == 0 && kNopeVectors >= 8);

  // Shared memory, in bytes. Means: [head % 2][high, low][kGroups][kNope] bf16.
  static constexpr int kMeanRow = kNope * 2;
  static constexpr int kMeanPart = kGroups * kMeanRow;
  // W_uk: [stage][warp][16 rows][32 columns] bf16.
  static constexpr int kWeightTile = 16 * 64;
  static constexpr int kWeights = 4 * kMeanPart;
  // RoPE's sums: [2][thread] 4 floats.
  static constexpr int kRopeSums = kWeights + kWeightStages * kWarps * kWeightTile;
  // Queries: [slot][thread] 8 bf16.
  static constexpr int kRing = kRopeSums + kThreads * 32;
  static constexpr int kSlotBytes = kThreads * 16;
  // First rows: [group] of 64 bits.
  static constexpr int kFirsts = kRing + kSlots * kSlotBytes;
  static constexpr int kBytes = kFirsts + kGroups * 8;
};

// --- queries -----------------------------------------------------------------------------------

// Where a thread's vectors come from, in the order in which it needs them: for each head unit 0 and
// unit 1 of the part without position, then the RoPE unit, and of each unit all rows.
template <typename P>
struct Source {
  const bf16* from;
  int row;     // of the unit, the next to be copied
  int unit;    // 0, 1, 2
  int head;    // job.heads: all is on its way
  int stride;  // from row to row

  __device__ __forceinline__ void aim(const SummaryJob& job, const std::int64_t* firsts) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool is_rope = unit == 2;
    const int index = unit == 1 ? thread + P::kThreads : thread;
    const int shift = is_rope ? P::kRopeShift : P::kNopeShift;
    const int group = index >> shift;
    const int vector = index & ((1 << shift) - 1);
    const bf16* data = is_rope ? job.rope.data : job.nope.data;
    const std::int64_t row_stride = is_rope ? job.rope.row_stride : job.nope.row_stride;
    const std::int64_t head_stride = is_rope ? job.rope.head_stride : job.nope.head_stride;
    stride = static_cast<int>(row_stride);
    from = data + firsts[group] * row_stride + head * head_stride + vector * 8;
    row = 0;
  }

  // Copies the next kBatch vectors to slots at `slot` on. A unit's last batch may be short.
  __device__ __forceinline__ void batch_copy(const SummaryJob& job, const std::int64_t* firsts,
                                             std::uint32_t slot) {
    if (head >= job.heads) return;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row + i < job.queries) {
        copy_chunk(slot + static_cast<std::uint32_t>(i * P::kSlotBytes), from);
      }
      from += stride;
    }
    row += kBatch;
    if (row >= job.queries) {
      if (++unit == 3) {
        unit = 0;
        ++head;
      }
      aim(job, firsts);
    }
  }
};

__device__ __forceinline__ void vector_add(float (&sum)[8], const uint4& raw) {
  float value[8];
  unpack(raw, value);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += value[i];
}

// The end of a unit's rows: its sum goes where others need it, and starts again from 0.
template <typename P>
__device__ __forceinline__ void unit_finish(unsigned char* shared, float (&sum)[8], int unit,
                                            int parity, float share) {
  const int thread = static_cast<int>(threadIdx.x);
  if (unit == 2) {
    float4* to = reinterpret_cast<float4*>(shared + P::kRopeSums) + thread;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4 total = to[i * P::kThreads];  // this thread's alone
      total.x += sum[4 * i];
      total.y += sum[4 * i + 1];
      total.z += sum[4 * i + 2];
      total.w += sum[4 * i + 3];
      to[i * P::kThreads] = total;
    }
  } else {
    const int index = unit == 1 ? thread + P::kThreads : thread;
    const int group = index / P::kNopeVectors;
    const int vector = index % P::kNopeVectors;
    // Vectors of a row change places by the row's last bits: eight rows then use all banks.
    unsigned char* to =
        shared + parity * 2 * P::kMeanPart + group * P::kMeanRow + ((vector ^ (group & 7)) << 4);
    float rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] *= share;
    const uint4 high = pack(sum);
    unpack(high, rounded);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] -= rounded[i];
    *reinterpret_cast<uint4*>(to) = high;
    *reinterpret_cast<uint4*>(to + P::kMeanPart) = pack(sum);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = 0;
}

// --- products ----------------------------------------------------------------------------------

// Copies a step's 16 rows of W_uk, the warp's 32 columns of them, into a stage. `from` is the
// lane's first vector: row lane / 4, columns 8·(lane % 4) of the 32. Vectors of a row change places
// by bits 1 and 2 of the row, so that eight rows of 64 bytes use all banks.
template <typename P>
__device__ __forceinline__ void weights_copy(std::uint32_t stage, const bf16* from, int lane) {
  const std::uint32_t to = stage + (lane / 4) * 64 + (((lane % 4) ^ (lane / 8 % 4)) << 4);
  copy_chunk(to, from);
  copy_chunk(to + 512, from + 8 * P::kLatents);  // 8 rows on: the same bits 1 and 2
}

// sums[64 × 32] += means[64 × 16 of step k]·W_uk[16 × 32], high and low part.
template <typename P>
__device__ __forceinline__ void step_multiply(float (&sums)[4][4][4], std::uint32_t means,
                                              std::uint32_t weights, int k, int lane) {
  // Lane l names row l % 16, and the upper half of the lanes the second 8 columns.
  const int row = lane % 16;
  std::uint32_t b[2][4];
  const std::uint32_t b_at = weights + row * 64 + (((lane / 16) ^ (row / 2 % 4)) << 4);
  matrix_load_transposed(b[0], b_at);
  matrix_load_transposed(b[1], b_at ^ 32);  // 16 columns on
  // 16 rows on, the row's last three bits are the same.
  const std::uint32_t a_at = means + row * P::kMeanRow + (((2 * k + lane / 16) ^ (row % 8)) << 4);
  std::uint32_t a[2][4];
  matrix_load(a[0], a_at);
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // rows 16·(i / 2) on, part i % 2
    if (i + 1 < 8) {
      matrix_load(a[(i + 1) % 2],
                  a_at + (i + 1) / 2 * 16 * P::kMeanRow + (i + 1) % 2 * P::kMeanPart);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      multiply(sums[i / 2][j], a[i % 2], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <typename P>
__global__ __launch_bounds__(P::kThreads,
                             1) void query_summary_kernel(const __grid_constant__ SummaryJob job) {
  extern __shared__ __align__(128) unsigned char shared[];
  const std::uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int unit_batches = (job.queries + kBatch - 1) / kBatch;
  // Batches that each step takes: three units of the next head in the steps of one.
  const int step_batches = (3 * unit_batches + P::kSteps - 1) / P::kSteps;
  const int steps = job.heads * P::kSteps;
  const float share = 1.0f / static_cast<float>(job.queries);

  float4* rope_sums = reinterpret_cast<float4*>(shared + P::kRopeSums) + thread;
  rope_sums[0] = make_float4(0, 0, 0, 0);
  rope_sums[P::kThreads] = make_float4(0, 0, 0, 0);

  // Where the queries of each group begin. Groups that do not exist are the last one again: their
  // sums are not stored.
  std::int64_t* const firsts = reinterpret_cast<std::int64_t*>(shared + P::kFirsts);
  for (int group = warp; group < kGroups; group += P::kWarps) {
    const std::int64_t wanted = static_cast<std::int64_t>(blockIdx.x) * kGroups + group;
    std::int64_t at = wanted < job.count ? wanted : job.count - 1;
    std::int64_t row = job.first_row;
    if (job.documents.table != nullptr) {
      const DocumentPlace document = document_of_group(job.documents, job.first_group + at, lane);
      row += document.row;
      at += job.first_group - document.group;
    }
    if (lane == 0) firsts[group] = row + at * job.group;
  }
  __syncthreads();

  // W_uk of steps 0 and 1, and the first queries.
  const bf16* weights_from =
      job.w_uk + static_cast<std::int64_t>(lane / 4) * P::kLatents + warp * 32 + lane % 4 * 8;
  const std::uint32_t weights = base + P::kWeights + warp * P::kWeightTile;
  constexpr std::uint32_t kStage = P::kWarps * P::kWeightTile;
#pragma unroll
  for (int s = 0; s < 2; ++s) {  // a head has at least four steps
    weights_copy<P>(weights + s * kStage, weights_from, lane);
    weights_from += 16 * P::kLatents;
  }
  const std::uint32_t ring = base + P::kRing + thread * 16;
  constexpr std::uint32_t kRingBytes = P::kBatches * kBatch * P::kSlotBytes;
  std::uint32_t slot = 0;  // bytes from `ring`; the next batch to be added up
  Source<P> source;
  source.unit = 0;
  source.head = 0;
  source.aim(job, firsts);
#pragma unroll 1
  for (int i = 0; i < P::kBatches; ++i) {
    source.batch_copy(job, firsts, ring + i * kBatch * P::kSlotBytes);
    copy_commit();
  }

  float sum[8] = {};
  int unit = 0;
  int unit_left = unit_batches;
  const bool is_even = job.queries % kBatch == 0;
  // Adds up the oldest batch and sends for another in its place. A thread reads only what it copied
  // itself, so its own wait is enough. `parity`: where means of the current head go.
  const auto batch_take = [&](int parity) {
    copy_wait<P::kBatches - 1>();
    const unsigned char* from = shared + P::kRing + thread * 16 + slot;
    uint4 raw[kBatch];
    raw[0] = *reinterpret_cast<const uint4*>(from);
    raw[1] = *reinterpret_cast<const uint4*>(from + P::kSlotBytes);
    vector_add(sum, raw[0]);
    if (unit_left > 1 || is_even) vector_add(sum, raw[1]);  // else nothing was copied
    source.batch_copy(job, firsts, ring + slot);
    copy_commit();
    slot += kBatch * P::kSlotBytes;
    if (slot == kRingBytes) slot = 0;
    if (--unit_left == 0) {
      unit_finish<P>(shared, sum, unit, parity, share);
      unit_left = unit_batches;
      unit = unit == 2 ? 0 : unit + 1;
    }
  };

#pragma unroll 1
  for (int i = 0; i < 2 * unit_batches; ++i) batch_take(0);
  __syncthreads();

  float sums[4][4][4] = {};  // [16 rows][8 columns] fragments
  int stage = 0;             // of the current step's W_uk
  int step = 0;
#pragma unroll 1
  for (int head = 0; head < job.heads; ++head) {
    // RoPE's unit of this head, then the means of the next one.
    int left = head + 1 < job.heads ? 3 * unit_batches : unit_batches;
    const std::uint32_t means = base + head % 2 * 2 * P::kMeanPart;
#pragma unroll 1
    for (int k = 0; k < P::kSteps; ++k, ++step) {
      __syncwarp();  // the step before has read its stage, which is the one filled now
      const int last = stage == 0 ? kWeightStages - 1 : stage - 1;
      if (step + 2 < steps) {
        weights_copy<P>(weights + last * kStage, weights_from, lane);
        weights_from += 16 * P::kLatents;
      }
      // Every step closes step_batches groups, the first of which holds its copy of W_uk. A wait
      // leaves kBatches − 1 open: two steps on the copy is complete, if those are enough groups.
#pragma unroll 1
      for (int i = 0; i < step_batches; ++i) {
        if (left > 0) {
          batch_take((head + 1) % 2);
          --left;
        } else {
          copy_commit();
          copy_wait<P::kBatches - 1>();
        }
      }
      if (2 * step_batches < P::kBatches) copy_wait<0>();
      __syncwarp();  // the other lanes' copies of W_uk
      step_multiply<P>(sums, means, weights + stage * kStage, k, lane);
      stage = stage + 1 == kWeightStages ? 0 : stage + 1;
    }
    __syncthreads();  // the next head's means are whole; this head's may be overwritten
  }

  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroups;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::int64_t at = first + i * 8 + lane / 4;
    if (at < job.count) {
      float* to = job.summary + at * P::kWidth + warp * 32 + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&c)[4] = sums[i / 2][j];
        *reinterpret_cast<float2*>(to + j * 8) = make_float2(c[i % 2 * 2], c[i % 2 * 2 + 1]);
      }
    }
  }
  const std::int64_t at = first + thread / P::kRopeVectors;
  if (at < job.count) {
    float* to = job.summary + at * P::kWidth + P::kLatents + thread % P::kRopeVectors * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 total = rope_sums[i * P::kThreads];
      reinterpret_cast<float4*>(to)[i] =
          make_float4(total.x * share, total.y * share, total.z * share, total.w * share);
    }
  }
}

// --- host --------------------------------------------------------------------------------------

using DeepSeek = Plan<128, 64, 512, 12>;
using MiniCpm = Plan<64, 32, 256, 24>;  // half the threads: twice the vectors of each on their way

template <typename P>
bool plan_matches(const AttentionShape& shape) {
  return shape.d_nope == P::kSteps * 16 && shape.d_rope == P::kRopeVectors * 8 &&
         shape.d_latent == P::kLatents;
}

bool rows_fit(const HeadRows& rows, std::int64_t width) {
  constexpr std::int64_t kMostStride = 1 << 30;
  return rows.width == width && rows.row_stride % 8 == 0 && rows.row_stride >= 0 &&
         rows.row_stride <= kMostStride && rows.head_stride % 8 == 0 && aligned_16(rows.data);
}

template <typename P>
void summary_launch(const SummaryJob& job, const Queue& queue) {
  queue.device->shared_allow(reinterpret_cast<const void*>(query_summary_kernel<P>), P::kBytes);
  const auto blocks = static_cast<unsigned>((job.count + kGroups - 1) / kGroups);
  query_summary_kernel<P><<<blocks, P::kThreads, P::kBytes, queue.stream>>>(job);
  check(cudaGetLastError(), "summarising the queries");
}

}  // namespace

bool query_summary_fits(const Device& device, const AttentionShape& shape, HeadReduce reduce,
                        const Layout* layout, const QueryRows& queries, std::int64_t first_group,
                        const bf16* w_uk) {
  if (shape.form != Form::mla || reduce == HeadReduce::max || shape.heads < 1) return false;
  std::size_t bytes = 0;
  if (plan_matches<DeepSeek>(shape)) {
    bytes = DeepSeek::kBytes;
  } else if (plan_matches<MiniCpm>(shape)) {
    bytes = MiniCpm::kBytes;
  } else {
    return false;
  }
  if (layout != nullptr) {
    // Each group needs as many queries as every other; ranges cut off at position 0 have fewer.
    constexpr std::int64_t kMostQueries = 1 << 20;
    const std::int64_t n_q = layout->summary_queries;
    if (n_q < 1 || n_q > kMostQueries || layout->summary_range(first_group, 0).size() != n_q) {
      return false;
    }
  }
  return rows_fit(queries.nope, shape.d_nope) && rows_fit(queries.rope, shape.d_rope) &&
         aligned_16(w_uk) && device.shared_bytes >= bytes;
}

bool query_summary_pays(const Device& device, std::int64_t count) {
  // A block takes its time however few they are; with less than half of the SMs at work, means and
  // products apart are faster.
  return count >= std::int64_t{kGroups} * device.multiprocessors / 2;
}

namespace {

void summary_launch_any(const AttentionShape& shape, SummaryJob job, const QueryRows& queries,
                        const bf16* w_uk, float* summary, bool fits, const Queue& queue) {
  if (!fits || !aligned_16(summary)) {
    throw Error(ErrorKind::bad_input,
                "summaries of queries: no kernel for these widths or addresses; ask "
                "query_summary_fits first");
  }
  job.nope = queries.nope;
  job.rope = queries.rope;
  job.w_uk = w_uk;
  job.summary = summary;
  job.heads = static_cast<int>(shape.heads);
  if (plan_matches<DeepSeek>(shape)) {
    summary_launch<DeepSeek>(job, queue);
  } else {
    summary_launch<MiniCpm>(job, queue);
  }
}

}  // namespace

void query_summary(const AttentionShape& shape, const Layout& layout, const QueryRows& queries,
                   std::int64_t first_group, std::int64_t count, const bf16* w_uk, float* summary,
                   const Queue& queue, const Documents& documents) {
  if (count <= 0) return;
  SummaryJob job{};
  job.documents = documents;
  job.first_group = first_group;
  job.first_row = documents.table == nullptr
                      ? layout.summary_range(first_group, 0).begin - queries.first
                      : layout.summary_range(0, 0).begin;
  job.group = layout.group;
  job.count = count;
  job.queries = static_cast<int>(layout.summary_queries);
  summary_launch_any(shape, job, queries, w_uk, summary,
                     query_summary_fits(*queue.device, shape, HeadReduce::mean, &layout, queries,
                                        documents.table == nullptr ? first_group : 0, w_uk),
                     queue);
}

void query_summary_each(const AttentionShape& shape, const QueryRows& queries,
                        std::int64_t first_row, std::int64_t count, const bf16* w_uk,
                        float* summary, const Queue& queue) {
  if (count <= 0) return;
  SummaryJob job{};
  job.first_row = first_row;
  job.group = 1;
  job.count = count;
  job.queries = 1;
  summary_launch_any(
      shape, job, queries, w_uk, summary,
      query_summary_fits(*queue.device, shape, HeadReduce::mean, nullptr, queries, 0, w_uk), queue);
}

}  // namespace lca::cuda
