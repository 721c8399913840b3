#pragma once
/// Between host tensors and the GPU's memory, for callers that bring everything from the host.

#include <lca/tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Room, copies and conversions on one stream. bf16 on the device, any type on the host.
class Transfer {
 public:
  /// With `poison` every room is full of NaN when it is handed out.
  Transfer(cudaStream_t stream, bool poison) : stream_(stream), poison_(poison) {}

  /// At least `count` values in `buffer`; what was there is lost.
  template <typename T>
  T* room(Buffer& buffer, std::int64_t count) const {
    buffer.require(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T));
    if (poison_) poison(buffer);
    return buffer.as<T>();
  }
  /// The same, full of zeros.
  void* room_of_zeros(Buffer& buffer, std::size_t bytes) const;

  /// Rounds a tensor to bf16 and lays it densely at `to`.
  void upload(const ConstTensor& from, bf16* to);
  void upload(const std::vector<std::int32_t>& from, std::int32_t* to) const;
  /// Waits for the stream.
  void download(const bf16* from, std::int64_t count, float* to);
  void download(const float* from, std::int64_t count, float* to) const;

  /// Copies `count` values on the GPU.
  template <typename T>
  void copy(const T* from, std::int64_t count, T* to) const {
    copy_bytes(from, static_cast<std::size_t>(count) * sizeof(T), to);
  }

 private:
  void poison(const Buffer& buffer) const;
  void copy_bytes(const void* from, std::size_t bytes, void* to) const;

  cudaStream_t stream_;
  bool poison_;
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

/// Throws Error (bad input) where the GPU has not so many bytes left; `what` says what needs them.
void memory_require(double bytes, const std::string& what);

}  // namespace lca::cuda
