#pragma once
/// Made-up inputs of one attention layer, for benchmarks and the demo.

#include <lca/method.h>

#include "core/workspace.h"

#include <cstdint>

namespace lca::cli {

/// A layer of that shape, checked, which rotates as Workload::text_like does: for commands that
/// have a shape and no model.
LayerSpec workload_layer(const AttentionShape& shape, const Settings& settings, DType dtype,
                         double scale);

/// Queries, entries and weights of one sequence, all in one dtype.
class Workload {
 public:
  /// Independent normal values, scaled so that logits are of order one. What attention costs does
  /// not depend on the values, so this is enough to measure time.
  static Workload random(Context& context, const AttentionShape& shape, DType dtype,
                         std::int64_t length);

  /// Values with the structure of text: topics that last for a while, words that come back, a
  /// smooth drift, RoPE on top. Synthetic all the same: no model made them.
  static Workload text_like(Context& context, const LayerSpec& spec, std::int64_t length);

  /// Bytes the above will hold.
  static double bytes_planned(const AttentionShape& shape, DType dtype, std::int64_t length);

  std::int64_t length() const { return length_; }
  /// Of tokens first … first + count − 1.
  Queries queries(std::int64_t first, std::int64_t count) const;
  Entries entries(std::int64_t first, std::int64_t count) const;
  LayerWeights weights() const;
  std::size_t bytes() const;

 private:
  struct Piece {
    AlignedBytes memory;
    ConstTensor view;
    std::size_t bytes = 0;
  };
  Workload(const AttentionShape& shape, DType dtype, std::int64_t length);

  std::int64_t length_ = 0;
  Piece nope_, rope_;            // [L,H,d_n] (GQA: none), [L,H,d_r]
  Piece semantic_, positional_;  // [L,KV,d_semantic], [L,KV,d_positional]
  Piece w_uk_, w_uv_;            // [H,d_n,d_c], [H,d_v,d_c]; GQA: none
};

}  // namespace lca::cli
