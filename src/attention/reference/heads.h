#pragma once
/// Queries, keys and values as every query head sees them, in double precision. From here on MLA
/// and GQA are the same computation.

#include <lca/cache.h>
#include <lca/method.h>

#include "attention/layout.h"

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

/// to += factor · from
void add_scaled(double factor, const double* from, std::int64_t width, double* to);

/// The stored values, exactly. Throws Error naming `name` where the shape is not [d0,d1,d2].
Array read(const char* name, const ConstTensor& tensor, std::int64_t d0, std::int64_t d1,
           std::int64_t d2);

/// The same of rows `range` of a tensor [rows,d1,d2].
Array read_rows(const char* name, const ConstTensor& tensor, const Range& range, std::int64_t d1,
                std::int64_t d2);

/// Stores the array in rows `first` … of the tensor, rounded to its type; adds where `accumulate`.
void write(const Array& array, const Tensor& tensor, std::int64_t first = 0,
           bool accumulate = false);

/// MLA's up-projections (empty for GQA): w_uk [H,d_n,d_c], w_uv [H,d_v,d_c].
struct Projections {
  Array w_uk;
  Array w_uv;
};
Projections read_projections(const AttentionShape& shape, const LayerWeights& weights);

/// q_t^h, width d_h, of tokens `range`. MLA: q_nope then q_rope.
Array read_queries(const AttentionShape& shape, const Queries& queries, const Range& range);

/// k_i^h, width d_h, of cache entries: tokens or representatives. MLA: W_uk^h c_i, then k_rope_i.
/// GQA: the key of the KV head that serves h.
Array rebuild_keys(const AttentionShape& shape, const Projections& projections,
                   const Array& semantic, const Array& positional);

/// v_i^h, width d_v. MLA: W_uv^h c_i. GQA: the value of the KV head that serves h.
Array rebuild_values(const AttentionShape& shape, const Projections& projections,
                     const Array& semantic);

/// Adds the gradients of rebuilt keys to those of what they are rebuilt from.
void rebuild_keys_backward(const AttentionShape& shape, const Projections& projections,
                           const Array& semantic, const Array& keys_grad, Array& semantic_grad,
                           Array& positional_grad, Array& w_uk_grad);

/// The same for values.
void rebuild_values_backward(const AttentionShape& shape, const Projections& projections,
                             const Array& semantic, const Array& values_grad, Array& semantic_grad,
                             Array& w_uv_grad);

/// Rows of every head: the part without position (MLA [rows,H,d_n], else empty), then that of the
/// KV head [rows,KV,d_r]. Queries count as having H KV heads.
Array heads_join(const Array& nope, const Array& rope, std::int64_t heads);

/// The two parts of such rows, the second summed over the heads that share a KV head.
struct HeadParts {
  Array nope, rope;
};
HeadParts heads_split(const Array& rows, std::int64_t d_nope, std::int64_t kv_heads);

}  // namespace lca::reference
