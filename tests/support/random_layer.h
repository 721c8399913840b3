#pragma once
/// Random layers and sequences that own their memory, in every form the library reads.

#include <lca/lca.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/reference/reference.h"
#include "core/bf16.h"
#include "support/random.h"

namespace lca::test {

/// An owning array [rows, columns, width] of float32 or bfloat16 values.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t width);

  double get(std::int64_t i, std::int64_t j, std::int64_t k) const;
  /// Rounds to the buffer's type.
  void set(std::int64_t i, std::int64_t j, std::int64_t k, double value);

  /// Values first … first + count − 1 of every row, as a strided view.
  ConstTensor view(std::int64_t first, std::int64_t count) const;
  ConstTensor view() const { return view(0, width_); }

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t width() const { return width_; }

 private:
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t width_ = 0;
  std::vector<float> f32_;
  std::vector<bf16_bits> bf16_;
};

/// A layer with its weights.
struct Layer {
  LayerSpec spec;
  Buffer w_uk;  ///< MLA only
  Buffer w_uv;  ///< MLA only

  /// The same weights under other settings.
  Layer with(const Settings& settings) const;
  LayerWeights weights() const;
};

/// The queries and cache entries of one sequence. A query holds its nope part, then its rope part;
/// an entry its semantic part, then its positional part. Views are slices of those buffers where
/// `fused`, else of dense buffers for each part.
struct Tokens {
  AttentionShape shape;
  std::int64_t count = 0;
  bool fused = false;
  Buffer query;       ///< [n,H,d_n+d_r]
  Buffer entry;       ///< [n,KV,d_semantic+d_positional]
  Buffer nope;        ///< [n,H,d_n]
  Buffer rope;        ///< [n,H,d_r]
  Buffer semantic;    ///< [n,KV,d_semantic]
  Buffer positional;  ///< [n,KV,d_positional]

  /// Copies the fused buffers into the separate ones; call after changing `query` or `entry`.
  void split();

  Queries queries() const;
  Entries entries() const;
};

/// Weights of type `dtype`, which need not be what the cache stores.
Layer random_layer(const LayerSpec& spec, Random& random, DType dtype);
inline Layer random_layer(const LayerSpec& spec, Random& random) {
  return random_layer(spec, random, spec.dtype);
}

/// How a sequence lies in memory.
struct Storage {
  bool fused = false;  ///< parts are slices of one buffer
  std::optional<DType> queries =
      std::nullopt;  ///< type of the queries; the cache's where not given
};

/// Normal entries, and queries that share a direction as those of a real model do: without it the
/// mean of many queries says nothing and every group is nearly a tie.
Tokens random_tokens(const LayerSpec& spec, std::int64_t count, Random& random,
                     const Storage& storage = {});

/// Redraws the query and entry of one token.
void redraw_token(Tokens& tokens, std::int64_t position, Random& random);

/// A sequence and the layer it goes through, as views.
struct Source {
  Source(const LayerSpec& spec_, const LayerWeights& weights_, const Queries& queries_,
         const Entries& entries_)
      : spec(spec_), weights(weights_), all_queries(queries_), all_entries(entries_) {}
  Source(const Layer& layer, const Tokens& tokens)
      : Source(layer.spec, layer.weights(), tokens.queries(), tokens.entries()) {}

  LayerSpec spec;
  LayerWeights weights;
  Queries all_queries;
  Entries all_entries;

  std::int64_t count() const { return all_queries.rope.shape[0]; }
  Queries queries(std::int64_t first, std::int64_t length) const;
  Entries entries(std::int64_t first, std::int64_t length) const;
};

/// The truth about a sequence whose first `prompt` tokens are its prompt.
reference::Result truth(const Source& source, std::int64_t prompt);
inline reference::Result truth(const Layer& layer, const Tokens& tokens, std::int64_t prompt) {
  return truth(Source(layer, tokens), prompt);
}
inline reference::Result truth(const Layer& layer, const Tokens& tokens) {
  return truth(layer, tokens, tokens.count);
}

/// How many groups a comparison met, and in how many the two best scores were too close to say
/// which row `select` must copy (mechanism §3, Precision).
struct NearTies {
  std::int64_t groups = 0;
  std::int64_t ties = 0;
  std::int64_t redraws = 0;
};

/// (group, KV head) pairs of `result` that are near ties for storage of this type.
std::int64_t near_ties(const reference::Result& result, DType dtype);

/// Whether a near tie can show in the results at all.
bool selects(const Settings& settings);

/// A sequence and the truth about it. A flipped representative changes every output after it, so
/// sequences with near ties are redrawn where some pool is `select`.
struct Example {
  Tokens tokens;
  reference::Result expected;
};
Example random_example(const Layer& layer, std::int64_t count, std::int64_t prompt, Random& random,
                       const Storage& storage = {}, NearTies* seen = nullptr);

/// A line that says what a failing case was.
std::string describe(const LayerSpec& spec);

/// A small layer of either form, with widths that fit no register.
AttentionShape random_shape(Random& random);

/// Random settings of all kinds, with sizes that fit sequences of about `count` tokens.
Settings random_settings(Random& random, std::int64_t count);

/// A rotation of rows of `width` ≥ 2 channels, of all pairs or some, in either layout.
Rotation random_rotation(Random& random, std::int64_t width);

/// Entry positions with such a rotation, or token positions (always where nothing can be rotated).
void random_positions(LayerSpec& spec, Random& random);

}  // namespace lca::test
