#include "core/cuda/memory.h"

#include <atomic>

#include "core/error.h"

namespace lca::cuda {

namespace {

std::atomic<std::size_t> device_bytes_held{0};
std::atomic<std::size_t> peak_bytes{0};

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
  check(cudaMalloc(&data_, bytes), "allocating GPU memory");
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
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (bytes <= static_cast<double>(free)) return;
  fail_memory(
      "{} needs {:.1f} GiB of GPU memory and {:.1f} GiB are free; use a shorter context or "
      "a smaller batch",
      what, bytes / kGiB, static_cast<double>(free) / kGiB);
}

}  // namespace lca::cuda
