#pragma once
/// One GPU as an object, and CUDA's return codes as errors. Only in builds with CUDA; device_name.h
/// has what every build has.

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/cuda/device_name.h"

namespace lca::cuda {

/// Throws Error where a CUDA call went wrong; `doing` names what was tried ("copying the queries").
void check(cudaError_t status, const char* doing);

/// Which kernels run: the best the GPU has, or those that run on every GPU since sm_80.
enum class Kernels { fast, portable };

/// What kernels are planned with, and what has been prepared on this GPU. One object per ordinal,
/// alive until the process ends; every call that depends on the GPU is handed the one it runs on.
class Device {
 public:
  /// GPU `ordinal`; throws Error (incompatible) where it cannot be used.
  static const Device& at(int ordinal);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal = 0;
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t memory = 0;        ///< bytes in all
  std::size_t cache = 0;         ///< bytes of L2
  std::size_t shared_bytes = 0;  ///< shared memory that one block may ask for
  bool hopper() const { return major == 9 && minor == 0; }

  /// Makes this GPU the calling thread's current one.
  void select() const;
  /// Allows `kernel` so much dynamic shared memory; asks CUDA only where it has to be raised.
  void shared_allow(const void* kernel, std::size_t bytes) const;
  /// A number that depends on the GPU and is slow to ask for: `ask` is called once per kernel and
  /// key.
  int remember(const void* kernel, int key, const std::function<int()>& ask) const;

 private:
  Device() = default;
  friend struct DeviceTable;

  mutable std::mutex lock_;
  mutable std::map<const void*, std::size_t> allowed_;
  mutable std::map<std::pair<const void*, int>, int> remembered_;
};

/// Makes a GPU current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

/// Where work is enqueued: a stream and the GPU it belongs to, which must be the calling thread's
/// current one.
struct Queue {
  const Device* device = nullptr;
  cudaStream_t stream = nullptr;
  operator cudaStream_t() const { return stream; }
};

}  // namespace lca::cuda
