// The queries of a decode step: RoPE parts beside the absorbed ones, their sum over heads, and the
// raw queries into the ring that the next prompt's summaries are made from. Positions come from
// device memory, so that a captured step goes on by itself.
//
// Shapes (DeepSeek-V2-Lite): a session is 16 · (128 + 64) values of 2 bytes, read once and written
// twice at most: 18 KB, 0.6 MB for 32 sessions. No shared memory; a launch is all it costs.

#include "attention/cuda/decode/decode_queries.h"

namespace lca::cuda {
namespace {

constexpr int kThreads = 256;

struct Job {
  StepQueries step;
  int heads, d_nope, d_rope, d_latent;
  bool apart;  // a summary for each head
};

__device__ void rope_lay(const Job& job, int session, int thread, int threads) {
  const int width = job.d_latent + job.d_rope;
  const std::int64_t first = static_cast<std::int64_t>(session) * job.heads;
  for (int i = thread; i < job.heads * job.d_rope; i += threads) {
    const std::int64_t head = first + i / job.d_rope;
    const int column = job.d_latent + i % job.d_rope;
    const bf16 value = job.step.rope[first * job.d_rope + i];
    job.step.absorbed[head * width + column] = value;
    if (job.apart) job.step.summary[head * width + column] = __bfloat162float(value);
  }
}

__device__ void rope_sum(const Job& job, int session, int thread, int threads) {
  for (int i = thread; i < job.d_rope; i += threads) {
    const bf16* const rope =
        job.step.rope + static_cast<std::int64_t>(session) * job.heads * job.d_rope + i;
    float sum = 0;
    for (int h = 0; h < job.heads; ++h) sum += __bfloat162float(rope[h * job.d_rope]);
    job.step.summary[static_cast<std::int64_t>(session) * (job.d_latent + job.d_rope) +
                     job.d_latent + i] = sum;
  }
}

// With summaries head by head the absorbed queries are made in float32, and rounded here.
__device__ void latents_round(const Job& job, int session, int thread, int threads) {
  const int width = job.d_latent + job.d_rope;
  for (int i = thread; i < job.heads * job.d_latent; i += threads) {
    const std::int64_t at =
        (static_cast<std::int64_t>(session) * job.heads + i / job.d_latent) * width +
        i % job.d_latent;
    job.step.absorbed[at] = __float2bfloat16(job.step.summary[at]);
  }
}

// Absorbed queries of all heads in float32: rounded one by one, and their sum.
__device__ void latents_sum(const Job& job, int session, int thread, int threads) {
  const int width = job.d_latent + job.d_rope;
  const std::int64_t first = static_cast<std::int64_t>(session) * job.heads * width;
  for (int i = thread; i < job.d_latent; i += threads) {
    float sum = 0;
#pragma unroll 8
    for (int h = 0; h < job.heads; ++h) {
      const float value = job.step.each[first + h * width + i];
      job.step.absorbed[first + h * width + i] = __float2bfloat16(value);
      sum += value;
    }
    job.step.summary[static_cast<std::int64_t>(session) * width + i] = sum;
  }
}

__device__ void raw_keep(const Job& job, int session, int thread, int threads) {
  const SessionView& view = job.step.sessions[session];
  const int position = view.length;  // of this step's token
  if (position < 0) return;
  const std::int64_t row = position % job.step.recent;
  const auto keep = [&](const bf16* from, bf16* to, int values) {
    for (int i = thread; i < values; i += threads) {
      to[row * values + i] = from[static_cast<std::int64_t>(session) * values + i];
    }
  };
  if (job.d_nope > 0) keep(job.step.nope, view.recent_nope, job.heads * job.d_nope);
  keep(job.step.rope, view.recent_rope, job.heads * job.d_rope);
}

__global__ void __launch_bounds__(kThreads) step_queries_kernel(const __grid_constant__ Job job) {
  const int session = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x) * kThreads;
  if (job.step.absorbed != nullptr) {
    rope_lay(job, session, thread, threads);
    if (job.apart) latents_round(job, session, thread, threads);
    if (job.step.summarise && !job.apart) rope_sum(job, session, thread, threads);
    if (job.step.each != nullptr) latents_sum(job, session, thread, threads);
  }
  if (job.step.recent > 0) raw_keep(job, session, thread, threads);
}

}  // namespace

void step_queries(const StepQueries& step, const Queue& queue) {
  if (step.batch == 0 || (step.absorbed == nullptr && step.recent == 0)) return;
  const AttentionShape& shape = step.shape;
  Job job{step,
          static_cast<int>(shape.heads),
          static_cast<int>(shape.d_nope),
          static_cast<int>(shape.d_rope),
          static_cast<int>(shape.d_latent),
          step.summarise && step.reduce == HeadReduce::max};
  if (shape.form == Form::gqa) job.d_nope = 0;
  const int values = job.heads * (job.d_nope + job.d_rope + (job.apart ? job.d_latent : 0));
  const dim3 grid(static_cast<unsigned>((values + kThreads - 1) / kThreads),
                  static_cast<unsigned>(step.batch));
  step_queries_kernel<<<grid, kThreads, 0, queue.stream>>>(job);
  check(cudaGetLastError(), "preparing a decode step's queries");
}

}  // namespace lca::cuda
