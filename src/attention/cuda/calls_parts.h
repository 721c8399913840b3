#pragma once
/// What chunks (calls_prefill.cpp) and prompts that wait for their end (calls_prompt.cpp) are made
/// of: one layer's rows from a cache, into representatives, and back.

#include "attention/cuda/calls.h"

namespace lca::cuda {

/// Groups that are condensed together: bounds the memory of their query means.
inline constexpr std::int64_t kGroupSlice = 8448;  // 64 for each multiprocessor of an H200

/// Exact tokens in consecutive rows: position p is row p in the sink, row p − gone behind it.
struct TokenRows {
  bf16* semantic = nullptr;
  bf16* positional = nullptr;
  std::int64_t gone = 0;
};

/// One layer's work on one stream.
class LayerParts {
 public:
  LayerParts(const LayerView& layer, const ChunkSpace& space, const ProductSpace& products,
             const Queue& queue)
      : layer_(layer),
        shape_(layer.spec.shape),
        layout_(layer.layout()),
        space_(space),
        products_(products),
        queue_(queue),
        transfer_(queue) {}

  /// Queries as rows, row 0 being position `first`.
  QueryRows query_rows(const bf16* nope, const bf16* rope, std::int64_t first,
                       std::int64_t rows) const;
  /// Queries of positions [first, end) from the ring at `from`.
  void queries_recall(CachePlace from, std::int64_t first, std::int64_t end, bf16* nope,
                      bf16* rope) const;
  /// The exact tokens that a sequence of `length` tokens holds.
  void entries_recall(CachePlace from, std::int64_t length, const TokenRows& to) const;
  /// Condenses groups [first, end) into the pages of `to`. With prompt > 0 the last queries of a
  /// prompt that ends there score all of them.
  void groups_condense(CachePlace to, const TokenRows& rows, const QueryRows& queries,
                       std::int64_t first, std::int64_t end, std::int64_t prompt) const;
  /// All representatives of a piece in consecutive rows of the space, as readers see them.
  void groups_recall(const ChunkPiece& piece) const;
  /// All queries of the plan's pieces, whose exact tokens and representatives are in the space.
  void attend(const ChunkPlan& plan) const;
  /// What sink and window hold after `after` tokens, of which `before` are at `from`.
  void entries_keep(CachePlace from, CachePlace to, std::int64_t before, std::int64_t after,
                    const TokenRows& rows) const;
  /// The last queries, raw and reduced.
  void queries_keep(CachePlace from, CachePlace to, std::int64_t before, std::int64_t after,
                    const QueryRows& queries) const;

 private:
  const float* summaries(std::int64_t prompt, const QueryRows& queries, std::int64_t first,
                         std::int64_t count) const;
  void keys_rebuild(const bf16* latents, std::int64_t rows, bf16* nope, bf16* value) const;
  bool same_rows(CachePlace a, CachePlace b) const {
    return layer_.cache.number(a) == layer_.cache.number(b);
  }

  const LayerView& layer_;
  const AttentionShape& shape_;
  const Layout layout_;
  const ChunkSpace& space_;
  const ProductSpace& products_;
  const Queue& queue_;
  Transfer transfer_;
};

}  // namespace lca::cuda
