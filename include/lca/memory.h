#pragma once
/// Where memory goes.

#include <cstddef>

namespace lca {

/// Bytes by purpose; a purpose that something does not have is 0. Nothing is counted twice inside
/// one Memory; activations and scratch belong to a context and serve all its sessions.
struct Memory {
  std::size_t weights = 0;      ///< of a model, as they are kept
  std::size_t caches = 0;       ///< representatives and exact tokens that a session alone holds
  std::size_t shared = 0;       ///< representatives that marks or forks hold too
  std::size_t marks = 0;        ///< exact tokens of positions a session can return to
  std::size_t spare = 0;        ///< capacity for growth, recent queries, tokens, logits
  std::size_t activations = 0;  ///< between a model's operators
  std::size_t scratch = 0;      ///< inside them

  std::size_t total() const {
    return weights + caches + shared + marks + spare + activations + scratch;
  }
};

}  // namespace lca
