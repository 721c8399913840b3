#pragma once
/// How much memory a model takes on a GPU, without one. In builds without CUDA everything throws
/// Error (incompatible).

#include <lca/cache.h>
#include <lca/model.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/model_config.h"

namespace lca {

/// Bytes by what they are for.
struct CudaMemory {
  std::size_t weights = 0;   ///< in bf16, with what is derived from them
  std::size_t caches = 0;    ///< of all sessions, in whole granules
  std::size_t prompt = 0;    ///< activations and scratch while a prompt is read
  std::size_t kept = 0;      ///< what of it stays
  std::size_t decode = 0;    ///< of a step of all sessions
  std::size_t products = 0;  ///< scratch of matrix products
  std::size_t loading = 0;   ///< beside weights and products while weights are copied
  std::size_t driver = 0;    ///< about what the driver takes for itself: context, code, graphs

  /// Activations and scratch, at the most.
  std::size_t work() const { return products + (prompt > kept + decode ? prompt : kept + decode); }
  /// The most that is allocated at a time, as cuda::memory_peak counts it.
  std::size_t peak() const {
    const std::size_t running = weights + caches + work(), first = weights + products + loading;
    return running > first ? running : first;
  }
  std::size_t total() const { return peak() + driver; }
};

/// Sessions that have the same length and settings.
struct CudaSessions {
  std::span<const LayerSpec> layers;
  GroupStorage groups = GroupStorage::bf16;
  std::int64_t length = 0;  ///< in the end: prompt and reply
  std::int64_t chunk = 0;   ///< tokens of a prompt read at a time; 0: as models do
  std::int64_t count = 1;
};

/// The memory of one model.
class CudaPlan {
 public:
  /// `random`: weights are made on the GPU instead of copied to it.
  explicit CudaPlan(const ModelConfig& config, bool random = false);

  /// Sessions that read their prompts one after another and decode together.
  CudaMemory memory(const CudaSessions& sessions) const;
  /// The longest session that a GPU holds, whatever its memory.
  static std::int64_t longest();

 private:
  ModelConfig config_;
  std::size_t weights_ = 0;
  std::size_t loading_ = 0;
};

/// Bytes that are free on GPU `ordinal`. Throws Error (incompatible) where it cannot be used.
std::size_t cuda_memory_free(int ordinal);

}  // namespace lca
