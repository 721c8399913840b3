#pragma once
/// The GPU: finding it, its memory, and CUDA's return codes as errors. Only in builds with CUDA.

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

namespace lca::cuda {

/// Throws Error where a CUDA call went wrong; `doing` says what was tried ("copying the queries").
void check(cudaError_t status, const char* doing);

/// What kernels are planned with.
struct Device {
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t memory = 0;        ///< bytes in all
  std::size_t shared_bytes = 0;  ///< shared memory that one block may ask for
  bool hopper() const { return major == 9 && minor == 0; }
};

/// Why no GPU can be used here, in one line; empty where one can.
const std::string& device_missing();

/// The GPU that is current when first asked for; throws Error where there is none.
const Device& device();

/// Which kernels run: the best the GPU has, or those that run on every GPU since sm_80.
enum class Kernels { fast, portable };

/// Memory on the GPU, of its own. Contents start undefined.
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

/// A stream of its own.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace lca::cuda
