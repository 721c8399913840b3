#include "attention/cuda/transfer.h"

#include <cstring>

#include "core/bf16.h"
#include "core/error.h"

namespace lca::cuda {

void* Transfer::room_of_zeros(Buffer& buffer, std::size_t bytes) const {
  buffer.require(std::max<std::size_t>(bytes, 1));
  check(cudaMemsetAsync(buffer.as<void>(), 0, buffer.bytes(), stream_), "clearing GPU memory");
  return buffer.as<void>();
}

void Transfer::poison(const Buffer& buffer) const {
  // All bits set is a NaN in bf16, float32 and e4m3.
  check(cudaMemsetAsync(buffer.as<void>(), 0xFF, buffer.bytes(), stream_), "poisoning GPU memory");
}

void Transfer::copy_bytes(const void* from, std::size_t bytes, void* to) const {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying on the GPU");
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
  // From pageable memory the call returns when it has read all of it.
  check(cudaMemcpyAsync(to, staging_.data(), count * 2, cudaMemcpyHostToDevice, stream_),
        "copying to the GPU");
}

void Transfer::upload(const std::vector<std::int32_t>& from, std::int32_t* to) const {
  if (from.empty()) return;
  check(cudaMemcpyAsync(to, from.data(), from.size() * 4, cudaMemcpyHostToDevice, stream_),
        "copying to the GPU");
}

void Transfer::download(const bf16* from, std::int64_t count, float* to) {
  if (count == 0) return;
  staging_.resize(static_cast<std::size_t>(count));
  check(
      cudaMemcpyAsync(staging_.data(), from, staging_.size() * 2, cudaMemcpyDeviceToHost, stream_),
      "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "running on the GPU");
  std::transform(staging_.begin(), staging_.end(), to, bf16_to_f32);
}

void Transfer::download(const float* from, std::int64_t count, float* to) const {
  if (count == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * 4, cudaMemcpyDeviceToHost,
                        stream_),
        "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "running on the GPU");
}

void memory_require(double bytes, const std::string& what) {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (bytes <= static_cast<double>(free)) return;
  fail_input(
      "{} needs {:.1f} GiB of GPU memory and {:.1f} GiB are free; use a shorter context or "
      "a smaller batch",
      what, bytes / kGiB, static_cast<double>(free) / kGiB);
}

}  // namespace lca::cuda
