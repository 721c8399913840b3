#pragma once
/// Between host tensors and the GPU's memory, for callers whose tensors are on the host.

#include <lca/tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/head_rows.h"
#include "core/cuda/memory.h"

namespace lca::cuda {

/// Copies and conversions on one stream: bf16 on the device, any type on the host.
class Transfer {
 public:
  explicit Transfer(cudaStream_t stream) : stream_(stream) {}

  /// Rounds a tensor to bf16 and writes it densely to `to`.
  void upload(const ConstTensor& from, bf16* to);
  /// Values as they are.
  template <typename T>
  void upload(std::span<const T> from, T* to) const {
    upload_bytes(from.data(), from.size_bytes(), to);
  }
  /// Waits for the stream.
  void download(const bf16* from, std::int64_t count, float* to);
  template <typename T>
  void download(const T* from, std::int64_t count, T* to) const {
    download_bytes(from, static_cast<std::size_t>(count) * sizeof(T), to);
  }

  /// Copies `count` values on the GPU.
  template <typename T>
  void copy(const T* from, std::int64_t count, T* to) const {
    device_copy(from, static_cast<std::size_t>(count) * sizeof(T), to, stream_);
  }
  /// Fills memory with a byte. 0xff everywhere is a NaN in bf16, float32 and e4m3.
  void fill(void* data, std::size_t bytes, int byte) const;

  static void device_copy(const void* from, std::size_t bytes, void* to, cudaStream_t stream);

 private:
  void upload_bytes(const void* from, std::size_t bytes, void* to) const;
  void download_bytes(const void* from, std::size_t bytes, void* to) const;

  cudaStream_t stream_;
  std::vector<std::uint16_t> staging_;
};

/// Calls visit(position, row, count) for every stretch of positions [first, end) that lies in
/// consecutive rows of a ring: position p is row p % ring.
template <typename Visit>
void ring_visit(std::int64_t first, std::int64_t end, std::int64_t ring, const Visit& visit) {
  while (first < end) {
    const std::int64_t row = first % ring;
    const std::int64_t count = std::min(end - first, ring - row);
    visit(first, row, count);
    first += count;
  }
}

}  // namespace lca::cuda
