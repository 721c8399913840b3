#pragma once
/// Addresses on a GPU that get memory piece by piece: an array of any size that grows without
/// moving, so that captured graphs and tensor maps stay valid.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "core/cuda/device.h"

namespace lca::cuda {

/// Bytes of a granule of memory on every GPU that kernels are made for; plans count with it.
inline constexpr std::size_t kGranuleBytes = std::size_t{2} << 20;

/// A range of addresses, backed with granules of memory where it is held. Several holders
/// may share a granule: it is backed while there is one. For one thread at a time.
class BackedMemory {
 public:
  BackedMemory() = default;
  /// Reserves addresses; costs no memory.
  BackedMemory(const Device& device, std::size_t bytes);
  ~BackedMemory();
  BackedMemory(BackedMemory&& other) noexcept { swap(other); }
  BackedMemory& operator=(BackedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(base_);
  }
  std::size_t bytes() const { return bytes_; }

  /// Backs [begin, begin + bytes), cut off at the end of the addresses. Throws Error (out of
  /// memory), and backs nothing, where the GPU has too little. New granules are filled with 0xff
  /// where `poison` is given a stream.
  void hold(std::size_t begin, std::size_t bytes, const cudaStream_t* poison = nullptr);
  /// The inverse. No kernel in flight may use what nobody holds any more.
  void drop(std::size_t begin, std::size_t bytes) noexcept;
  /// Bytes that `hold` would have to allocate.
  std::size_t missing(std::size_t begin, std::size_t bytes) const;
  /// The same for one of several ranges in ascending order, which may share granules: those before
  /// `next` are counted already, and it moves behind this range.
  std::size_t missing_after(std::size_t& next, std::size_t begin, std::size_t bytes) const;
  /// Bytes backed now.
  std::size_t backed() const { return granules_.size() * granule_; }
  /// Whether `drop` of the range would give memory back.
  bool last_holder(std::size_t begin, std::size_t bytes) const;

 private:
  struct Granule {
    CUmemGenericAllocationHandle memory = 0;
    int holders = 0;
  };
  struct Span {
    std::size_t first, end;  // granules
  };
  Span span_of(std::size_t begin, std::size_t bytes) const;
  void swap(BackedMemory& other) noexcept;
  bool granule_hold(std::size_t index, std::size_t needed);
  void release(std::size_t granule) noexcept;

  int device_ = 0;
  CUdeviceptr base_ = 0;
  std::size_t bytes_ = 0;     // as asked for
  std::size_t reserved_ = 0;  // in whole granules
  std::size_t granule_ = 1;
  std::unordered_map<std::size_t, Granule> granules_;
};

}  // namespace lca::cuda
