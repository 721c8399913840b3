// Random values in place, one hash of the index each: for benchmarks, where only the absence of
// structure (and of zeros, which cost less power) matters. Writes once, reads nothing.

#include "ops/cuda/random_fill.h"

namespace lca::cuda {
namespace {

/// Four uniform numbers from the bytes of a hash; their sum is nearly normal.
__device__ float nearly_normal(std::uint64_t index, std::uint32_t seed) {
  std::uint64_t x = index * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  float sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>((x >> (16 * part)) & 0xffff);
  // Each part has the variance (2^16)² / 12.
  return (sum / 65536.0f - 2.0f) * 1.7320508f;
}

template <typename T>
__global__ void fill(T* data, std::int64_t count, float deviation, std::uint32_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    data[i] = static_cast<T>(deviation * nearly_normal(static_cast<std::uint64_t>(i), seed));
  }
}

__global__ void fill_value(float* data, std::int64_t count, float value) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += step) data[i] = value;
}

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 4096;
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

template <typename T>
void launch(T* data, std::int64_t count, float deviation, std::uint32_t seed, cudaStream_t stream) {
  if (count <= 0) return;
  fill<T><<<blocks_for(count), kThreads, 0, stream>>>(data, count, deviation, seed);
  check(cudaGetLastError(), "filling memory with random values");
}

}  // namespace

void random_fill(bf16* data, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream) {
  launch(data, count, deviation, seed, stream);
}

void random_fill(float* data, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream) {
  launch(data, count, deviation, seed, stream);
}

void value_fill(float* data, std::int64_t count, float value, cudaStream_t stream) {
  if (count <= 0) return;
  fill_value<<<blocks_for(count), kThreads, 0, stream>>>(data, count, value);
  check(cudaGetLastError(), "filling memory");
}

}  // namespace lca::cuda
