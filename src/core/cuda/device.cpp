#include "core/cuda/device.h"

#include "core/error.h"

namespace lca::cuda {

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky ends here
  if (status == cudaErrorMemoryAllocation) {
    fail_memory("{}: the GPU's memory is full; use a shorter context or a smaller batch", doing);
  }
  fail_internal("{}: CUDA says: {}", doing, cudaGetErrorString(status));
}

namespace {

struct Found {
  Device device;
  std::string missing;
};

Found device_find() {
  Found found;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    found.missing = fmt::format("no NVIDIA GPU can be used here ({}); use the CPU",
                                status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    return found;
  }
  int index = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&index), "asking for the GPU");
  check(cudaGetDeviceProperties(&properties, index), "asking what the GPU can do");
  found.device = {properties.name,           properties.major,
                  properties.minor,          properties.multiProcessorCount,
                  properties.totalGlobalMem, properties.sharedMemPerBlockOptin};
  if (properties.major < 8) {
    found.missing = fmt::format(
        "the GPU {} (compute capability {}.{}) is too old: the kernels need 8.0; use the CPU",
        properties.name, properties.major, properties.minor);
  }
  return found;
}

const Found& found() {
  static const Found once = device_find();
  return once;
}

}  // namespace

const std::string& device_missing() { return found().missing; }

const Device& device() {
  if (!found().missing.empty()) fail_incompatible("{}", found().missing);
  return found().device;
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), "reserving GPU memory");
}

Buffer::~Buffer() { cudaFree(data_); }

void Buffer::require(std::size_t bytes) {
  if (bytes <= bytes_) return;
  { const Buffer old = std::move(*this); }  // goes before the new is asked for
  *this = Buffer(bytes);
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::wait() const { check(cudaStreamSynchronize(stream_), "running on the GPU"); }

}  // namespace lca::cuda
