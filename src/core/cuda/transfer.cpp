#include "core/cuda/transfer.h"

#include <cstring>

#include "core/bf16.h"

namespace lca::cuda {

void Transfer::fill(void* data, std::size_t bytes, int byte) const {
  if (bytes == 0) return;
  check(cudaMemsetAsync(data, byte, bytes, stream_), "filling GPU memory");
}

void Transfer::device_copy(const void* from, std::size_t bytes, void* to, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying on the GPU");
}

void Transfer::upload(const ConstTensor& from, bf16* to) {
  const auto [rows, columns, width] = from.shape;
  const auto count = static_cast<std::size_t>(rows * columns * width);
  if (count == 0) return;
  staging_.resize(count);
  std::uint16_t* at = staging_.data();
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j, at += width) {
      const void* row = from.row(i, j);
      if (from.dtype == DType::bf16) {
        std::memcpy(at, row, static_cast<std::size_t>(width) * 2);
      } else {
        const auto* values = static_cast<const float*>(row);
        std::transform(values, values + width, at, bf16_from_f32);
      }
    }
  }
  upload_bytes(staging_.data(), count * 2, to);
}

void Transfer::upload_bytes(const void* from, std::size_t bytes, void* to) const {
  if (bytes == 0) return;
  // From pageable memory the call returns when it has read all of it.
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying to the GPU");
}

void Transfer::download(const bf16* from, std::int64_t count, float* to) {
  staging_.resize(static_cast<std::size_t>(count));
  download_bytes(from, staging_.size() * 2, staging_.data());
  std::transform(staging_.begin(), staging_.end(), to, bf16_to_f32);
}

void Transfer::download_bytes(const void* from, std::size_t bytes, void* to) const {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "running on the GPU");
}

}  // namespace lca::cuda
