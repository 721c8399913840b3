#include "attention/cuda/cache/exact_blocks.h"

#include <algorithm>

#include "core/cuda/transfer.h"

namespace lca::cuda {
namespace {

/// Kernels load tiles of 64 rows, of which some may lie behind the last token.
constexpr std::int64_t kTileSlack = 63;
/// Rows get memory by so many.
constexpr std::int64_t kRowStep = 512;
std::int64_t row_steps(std::int64_t rows) { return (rows + kRowStep - 1) / kRowStep * kRowStep; }

}  // namespace

std::size_t exact_backed(const AttentionShape& shape, std::span<const std::int64_t> rows,
                         std::span<const std::int64_t> tokens) {
  std::size_t granules = 0;
  for (const std::int64_t values :
       {shape.kv_heads * shape.d_semantic(), shape.kv_heads * shape.d_positional()}) {
    const auto width = static_cast<std::size_t>(values) * sizeof(bf16);
    std::int64_t first = 0;
    std::size_t next = 0;  // the first granule that is not yet counted
    for (const std::int64_t held : tokens) {
      for (const std::int64_t most : rows) {
        if (held > 0) {
          const std::int64_t count = std::min(most, row_steps(held)) + kTileSlack;
          const std::size_t begin = static_cast<std::size_t>(first) * width / kGranuleBytes;
          const std::size_t end =
              (static_cast<std::size_t>(first + count) * width + kGranuleBytes - 1) / kGranuleBytes;
          granules += end - std::min(end, std::max(begin, next));
          next = std::max(next, end);
        }
        first += most;
      }
    }
  }
  return granules * kGranuleBytes;
}

ExactBlocks::ExactBlocks(const Device& device, const AttentionShape& shape,
                         std::vector<std::int64_t> rows, std::int64_t blocks)
    : blocks_(blocks),
      semantic_values_(shape.kv_heads * shape.d_semantic()),
      positional_values_(shape.kv_heads * shape.d_positional()) {
  for (const std::int64_t some : rows) {
    layers_.push_back({block_rows_, some});
    block_rows_ += some;
    most_rows_ = std::max(most_rows_, some);
  }
  const auto all = static_cast<std::size_t>(block_rows_ * blocks) * sizeof(bf16);
  semantic_ = BackedMemory(device, all * static_cast<std::size_t>(semantic_values_));
  positional_ = BackedMemory(device, all * static_cast<std::size_t>(positional_values_));
}

bf16* ExactBlocks::semantic(std::size_t layer) const {
  return semantic_.as<bf16>() + layers_[layer].first * semantic_values_;
}

bf16* ExactBlocks::positional(std::size_t layer) const {
  return positional_.as<bf16>() + layers_[layer].first * positional_values_;
}

ExactPool ExactBlocks::pool() const {
  return {semantic_.as<bf16>(), positional_.as<bf16>(), block_rows_ * blocks_};
}

/// Calls visit(row, count) for the rows of each layer that so many tokens need.
template <typename Visit>
void ExactBlocks::ranges_visit(int block, std::int64_t tokens, const Visit& visit) const {
  if (tokens == 0) return;
  for (const Layer& layer : layers_) {
    visit(block * block_rows_ + layer.first, std::min(layer.rows, tokens));
  }
}

std::int64_t& ExactBlocks::backed_tokens(int block) {
  if (static_cast<std::size_t>(block) >= tokens_.size()) {
    tokens_.resize(static_cast<std::size_t>(block) + 1);
  }
  return tokens_[static_cast<std::size_t>(block)];
}

std::int64_t ExactBlocks::tokens_backed(int block) const {
  return static_cast<std::size_t>(block) < tokens_.size() ? tokens_[static_cast<std::size_t>(block)]
                                                          : 0;
}

std::size_t ExactBlocks::missing(int block, std::int64_t tokens) const {
  if (std::min(tokens, most_rows_) <= tokens_backed(block)) return 0;
  std::size_t bytes = 0;
  std::size_t semantic_next = 0, positional_next = 0;  // layers share granules
  ranges_visit(block, row_steps(tokens), [&](std::int64_t row, std::int64_t count) {
    const auto add = [&](const BackedMemory& memory, std::int64_t values, std::size_t& next) {
      const auto width = static_cast<std::size_t>(values) * sizeof(bf16);
      bytes += memory.missing_after(next, static_cast<std::size_t>(row) * width,
                                    static_cast<std::size_t>(count + kTileSlack) * width);
    };
    add(semantic_, semantic_values_, semantic_next);
    add(positional_, positional_values_, positional_next);
  });
  return bytes;
}

void ExactBlocks::require(int block, std::int64_t tokens, const cudaStream_t* poison) {
  std::int64_t& backed = backed_tokens(block);
  if (std::min(tokens, most_rows_) <= backed) return;
  tokens = row_steps(tokens);
  // The larger range is held before the smaller one is dropped: nothing in use loses its memory.
  std::vector<std::pair<BackedMemory*, std::pair<std::size_t, std::size_t>>> held;
  const auto hold = [&](BackedMemory& memory, std::int64_t values, std::int64_t row,
                        std::int64_t count) {
    const auto width = static_cast<std::size_t>(values) * sizeof(bf16);
    const auto begin = static_cast<std::size_t>(row) * width;
    const auto bytes = static_cast<std::size_t>(count + kTileSlack) * width;
    memory.hold(begin, bytes, poison);
    held.push_back({&memory, {begin, bytes}});
  };
  try {
    ranges_visit(block, tokens, [&](std::int64_t row, std::int64_t count) {
      held.reserve(held.size() + 2);  // so that nothing held is forgotten
      hold(semantic_, semantic_values_, row, count);
      hold(positional_, positional_values_, row, count);
    });
  } catch (...) {
    for (const auto& [memory, range] : held) memory->drop(range.first, range.second);
    throw;
  }
  release(block);
  backed = tokens;
}

void ExactBlocks::release(int block) noexcept {
  if (static_cast<std::size_t>(block) >= tokens_.size()) return;
  std::int64_t& backed = tokens_[static_cast<std::size_t>(block)];
  ranges_visit(block, backed, [&](std::int64_t row, std::int64_t count) {
    const auto drop = [&](BackedMemory& memory, std::int64_t values) {
      const auto width = static_cast<std::size_t>(values) * sizeof(bf16);
      memory.drop(static_cast<std::size_t>(row) * width,
                  static_cast<std::size_t>(count + kTileSlack) * width);
    };
    drop(semantic_, semantic_values_);
    drop(positional_, positional_values_);
  });
  backed = 0;
}

void ExactBlocks::copy(int from, int to, std::int64_t tokens, cudaStream_t stream) const {
  const Transfer transfer(stream);
  const std::int64_t apart = to - from;
  ranges_visit(from, tokens, [&](std::int64_t row, std::int64_t count) {
    const auto move = [&](const BackedMemory& memory, std::int64_t values) {
      bf16* const at = memory.as<bf16>() + row * values;
      transfer.copy(at, count * values, at + apart * block_rows_ * values);
    };
    move(semantic_, semantic_values_);
    move(positional_, positional_values_);
  });
}

std::size_t ExactBlocks::bytes(std::int64_t tokens) const {
  std::size_t total = 0;
  ranges_visit(0, tokens, [&](std::int64_t, std::int64_t count) {
    total += static_cast<std::size_t>(count * (semantic_values_ + positional_values_)) * 2;
  });
  return total;
}

}  // namespace lca::cuda
