#pragma once
/// One attention layer on the GPU, from host memory to host memory: a thin runner over the calls
/// that models use (calls.h), for `lca op` and for tests. No CUDA type appears here, so that builds
/// without CUDA have it too; there it throws.

#include <lca/cache.h>
#include <lca/method.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/device_name.h"

namespace lca::cuda {

/// Why CUDA cannot be used here (not built in, no GPU, too old), in one line that says what to do;
/// empty where it can.
inline std::string unavailable() { return device_missing(); }

using lca::GroupStorage;

struct LayerOptions {
  bool portable = false;  ///< only kernels that every GPU since sm_80 runs
  GroupStorage groups = GroupStorage::bf16;
  bool poison = false;  ///< fills all memory with NaN first; for tests
  int device = 0;       ///< which GPU
};

/// One sequence's part in a call: a run of consecutive tokens, in host memory. Float32 tensors are
/// rounded to bf16.
struct HostRun {
  int sequence = 0;
  Queries queries;
  Entries entries;
  float* out = nullptr;  ///< [L,H,d_v]
  float* lse = nullptr;  ///< [L,H]
};

/// A layer with the device caches of `sequences` sequences. `longest` bounds their lengths.
class Layer {
 public:
  Layer(const LayerSpec& spec, const LayerWeights& weights, int sequences, std::int64_t longest,
        const LayerOptions& options = {});
  ~Layer();

  /// A chunk of a prompt for some of the sequences: any lengths, each after what its sequence
  /// holds. In summary mode `prompt` a run is a whole prompt.
  void prefill(std::span<const HostRun> runs);
  /// One token for every sequence, in order.
  void decode(std::span<const HostRun> runs);

  std::int64_t length(int sequence) const;
  /// A sequence's cache in its host form, representatives as readers see them (dequantised).
  Cache to_host(int sequence) const;
  /// Replaces what a sequence holds.
  void from_host(int sequence, const Cache& cache);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lca::cuda
