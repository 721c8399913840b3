// The decode kernel for every other shape, and for head reduction `max`: any widths, any number of
// heads, plain loops. Meant to be right, not fast: a job is one query head, so a cache row is read
// once for every head that shares it (from L2, mostly), and every job that needs the representative
// of this step makes it for itself.
//
// Bytes (DeepSeek-V2-Lite at 128K): 10.6 MB from memory but 16 times that from L2; operations: 0.32
// GFLOP on the plain units. Shared memory: one query, one mean of queries, one representative, one
// group's scores and weights, one row of results: (2 · 576 + 576 + 2 · 16 + 512 + 3 · 64) floats.

#include <lca/error.h>

#include <string>

#include "attention/cuda/decode/decode_generic.cuh"

namespace lca::cuda::decoding {
namespace {

using namespace generic;

__global__ void __launch_bounds__(kThreads, 1) generic_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) float memory[];
  const Widths w(args);
  const Shared shared(memory, w);
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int session = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const SessionView view = args.step.sessions[session];
  const Place at = place_of(args, view, static_cast<int>(blockIdx.x));
  const int active = active_blocks(args, at);
  if (static_cast<int>(blockIdx.x) >= active) {
    __syncthreads();
    if (tid == 0) length_advance(args, session, at.n);
    return;
  }
  const Job job{args, w, view, at, shared, session, head / args.sharing, head};
  const bool writes = head % args.sharing == 0;

  for (int d = tid; d < w.score; d += kThreads) shared.query[d] = job.query_of(head, d);
  for (int d = tid; d < w.semantic; d += kThreads) shared.result[d] = 0.f;
  if (at.owns_newest_token() && writes) job.token_store();
  float made_bias = 0;
  if (at.owns_newest_group()) made_bias = job.condense(writes);
  __syncthreads();
  const int far_end = w.far > 0 ? FarEntries(at).end : 0;
  if (at.first < far_end) {
    job.far_make(FarEntries(at).difference);
    __syncthreads();
  }

  float top = -INFINITY;
  float sum = 0;
  for (int first = at.first; first < at.last; first += kTile) {
    const int count = min(kTile, at.last - first);
    for (int e = warp; e < count; e += kWarps) {
      const int entry = first + e;
      const std::int64_t row = job.entry_row(entry);
      const float* const query = entry < far_end ? shared.far : shared.query;
      float dot = 0;
      for (int d = lane; d < w.score; d += 32) dot += query[d] * job.key_of(entry, row, d);
      dot = warp_sum(dot);
      if (lane == 0) {
        float bias = 0;
        if (entry < at.groups) {
          bias = args.bias_all;
          if (args.step.pool.bias != nullptr) {
            bias = at.leaves && entry == at.groups - 1 ? made_bias : args.step.pool.bias[row];
          }
        }
        shared.rows[e] = row;
        shared.logits[e] = (dot * args.step.scale + bias) * kLog2e;
      }
    }
    __syncthreads();
    float best = top;
    for (int e = 0; e < count; ++e) best = fmaxf(best, shared.logits[e]);
    const float keep = exp2f(top - best);
    top = best;
    if (tid < count) shared.probabilities[tid] = exp2f(shared.logits[tid] - best);
    __syncthreads();
    sum *= keep;
    for (int e = 0; e < count; ++e) sum += shared.probabilities[e];
    for (int d = tid; d < w.semantic; d += kThreads) {
      float value = shared.result[d] * keep;
      for (int e = 0; e < count; ++e) {
        value += shared.probabilities[e] * job.semantic_of(first + e, shared.rows[e], d);
      }
      shared.result[d] = value;
    }
    __syncthreads();
  }

  // Partials: [semantic] values, top, sum.
  const std::int64_t job_index = static_cast<std::int64_t>(session) * args.jobs + head;
  const int partial_floats = w.semantic + 2;
  float* const partials = args.partials + job_index * args.blocks * partial_floats;
  const std::int64_t out_row = static_cast<std::int64_t>(session) * args.heads + head;
  bool last = true;
  if (active > 1) {
    float* const mine = partials + static_cast<std::int64_t>(blockIdx.x) * partial_floats;
    for (int d = tid; d < w.semantic; d += kThreads) __stcg(mine + d, shared.result[d]);
    if (tid == 0) {
      __stcg(mine + w.semantic, top);
      __stcg(mine + w.semantic + 1, sum);
    }
    __threadfence();
    __syncthreads();
    if (tid == 0) {
      const bool is_last = atomicAdd(args.job_counts + job_index, 1) == active - 1;
      if (is_last) args.job_counts[job_index] = 0;
      __threadfence();
      shared.sums[0] = is_last ? 1.f : 0.f;
    }
    __syncthreads();
    last = shared.sums[0] != 0.f;
  }
  if (last) {
    for (int d = tid; d < w.semantic; d += kThreads) {
      Partial all{top, sum, {shared.result[d], 0.f, 0.f, 0.f}};
      if (active > 1) {
        all = partials_merge(active, [&](int k) -> Partial {
          const float* from = partials + static_cast<std::int64_t>(k) * partial_floats;
          return {__ldcg(from + w.semantic),
                  __ldcg(from + w.semantic + 1),
                  {__ldcg(from + d), 0.f, 0.f, 0.f}};
        });
      }
      args.step.out[out_row * w.semantic + d] = __float2bfloat16(all.value.x / all.sum);
      if (d == 0 && args.step.lse != nullptr) {
        args.step.lse[out_row] = (all.top + log2f(all.sum)) * kLn2;
      }
    }
  }
  if (tid == 0) length_advance(args, session, at.n);
}

}  // namespace

void launch_generic(const Args& args, const Queue& queue) {
  const std::size_t bytes = static_cast<std::size_t>(Widths(args).floats()) * sizeof(float);
  const Device& device = *queue.device;
  if (bytes > device.shared_bytes) {
    throw Error(ErrorKind::bad_input,
                "the GPU cannot decode with entries this wide and groups of " +
                    std::to_string(args.step.settings.group) + ": that needs " +
                    std::to_string(bytes) + " bytes of shared memory and there are " +
                    std::to_string(device.shared_bytes) + "; use smaller groups or the CPU");
  }
  device.shared_allow(reinterpret_cast<const void*>(generic_kernel), bytes);
  const dim3 grid(static_cast<unsigned>(args.blocks), static_cast<unsigned>(args.jobs),
                  static_cast<unsigned>(args.step.batch));
  generic_kernel<<<grid, kThreads, bytes, queue.stream>>>(args);
  check(cudaGetLastError(), "a decode step");
}

}  // namespace lca::cuda::decoding
