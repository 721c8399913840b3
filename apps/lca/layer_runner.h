#pragma once
/// One attention layer on host tensors, on any device.

#include "attention/cuda/layer.h"

#include <lca/cache.h>
#include <lca/method.h>

#include <cstdint>
#include <memory>
#include <span>

namespace lca::cli {

/// Sequences of one layer, each with its own cache, numbered from 0. The CPU runs the methods, the
/// GPU the calls that models use.
class LayerRunner {
 public:
  virtual ~LayerRunner() = default;

  /// A chunk of a prompt for some sequences; in summary mode `prompt` a whole one.
  virtual void prefill(std::span<const cuda::HostRun> runs) = 0;
  /// One token for every sequence, in order.
  virtual void decode(std::span<const cuda::HostRun> runs) = 0;
  /// The cache of a sequence in its host form.
  virtual Cache cache(int sequence) const = 0;
};

std::unique_ptr<LayerRunner> layer_runner_cpu(const LayerSpec& spec, const LayerWeights& weights,
                                              int sequences, int threads);
/// `longest` bounds the sequences' lengths.
std::unique_ptr<LayerRunner> layer_runner_cuda(const LayerSpec& spec, const LayerWeights& weights,
                                               int sequences, std::int64_t longest,
                                               const cuda::LayerOptions& options);

}  // namespace lca::cli
