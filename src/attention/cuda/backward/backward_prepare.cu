/// Before and after the products of the backward pass: statistics of rows, queries as sink and
/// representatives see them, and the sum over heads that share a RoPE key.
///
/// Bounds     DeepSeek-V2-Lite, 64K: out and dout are 537 MB, 0.13 ms; the partials of RoPE keys
///            are 285 MB, written once and read once, 0.14 ms.

#include "attention/cuda/backward/backward_plan.h"
#include "attention/cuda/prefill/run_table.cuh"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {
namespace {

/// The run of a list whose `first` is the last one not above `index`.
template <typename First>
__device__ __forceinline__ const BackwardRun& run_find(const BackwardRun* runs, int count,
                                                       std::int64_t index, First first) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first(runs[middle]) <= index ? low : high) = middle;
  }
  return runs[low];
}

// --- statistics ----------------------------------------------------------------------------------

struct StatJob {
  const BackwardRun* runs;
  int run_count, heads;
  const bf16* out;
  HeadRows dout;
  const float* lse_in;
  std::int64_t stat_rows;
  float *lse, *delta;
};

constexpr int kStatLanes = 16;  // a row of one head

template <bool kVector>
__global__ void __launch_bounds__(256) stat_kernel(const StatJob job) {
  const int lane = threadIdx.x % kStatLanes;
  const std::int64_t item =
      static_cast<std::int64_t>(blockIdx.x) * (256 / kStatLanes) + threadIdx.x / kStatLanes;
  const bool real = item < job.stat_rows * job.heads;
  const std::int64_t stat = real ? item / job.heads : 0;
  const int head = static_cast<int>(real ? item % job.heads : 0);
  const BackwardRun& run =
      run_find(job.runs, job.run_count, stat, [](const BackwardRun& r) { return r.stat_row; });
  const std::int64_t position = stat - run.stat_row;
  const std::int64_t row = run.query_row + position;
  const bool held = position < run.count;
  const int width = job.dout.width;
  float sum = 0;
  if (held) {
    const bf16* const out = job.out + (row * job.heads + head) * width;
    const bf16* const dout =
        job.dout.data + row * job.dout.row_stride + head * job.dout.head_stride;
    if constexpr (kVector) {
      for (int c = lane * 8; c < width; c += kStatLanes * 8) {
        const uint4 a = *reinterpret_cast<const uint4*>(out + c);
        const uint4 b = *reinterpret_cast<const uint4*>(dout + c);
        const std::uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 u = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x[i]));
          const float2 v = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(y[i]));
          sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
        }
      }
    } else {
      for (int c = lane; c < width; c += kStatLanes) {
        sum = fmaf(__bfloat162float(out[c]), __bfloat162float(dout[c]), sum);
      }
    }
  }
#pragma unroll
  for (int by = kStatLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (real && lane == 0) {
    const std::int64_t to = head * job.stat_rows + stat;
    job.delta[to] = sum;
    job.lse[to] = held ? job.lse_in[row * job.heads + head] * kLog2e : INFINITY;
  }
}

// --- queries as sink and representatives see them ------------------------------------------------

struct FarJob {
  const BackwardRun* runs;
  int run_count, heads;
  Layout32 layout;
  RotationView rotation;
  HeadRows query;
  bf16* far;
};

/// One block rotates all heads of one query: they share their angles.
__global__ void __launch_bounds__(128) far_kernel(const FarJob job) {
  __shared__ Turn turns[128];
  const std::int64_t stat = blockIdx.x;
  const BackwardRun& run =
      run_find(job.runs, job.run_count, stat, [](const BackwardRun& r) { return r.stat_row; });
  const int position = static_cast<int>(stat - run.stat_row);
  if (position >= run.count) return;
  const int pairs = job.rotation.pairs;
  const int difference = -job.layout.position_shift(position + 1);
  if (threadIdx.x < pairs) {
    turns[threadIdx.x] = turn_of(__ldg(job.rotation.steps + threadIdx.x), difference);
  }
  __syncthreads();
  const std::int64_t row = run.query_row + position;
  const int width = job.query.width;
  const int rest = width - 2 * pairs;  // channels that are not rotated
  for (int i = threadIdx.x; i < job.heads * (pairs + rest); i += 128) {
    const int head = i / (pairs + rest);
    const int at = i % (pairs + rest);
    const bf16* const from =
        job.query.data + row * job.query.row_stride + head * job.query.head_stride;
    bf16* const to = job.far + (row * job.heads + head) * width;
    if (at >= pairs || difference == 0) {
      // Where nothing is dropped the two forms are the same bits.
      if (at >= pairs) {
        to[pairs + at] = from[pairs + at];
      } else {
        const int2 channel = pair_channels(job.rotation, at);
        to[channel.x] = from[channel.x];
        to[channel.y] = from[channel.y];
      }
      continue;
    }
    const int2 channel = pair_channels(job.rotation, at);
    const float2 value =
        turns[at](__bfloat162float(from[channel.x]), __bfloat162float(from[channel.y]));
    to[channel.x] = __float2bfloat16_rn(value.x);
    to[channel.y] = __float2bfloat16_rn(value.y);
  }
}

// --- the sum over heads --------------------------------------------------------------------------

struct SumJob {
  const BackwardRun* runs;
  int run_count, heads;
  std::int64_t keys;
  float scale;
  const float *rope, *bias;
  GradRows exact, groups;
  float* dbias;
};

constexpr int kSumLanes = kRopePartial / 4;  // of one key

/// Heads are added in the order 0, 1, … H − 1.
__global__ void __launch_bounds__(256) heads_sum_kernel(const SumJob job) {
  const int lane = threadIdx.x % kSumLanes;
  const std::int64_t key =
      static_cast<std::int64_t>(blockIdx.x) * (256 / kSumLanes) + threadIdx.x / kSumLanes;
  if (key >= job.keys) return;
  const BackwardRun& run =
      run_find(job.runs, job.run_count, key, [](const BackwardRun& r) { return r.key_first; });
  const std::int64_t index = key - run.key_first;
  const bool group = index >= run.count;
  const std::int64_t row = group ? run.group_row + index - run.count : run.exact_row + index;
  const GradRows& to = group ? job.groups : job.exact;
  if (to.data != nullptr) {
    float4 sum{0, 0, 0, 0};
#pragma unroll 4
    for (int h = 0; h < job.heads; ++h) {
      const float4 x = *reinterpret_cast<const float4*>(
          job.rope + (h * job.keys + key) * kRopePartial + lane * 4);
      sum.x += x.x;
      sum.y += x.y;
      sum.z += x.z;
      sum.w += x.w;
    }
    *reinterpret_cast<uint2*>(to.data + row * to.row_stride + lane * 4) =
        uint2{pack_bf16(sum.x * job.scale, sum.y * job.scale),
              pack_bf16(sum.z * job.scale, sum.w * job.scale)};
  }
  if (group && job.dbias != nullptr && lane == 0) {
    float sum = 0;
    for (int h = 0; h < job.heads; ++h) sum += job.bias[h * job.keys + key];
    job.dbias[row] = sum;
  }
}

// --- the sum over slices -------------------------------------------------------------------------

struct SliceJob {
  const BackwardRun* runs;
  int run_count, kv_heads, bias_heads;
  bool far;  // sinks and representatives, else other tokens
  std::int64_t sink;
  KeySlices slices;
  int nope, rope, value;  // widths; GQA's key is all `nope` here
  float scale;
  KeyGrads exact, groups;
  float *rope_partials, *bias_partials;
  std::int64_t keys;
  float* dbias;
};

/// Four columns of one key and KV head; slices are added in the order 0, 1, …
__global__ void __launch_bounds__(256) slices_sum_kernel(const SliceJob job) {
  const int score = job.nope + job.rope;
  const int width = score + job.value + kSlicePad;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t pair = item / (width / 4);  // key and KV head
  if (pair >= job.slices.rows * job.kv_heads) return;
  const int column = static_cast<int>(item % (width / 4)) * 4;
  const std::int64_t key = pair / job.kv_heads;
  const int kv = static_cast<int>(pair % job.kv_heads);
  const bool far = job.far;
  const BackwardRun& run = run_find(job.runs, job.run_count, key, [far](const BackwardRun& r) {
    return far ? r.first_far_row : r.first_local_row;
  });
  const std::int64_t sink = min(job.sink, static_cast<std::int64_t>(run.count));
  const std::int64_t in_run = key - (far ? run.first_far_row : run.first_local_row);
  const bool group = far && in_run >= sink;
  const std::int64_t index = group ? in_run - sink : far ? in_run : in_run + sink;
  const std::int64_t row = index + (group ? run.group_row : run.exact_row);
  const std::int64_t key_index = run.key_first + (group ? run.count : 0) + index;

  float4 sum{0, 0, 0, 0};
  for (int s = 0; s < job.slices.count; ++s) {
    const float4 x = *reinterpret_cast<const float4*>(
        job.slices.partials + (s * job.slices.rows * job.kv_heads + pair) * width + column);
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  }
  const KeyGrads& to = group ? job.groups : job.exact;
  const auto write = [&](const GradRows& rows, int at, float scale) {
    if (rows.data == nullptr) return;
    *reinterpret_cast<uint2*>(rows.data + row * rows.row_stride + kv * rows.head_stride + at) =
        uint2{pack_bf16(sum.x * scale, sum.y * scale), pack_bf16(sum.z * scale, sum.w * scale)};
  };
  if (column < job.nope) {
    write(job.rope > 0 ? to.nope : to.rope, column, job.scale);
  } else if (column < score) {
    *reinterpret_cast<float4*>(job.rope_partials + (kv * job.keys + key_index) * kRopePartial +
                               column - job.nope) = sum;
  } else if (column < score + job.value) {
    write(to.value, column - score, 1.0f);
  } else if (group && job.dbias != nullptr) {
    if (job.rope > 0) {
      job.bias_partials[kv * job.keys + key_index] = sum.x;
    } else {
      job.dbias[row * job.bias_heads + kv] = sum.x;
    }
  }
}

bool vectors(const HeadRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.width % 8 == 0 &&
         rows.row_stride % 8 == 0 && rows.head_stride % 8 == 0;
}

}  // namespace

void backward_prepare(const PrefillBackward& problem, const BackwardPlan& plan,
                      const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  run_table_write(std::span<const BackwardRun>(plan.runs), space.runs, queue);
  check(cudaMemsetAsync(space.counters, 0, 2 * sizeof(int), queue), "clearing work counters");

  const int run_count = static_cast<int>(plan.runs.size());
  const StatJob job{space.runs,  run_count,      forward.heads, forward.out, problem.dout,
                    forward.lse, plan.stat_rows, space.lse,     space.delta};
  const bool vector =
      vectors(problem.dout) && reinterpret_cast<std::uintptr_t>(forward.out) % 16 == 0;
  const std::int64_t at_once = 256 / kStatLanes;
  const auto blocks =
      static_cast<unsigned>((plan.stat_rows * forward.heads + at_once - 1) / at_once);
  if (vector) {
    stat_kernel<true><<<blocks, 256, 0, queue.stream>>>(job);
  } else {
    stat_kernel<false><<<blocks, 256, 0, queue.stream>>>(job);
  }
  check(cudaGetLastError(), "launching the statistics of a backward pass");

  if (space.far != nullptr) {
    const FarJob far{space.runs,       run_count,      forward.heads, layout32(forward.layout),
                     forward.rotation, forward.q_rope, space.far};
    far_kernel<<<static_cast<unsigned>(plan.stat_rows), 128, 0, queue.stream>>>(far);
    check(cudaGetLastError(), "rotating queries for a backward pass");
  }
}

void backward_slices_sum(const PrefillBackward& problem, const BackwardPlan& plan,
                         const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  const bool gqa = forward.form == Form::gqa;
  for (const bool far : {true, false}) {
    const KeySlices& slices = far ? space.far_slices : space.local_slices;
    if (slices.count == 1 || slices.rows == 0) continue;
    SliceJob job{};
    job.runs = space.runs;
    job.run_count = static_cast<int>(plan.runs.size());
    job.kv_heads = key_heads(forward);
    job.bias_heads = gqa ? forward.kv_heads : 1;
    job.far = far;
    job.sink = forward.layout.sink;
    job.slices = slices;
    job.nope = gqa ? forward.q_rope.width : forward.q_nope.width;
    job.rope = gqa ? 0 : forward.q_rope.width;
    job.value = forward.exact.value.width;
    job.scale = forward.scale;
    job.exact = problem.exact;
    job.groups = problem.groups;
    job.rope_partials = space.rope_partials;
    job.bias_partials = space.bias_partials;
    job.keys = plan.keys;
    job.dbias = problem.dbias;
    const std::int64_t threads =
        slices.rows * job.kv_heads * ((job.nope + job.rope + job.value + kSlicePad) / 4);
    slices_sum_kernel<<<static_cast<unsigned>((threads + 255) / 256), 256, 0, queue.stream>>>(job);
    check(cudaGetLastError(), "adding up slices in a backward pass");
  }
}

void backward_heads_sum(const PrefillBackward& problem, const BackwardPlan& plan,
                        const BackwardSpace& space, const Queue& queue) {
  const SumJob job{space.runs,
                   static_cast<int>(plan.runs.size()),
                   problem.forward.heads,
                   plan.keys,
                   problem.forward.scale,
                   space.rope_partials,
                   space.bias_partials,
                   problem.exact.rope,
                   problem.groups.rope,
                   problem.dbias};
  const std::int64_t at_once = 256 / kSumLanes;
  heads_sum_kernel<<<static_cast<unsigned>((plan.keys + at_once - 1) / at_once), 256, 0,
                     queue.stream>>>(job);
  check(cudaGetLastError(), "adding up heads in a backward pass");
}

}  // namespace lca::cuda
