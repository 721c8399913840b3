/// The backward pass for every width up to 256 and every GPU since sm_80: plain loops, one warp for
/// one row. Right and slow; Hopper's kernels have the common widths.
///
/// Sums       a warp adds up all that its row receives, in the order of queries or keys; MLA's RoPE
///            key and bias over the heads in their order.

#include "attention/cuda/backward/backward_plan.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda {
namespace {

constexpr int kEach = 256 / 32;  // channels of a lane: lane, lane + 32, …
constexpr int kWarpsPlain = 4;

struct PlainJob {
  const BackwardRun* runs;
  int run_count, heads, heads_per_kv;
  bool gqa;
  Layout32 layout;
  RotationView rotation;
  float scale;
  HeadRows q_nope, q_rope, far, dout;
  KeyRows exact, groups;
  const float* bias;
  int bias_heads;
  float bias_all;
  const float *lse, *delta;
  std::int64_t stat_rows, keys;
  GradRows dq_nope, dq_rope;
  KeyGrads dexact, dgroups;
  float* dbias;
};

__device__ __forceinline__ float warp_total(float x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}

/// A lane's channels of one row: those without position, then the others.
struct PlainRow {
  float x[kEach];

  __device__ __forceinline__ void load(const HeadRows& first, const HeadRows& second,
                                       std::int64_t row, int first_head, int second_head,
                                       int lane) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int c = lane + 32 * e;
      x[e] = 0;
      if (c < first.width) {
        x[e] = __bfloat162float(
            first.data[row * first.row_stride + first_head * first.head_stride + c]);
      } else if (c < first.width + second.width) {
        x[e] = __bfloat162float(second.data[row * second.row_stride +
                                            second_head * second.head_stride + c - first.width]);
      }
    }
  }
  __device__ __forceinline__ float dot(const PlainRow& other) const {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum = fmaf(x[e], other.x[e], sum);
    return warp_total(sum);
  }
  __device__ __forceinline__ void add(float factor, const PlainRow& other) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = fmaf(factor, other.x[e], x[e]);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] = 0;
  }
  /// Writes channels [from, from + width), times `factor`.
  __device__ __forceinline__ void write(const GradRows& to, std::int64_t row, int head, int from,
                                        int width, float factor, int lane) const {
    if (to.data == nullptr) return;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int c = lane + 32 * e - from;
      if (c >= 0 && c < width) {
        to.data[row * to.row_stride + head * to.head_stride + c] =
            __float2bfloat16_rn(x[e] * factor);
      }
    }
  }
};

/// The run that holds query or key `index` of all documents.
template <typename First>
__device__ __forceinline__ const BackwardRun& plain_run(const PlainJob& job, std::int64_t index,
                                                        First first) {
  int low = 0, high = job.run_count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first(job.runs[middle]) <= index ? low : high) = middle;
  }
  return job.runs[low];
}

__device__ __forceinline__ float plain_bias(const PlainJob& job, std::int64_t group_row, int kv) {
  if (job.bias == nullptr) return job.bias_all;
  return job.bias[group_row * job.bias_heads + (job.gqa ? kv : 0)];
}

/// dQ of one query and head.
__global__ void __launch_bounds__(32 * kWarpsPlain) plain_queries_kernel(const PlainJob job) {
  __shared__ float exchange[kWarpsPlain][256];
  const int lane = threadIdx.x % 32;
  const std::int64_t stat = static_cast<std::int64_t>(blockIdx.x) * kWarpsPlain + threadIdx.x / 32;
  const int head = static_cast<int>(blockIdx.y);
  if (stat >= job.stat_rows) return;
  const BackwardRun& run = plain_run(job, stat, [](const BackwardRun& r) { return r.stat_row; });
  const int t = static_cast<int>(stat - run.stat_row);
  if (t >= run.count) return;
  const std::int64_t row = run.query_row + t;
  const int kv = head / job.heads_per_kv;
  const int rope_head = job.gqa ? kv : 0;
  const float lse = job.lse[head * job.stat_rows + stat] * kLn2;
  const float delta = job.delta[head * job.stat_rows + stat];
  const BasicVisible<std::int32_t> visible = job.layout.visible(t);

  PlainRow query, dout, gradient;
  dout.load(job.dout, {}, row, head, 0, lane);
  gradient.clear();
  const auto keys_add = [&](const KeyRows& keys, std::int64_t first, int begin, int end,
                            bool biased) {
    PlainRow key, value;
    for (int i = begin; i < end; ++i) {
      key.load(keys.nope, keys.rope, first + i, kv, rope_head, lane);
      value.load(keys.value, {}, first + i, kv, 0, lane);
      const float bias = biased ? plain_bias(job, first + i, kv) : 0.0f;
      const float p = expf(fmaf(query.dot(key), job.scale, bias - lse));
      gradient.add(p * (dout.dot(value) - delta), key);
    }
  };
  query.load(job.q_nope, job.far, row, head, head, lane);
  keys_add(job.exact, run.exact_row, 0, visible.sink.end, false);
  keys_add(job.groups, run.group_row, 0, visible.groups, true);
  const int shift = job.layout.position_shift(t + 1);
  if (job.rotation.steps != nullptr && shift != 0) {
    // The gradient of the far form to that of the query itself. Pairs lie in different lanes.
    float* const all = exchange[threadIdx.x / 32];
#pragma unroll
    for (int e = 0; e < kEach; ++e) all[lane + 32 * e] = gradient.x[e];
    __syncwarp();
    for (int pair = lane; pair < job.rotation.pairs; pair += 32) {
      const int2 channel = pair_channels(job.rotation, pair);
      const Turn turn = turn_of(__ldg(job.rotation.steps + pair), shift);
      float& x = all[job.q_nope.width + channel.x];
      float& y = all[job.q_nope.width + channel.y];
      const float2 turned = turn(x, y);
      x = turned.x;
      y = turned.y;
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kEach; ++e) gradient.x[e] = all[lane + 32 * e];
  }
  query.load(job.q_nope, job.q_rope, row, head, head, lane);
  keys_add(job.exact, run.exact_row, visible.window.begin, visible.window.end, false);
  gradient.write(job.dq_nope, row, head, 0, job.q_nope.width, job.scale, lane);
  gradient.write(job.dq_rope, row, head, job.q_nope.width, job.q_rope.width, job.scale, lane);
}

/// dK, dV and dbias of one key: of one KV head, or with MLA of all heads.
__global__ void __launch_bounds__(32 * kWarpsPlain) plain_keys_kernel(const PlainJob job) {
  const int lane = threadIdx.x % 32;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarpsPlain + threadIdx.x / 32;
  if (index >= job.keys) return;
  const BackwardRun& run = plain_run(job, index, [](const BackwardRun& r) { return r.key_first; });
  const int in_run = static_cast<int>(index - run.key_first);
  const bool group = in_run >= run.count;
  const int at = group ? in_run - run.count : in_run;
  const KeyRows& keys = group ? job.groups : job.exact;
  const KeyGrads& to = group ? job.dgroups : job.dexact;
  const std::int64_t row = (group ? run.group_row : run.exact_row) + at;
  const bool far = group || at < job.layout.sink;
  const BasicRange<std::int32_t> queries =
      group ? job.layout.group_queries(at, run.count) : job.layout.token_queries(at, run.count);
  const int nope = job.q_nope.width;

  PlainRow key, value, dkey, dvalue;
  float dbias = 0;
  dkey.clear();
  dvalue.clear();
  const int unit = static_cast<int>(blockIdx.y);  // GQA: KV head
  const int first_head = job.gqa ? unit * job.heads_per_kv : 0;
  const int last_head = job.gqa ? first_head + job.heads_per_kv : job.heads;
  for (int head = first_head; head < last_head; ++head) {
    const int kv = job.gqa ? unit : head;
    if (head == first_head || !job.gqa) {
      key.load(keys.nope, keys.rope, row, kv, job.gqa ? kv : 0, lane);
      value.load(keys.value, {}, row, kv, 0, lane);
    }
    const float bias = group ? plain_bias(job, row, kv) : 0.0f;
    for (int t = queries.begin; t < queries.end; ++t) {
      PlainRow query, dout;
      query.load(job.q_nope, far ? job.far : job.q_rope, run.query_row + t, head, head, lane);
      dout.load(job.dout, {}, run.query_row + t, head, 0, lane);
      const std::int64_t stat = head * job.stat_rows + run.stat_row + t;
      const float p = expf(fmaf(query.dot(key), job.scale, bias - job.lse[stat] * kLn2));
      const float ds = p * (dout.dot(value) - job.delta[stat]);
      dvalue.add(p, dout);
      dkey.add(ds, query);
      dbias += ds;
    }
    if (job.gqa) continue;
    dkey.write(to.nope, row, head, 0, nope, job.scale, lane);
    dvalue.write(to.value, row, head, 0, keys.value.width, 1.0f, lane);
    dvalue.clear();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (lane + 32 * e < nope) dkey.x[e] = 0;  // the RoPE part goes on to the next head
    }
  }
  if (job.gqa) dvalue.write(to.value, row, unit, 0, keys.value.width, 1.0f, lane);
  dkey.write(to.rope, row, unit, nope, keys.rope.width, job.scale, lane);
  if (group && job.dbias != nullptr && lane == 0) {
    job.dbias[row * job.bias_heads + unit] = dbias;
  }
}

}  // namespace

void backward_portable(const PrefillBackward& problem, const BackwardPlan& plan,
                       const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  const bool gqa = forward.form == Form::gqa;
  PlainJob job{};
  job.runs = space.runs;
  job.run_count = static_cast<int>(plan.runs.size());
  job.heads = forward.heads;
  job.heads_per_kv = forward.heads / key_heads(forward);
  job.gqa = gqa;
  job.layout = layout32(forward.layout);
  job.rotation = forward.rotation;
  job.scale = forward.scale;
  job.q_nope = forward.q_nope;
  job.q_rope = forward.q_rope;
  job.far = space.far != nullptr ? head_rows(space.far, forward.heads, forward.q_rope.width)
                                 : forward.q_rope;
  job.dout = problem.dout;
  job.exact = forward.exact;
  job.groups = forward.groups;
  job.bias = forward.bias;
  job.bias_heads = gqa ? forward.kv_heads : 1;
  job.bias_all = forward.bias_all;
  job.lse = space.lse;
  job.delta = space.delta;
  job.stat_rows = plan.stat_rows;
  job.keys = plan.keys;
  job.dq_nope = problem.q_nope;
  job.dq_rope = problem.q_rope;
  job.dexact = problem.exact;
  job.dgroups = problem.groups;
  job.dbias = problem.dbias;

  const auto blocks = [](std::int64_t rows) {
    return static_cast<unsigned>((rows + kWarpsPlain - 1) / kWarpsPlain);
  };
  plain_queries_kernel<<<dim3(blocks(plan.stat_rows), static_cast<unsigned>(forward.heads)),
                         32 * kWarpsPlain, 0, queue.stream>>>(job);
  check(cudaGetLastError(), "launching the gradients of queries");
  plain_keys_kernel<<<dim3(blocks(plan.keys), gqa ? static_cast<unsigned>(forward.kv_heads) : 1u),
                      32 * kWarpsPlain, 0, queue.stream>>>(job);
  check(cudaGetLastError(), "launching the gradients of keys");
}

}  // namespace lca::cuda
