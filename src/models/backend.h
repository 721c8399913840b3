#pragma once
/// A model on one kind of device: the caches it makes, and the stages that run its layers.

#include <lca/context.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/sequence.h"
#include "models/stages.h"

namespace lca {

class ModelBackend {
 public:
  virtual ~ModelBackend() = default;

  /// Empty caches, one per layer.
  virtual std::unique_ptr<SequenceCaches> caches_open(std::span<const LayerSpec> layers) const = 0;
  /// Caches from a file or from another device.
  virtual std::unique_ptr<SequenceCaches> caches_load(std::vector<Cache> caches) const = 0;
  /// Bytes that caches, activations and scratch can still take; here, of host memory.
  virtual std::size_t memory_free() const;
  /// The stages of one step; valid until the context runs the next one. Allocates nothing after the
  /// first step of a context.
  virtual Stages& stages(Context& context) const = 0;
  /// Frees the activations that earlier steps left in the context.
  virtual void trim(Context& context) const = 0;
  /// Maximum bytes of activations of a step of `rows` tokens.
  virtual std::size_t activation_bytes(std::int64_t rows) const = 0;
  /// Bytes of a sequence's caches at a length.
  virtual std::size_t cache_bytes(std::span<const LayerSpec> layers, std::int64_t length) const = 0;
  /// Maximum bytes of attention's scratch while a prompt of `length` tokens is read in chunks.
  virtual std::size_t scratch_bytes(std::span<const LayerSpec> layers, std::int64_t length,
                                    std::int64_t chunk, int threads) const = 0;
  /// Tokens of a prompt that pass the model together, unless the session says otherwise.
  virtual std::int64_t chunk_rows() const = 0;
  /// Bytes of the weights where they are not used as they lie in the checkpoint; else 0.
  virtual std::size_t weight_bytes() const { return 0; }
};

}  // namespace lca
