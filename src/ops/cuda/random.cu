// Four uniform numbers of 16 bits from one hash make a number that is near enough to normal: sums
// over rows of weights, which is what a model does with them, are normal anyway.

#include <algorithm>

#include "ops/cuda/random.h"

namespace lca::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float random_at(std::uint64_t seed, std::int64_t index, float deviation) {
  std::uint64_t bits = (seed + static_cast<std::uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += static_cast<int>((bits >> (16 * i)) & 0xffff);
  // The sum of four has mean 2·65535 and a deviation of 65536 / √3.
  return static_cast<float>(sum - 131070) * (1.7320508f / 65536) * deviation;
}

__device__ void store(bf16* to, float value) { *to = __float2bfloat16(value); }
__device__ void store(float* to, float value) { *to = value; }

template <typename T>
__global__ void random_kernel(T* to, std::int64_t count, float deviation, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    store(to + i, random_at(seed, i, deviation));
  }
}

__global__ void value_kernel(float* to, std::int64_t count, float value) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    to[i] = value;
  }
}

int blocks_for(std::int64_t count, const Queue& queue) {
  const std::int64_t most = std::int64_t{16} * queue.device->multiprocessors;
  return static_cast<int>(std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, most));
}

}  // namespace

void random_fill(bf16* to, std::int64_t count, float deviation, std::uint64_t seed,
                 const Queue& queue) {
  random_kernel<<<blocks_for(count, queue), kThreads, 0, queue.stream>>>(to, count, deviation,
                                                                         seed);
  check(cudaGetLastError(), "making random numbers");
}

void random_fill(float* to, std::int64_t count, float deviation, std::uint64_t seed,
                 const Queue& queue) {
  random_kernel<<<blocks_for(count, queue), kThreads, 0, queue.stream>>>(to, count, deviation,
                                                                         seed);
  check(cudaGetLastError(), "making random numbers");
}

void value_fill(float* to, std::int64_t count, float value, const Queue& queue) {
  value_kernel<<<blocks_for(count, queue), kThreads, 0, queue.stream>>>(to, count, value);
  check(cudaGetLastError(), "filling memory");
}

}  // namespace lca::cuda
