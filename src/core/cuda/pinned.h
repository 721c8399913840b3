#pragma once
/// Host memory that the GPU copies from and to beside other work, and events to wait for.

#include <cstddef>

#include "core/cuda/device.h"

namespace lca::cuda {

/// Page-locked host memory that grows.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* require(std::size_t bytes) {
    if (bytes > bytes_) {
      cudaFreeHost(data_);
      data_ = nullptr;
      bytes_ = 0;
      check(cudaMallocHost(&data_, bytes), "allocating page-locked memory");
      bytes_ = bytes;
    }
    return data_;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// An event without a time.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "an event"); }
  /// Returns at once where nothing was recorded.
  void wait() const { check(cudaEventSynchronize(event_), "running on the GPU"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lca::cuda
