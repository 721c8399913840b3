#pragma once
/// Exact tokens of some layers, in blocks that get memory as they fill: one block per window, or
/// per slot for dense layers.

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/cache/backed_memory.h"
#include "attention/cuda/views.h"

namespace lca::cuda {

/// Memory of blocks 0, 1, … that hold so many tokens each, in whole granules. `rows` has the rows
/// of each layer in a block.
std::size_t exact_backed(const AttentionShape& shape, std::span<const std::int64_t> rows,
                         std::span<const std::int64_t> tokens);

/// A block is [layer][rows of that layer]; semantic and positional parts are arrays of their own.
class ExactBlocks {
 public:
  ExactBlocks() = default;
  /// `rows` has the rows of each layer in a block.
  ExactBlocks(const Device& device, const AttentionShape& shape, std::vector<std::int64_t> rows,
              std::int64_t blocks);

  bf16* semantic(std::size_t layer) const;    ///< of block 0
  bf16* positional(std::size_t layer) const;  ///< of block 0
  std::int64_t semantic_stride() const { return block_rows_ * semantic_values_; }
  std::int64_t positional_stride() const { return block_rows_ * positional_values_; }
  /// All rows, whatever their layer; for tensor maps.
  ExactPool pool() const;

  /// Memory for the first `tokens` rows of every layer of a block (all rows where there are fewer).
  /// All or nothing.
  void require(int block, std::int64_t tokens, const cudaStream_t* poison);
  std::size_t missing(int block, std::int64_t tokens) const;
  /// Gives the block's memory back.
  void release(int block) noexcept;
  /// Enqueues a copy of the first `tokens` rows of every layer.
  void copy(int from, int to, std::int64_t tokens, cudaStream_t stream) const;

  std::size_t backed() const { return semantic_.backed() + positional_.backed(); }
  /// Bytes of the first `tokens` rows of every layer.
  std::size_t bytes(std::int64_t tokens) const;

 private:
  struct Layer {
    std::int64_t first = 0;  // row in a block
    std::int64_t rows = 0;
  };
  template <typename Visit>
  void ranges_visit(int block, std::int64_t tokens, const Visit& visit) const;
  std::int64_t& backed_tokens(int block);
  std::int64_t tokens_backed(int block) const;

  std::vector<Layer> layers_;
  std::int64_t block_rows_ = 0;
  std::int64_t most_rows_ = 0;  // of a layer
  std::int64_t blocks_ = 0;
  std::int64_t semantic_values_ = 0, positional_values_ = 0;
  BackedMemory semantic_, positional_;
  std::vector<std::int64_t> tokens_;  // with memory, by block
};

}  // namespace lca::cuda
