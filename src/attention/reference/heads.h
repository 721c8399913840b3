#pragma once
/// Queries, keys and values as every query head sees them, in double precision. From here on MLA
/// and GQA are the same computation.

#include <lca/cache.h>
#include <lca/method.h>

#include <cstdint>
#include <vector>

namespace lca::reference {

/// A dense array [rows, columns, width].
struct Array {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t width = 0;
  std::vector<double> values;

  Array() = default;
  Array(std::int64_t rows_, std::int64_t columns_, std::int64_t width_)
      : rows(rows_),
        columns(columns_),
        width(width_),
        values(static_cast<std::size_t>(rows_ * columns_ * width_), 0.0) {}

  double* at(std::int64_t i, std::int64_t j) { return values.data() + (i * columns + j) * width; }
  const double* at(std::int64_t i, std::int64_t j) const {
    return values.data() + (i * columns + j) * width;
  }
};

/// aᵀb
double dot(const double* a, const double* b, std::int64_t width);

/// The stored values, exactly. Throws Error naming `name` where the shape is not [d0,d1,d2].
Array read(const char* name, const ConstTensor& tensor, std::int64_t d0, std::int64_t d1,
           std::int64_t d2);

/// MLA's up-projections (empty for GQA): w_uk [H,d_n,d_c], w_uv [H,d_v,d_c].
struct Projections {
  Array w_uk;
  Array w_uv;
};
Projections read_projections(const AttentionShape& shape, const LayerWeights& weights);

/// q_t^h, width d_h. MLA: q_nope then q_rope.
Array read_queries(const AttentionShape& shape, const Queries& queries, std::int64_t tokens);

/// k_i^h, width d_h, of cache entries: tokens or representatives. MLA: W_uk^h c_i, then k_rope_i.
/// GQA: the key of the KV head that serves h.
Array rebuild_keys(const AttentionShape& shape, const Projections& projections,
                   const Array& semantic, const Array& positional);

/// v_i^h, width d_v. MLA: W_uv^h c_i. GQA: the value of the KV head that serves h.
Array rebuild_values(const AttentionShape& shape, const Projections& projections,
                     const Array& semantic);

}  // namespace lca::reference
