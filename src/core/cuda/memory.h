#pragma once
/// Memory and streams of a GPU.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/cuda/device.h"

namespace lca::cuda {

/// Memory on the GPU that is current when it is allocated. Contents start undefined.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  std::size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// Makes it at least this large; contents are lost when it grows.
  void require(std::size_t bytes);

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Hands out pieces of device memory one after another, each aligned to 256 bytes; with null memory
/// it only counts, so that the same code plans and carves.
class DeviceCarver {
 public:
  explicit DeviceCarver(void* memory = nullptr) : memory_(static_cast<std::byte*>(memory)) {}

  template <typename T>
  T* take(std::int64_t count) {
    std::byte* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(piece);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

/// Bytes of what lay(carver) lays out.
template <typename Lay>
std::size_t carved_bytes(const Lay& lay) {
  DeviceCarver carver;
  lay(carver);
  return carver.used();
}

/// A stream that this object owns.
class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  Queue queue() const { return {&device_, stream_}; }
  void wait() const;

 private:
  const Device& device_;
  cudaStream_t stream_ = nullptr;
};

/// Counts memory that is allocated (or, negative, freed) for memory_held and memory_peak: whoever
/// asks the driver for memory calls it.
void memory_count(std::ptrdiff_t bytes);

/// Throws Error (out of memory) where the current GPU has fewer bytes left; `what` says what needs
/// them.
void memory_require(double bytes, const std::string& what);

/// The same after an allocation of so many bytes has failed.
[[noreturn]] void memory_lacks(double bytes, const std::string& what);

}  // namespace lca::cuda
