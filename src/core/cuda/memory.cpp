#include "core/cuda/memory.h"

#include <atomic>

#include "core/error.h"

namespace lca::cuda {

namespace {

std::atomic<std::size_t> device_bytes_held{0};
std::atomic<std::size_t> peak_bytes{0};

/// Of the current GPU.
std::size_t memory_free() {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  return free;
}

}  // namespace

std::size_t memory_held() { return device_bytes_held; }
std::size_t memory_peak() { return peak_bytes; }
void memory_peak_reset() { peak_bytes = device_bytes_held.load(); }

void memory_count(std::ptrdiff_t bytes) {
  const std::size_t held = device_bytes_held +=
      static_cast<std::size_t>(bytes);  // wraps to subtract
  std::size_t peak = peak_bytes;
  while (held > peak && !peak_bytes.compare_exchange_weak(peak, held)) {
  }
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const cudaError_t status = cudaMalloc(&data_, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    memory_lacks(static_cast<double>(bytes), "an allocation");
  }
  check(status, "allocating GPU memory");
  memory_count(static_cast<std::ptrdiff_t>(bytes));
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  cudaFree(data_);
  memory_count(-static_cast<std::ptrdiff_t>(bytes_));
}

void Buffer::require(std::size_t bytes) {
  if (bytes <= bytes_) return;
  { const Buffer old = std::move(*this); }  // freed before the new one is allocated
  *this = Buffer(bytes);
}

Stream::Stream(const Device& device) : device_(device) {
  const DeviceScope scope(device);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::wait() const { check(cudaStreamSynchronize(stream_), "running on the GPU"); }

void memory_require(double bytes, const std::string& what) {
  if (bytes > static_cast<double>(memory_free())) memory_lacks(bytes, what);
}

void memory_lacks(double bytes, const std::string& what) {
  const auto text = [](double size) {
    constexpr double kMiB = 1024.0 * 1024, kGiB = 1024 * kMiB;
    return size < kGiB ? fmt::format("{:.1f} MiB", size / kMiB)
                       : fmt::format("{:.1f} GiB", size / kGiB);
  };
  fail_memory(
      "{} needs {} more of GPU memory and {} are free; close a session, or use a shorter context "
      "or a smaller batch",
      what, text(bytes), text(static_cast<double>(memory_free())));
}

}  // namespace lca::cuda
