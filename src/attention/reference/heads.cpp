#include "attention/reference/heads.h"

#include "core/bf16.h"
#include "core/error.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace lca::reference {
namespace {

double element_get(const ConstTensor& tensor, const void* row, std::int64_t k) {
  switch (tensor.dtype) {
    case DType::f32:
      return static_cast<const float*>(row)[k];
    case DType::bf16:
      return bf16_to_f32(static_cast<const bf16_bits*>(row)[k]);
    case DType::f64:
      return static_cast<const double*>(row)[k];
  }
  return 0;
}

void element_set(const Tensor& tensor, void* row, std::int64_t k, double value) {
  switch (tensor.dtype) {
    case DType::f32:
      static_cast<float*>(row)[k] = static_cast<float>(value);
      break;
    case DType::bf16:
      static_cast<bf16_bits*>(row)[k] = bf16_from_f32(static_cast<float>(value));
      break;
    case DType::f64:
      static_cast<double*>(row)[k] = value;
      break;
  }
}

}  // namespace

double dot(const double* a, const double* b, std::int64_t width) {
  return std::transform_reduce(a, a + width, b, 0.0);
}

void add_scaled(double factor, const double* from, std::int64_t width, double* to) {
  for (std::int64_t d = 0; d < width; ++d) to[d] += factor * from[d];
}

Array read(const char* name, const ConstTensor& tensor, std::int64_t d0, std::int64_t d1,
           std::int64_t d2) {
  const std::array<std::int64_t, 3> wanted{d0, d1, d2};
  if (tensor.empty() || tensor.shape != wanted) {
    fail_input("{} has shape [{},{},{}], not [{},{},{}]", name, tensor.shape[0], tensor.shape[1],
               tensor.shape[2], d0, d1, d2);
  }
  Array array(d0, d1, d2);
  for (std::int64_t i = 0; i < d0; ++i) {
    for (std::int64_t j = 0; j < d1; ++j) {
      const void* from = tensor.row(i, j);
      double* to = array.at(i, j);
      for (std::int64_t k = 0; k < d2; ++k) to[k] = element_get(tensor, from, k);
    }
  }
  return array;
}

Array read_rows(const char* name, const ConstTensor& tensor, const Range& range, std::int64_t d1,
                std::int64_t d2) {
  if (tensor.empty() || tensor.shape[0] < range.end) {
    fail_input("{} has {} rows, not {}", name, tensor.shape[0], range.end);
  }
  return read(name, tensor.slice(range.begin, range.size()), range.size(), d1, d2);
}

void write(const Array& array, const Tensor& tensor, std::int64_t first, bool accumulate) {
  for (std::int64_t i = 0; i < array.rows; ++i) {
    for (std::int64_t j = 0; j < array.columns; ++j) {
      const double* from = array.at(i, j);
      void* to = tensor.row(first + i, j);
      for (std::int64_t k = 0; k < array.width; ++k) {
        const double old = accumulate ? element_get(tensor, to, k) : 0;
        element_set(tensor, to, k, old + from[k]);
      }
    }
  }
}

Projections read_projections(const AttentionShape& shape, const LayerWeights& weights) {
  if (shape.form == Form::gqa) return {};
  return {read("w_uk", weights.w_uk, shape.heads, shape.d_nope, shape.d_latent),
          read("w_uv", weights.w_uv, shape.heads, shape.d_value, shape.d_latent)};
}

Array read_queries(const AttentionShape& shape, const Queries& queries, const Range& range) {
  if (shape.form == Form::gqa) {
    return read_rows("q", queries.rope, range, shape.heads, shape.d_rope);
  }
  return heads_join(read_rows("q_nope", queries.nope, range, shape.heads, shape.d_nope),
                    read_rows("q_rope", queries.rope, range, shape.heads, shape.d_rope),
                    shape.heads);
}

Array rebuild_keys(const AttentionShape& shape, const Projections& projections,
                   const Array& semantic, const Array& positional) {
  Array keys(positional.rows, shape.heads, shape.d_score());
  for (std::int64_t i = 0; i < keys.rows; ++i) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      double* key = keys.at(i, h);
      for (std::int64_t d = 0; d < shape.d_nope; ++d) {  // GQA has d_nope = 0
        *key++ = dot(projections.w_uk.at(h, d), semantic.at(i, 0), shape.d_latent);
      }
      std::copy_n(positional.at(i, h / shape.heads_per_kv()), shape.d_rope, key);
    }
  }
  return keys;
}

Array rebuild_values(const AttentionShape& shape, const Projections& projections,
                     const Array& semantic) {
  Array values(semantic.rows, shape.heads, shape.d_value);
  for (std::int64_t i = 0; i < values.rows; ++i) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      double* value = values.at(i, h);
      if (shape.form == Form::gqa) {
        std::copy_n(semantic.at(i, h / shape.heads_per_kv()), shape.d_value, value);
        continue;
      }
      for (std::int64_t d = 0; d < shape.d_value; ++d) {
        value[d] = dot(projections.w_uv.at(h, d), semantic.at(i, 0), shape.d_latent);
      }
    }
  }
  return values;
}

void rebuild_keys_backward(const AttentionShape& shape, const Projections& projections,
                           const Array& semantic, const Array& keys_grad, Array& semantic_grad,
                           Array& positional_grad, Array& w_uk_grad) {
  for (std::int64_t i = 0; i < keys_grad.rows; ++i) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const double* grad = keys_grad.at(i, h);
      for (std::int64_t d = 0; d < shape.d_nope; ++d, ++grad) {
        add_scaled(*grad, projections.w_uk.at(h, d), shape.d_latent, semantic_grad.at(i, 0));
        add_scaled(*grad, semantic.at(i, 0), shape.d_latent, w_uk_grad.at(h, d));
      }
      add_scaled(1, grad, shape.d_rope, positional_grad.at(i, h / shape.heads_per_kv()));
    }
  }
}

void rebuild_values_backward(const AttentionShape& shape, const Projections& projections,
                             const Array& semantic, const Array& values_grad, Array& semantic_grad,
                             Array& w_uv_grad) {
  for (std::int64_t i = 0; i < values_grad.rows; ++i) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const double* grad = values_grad.at(i, h);
      if (shape.form == Form::gqa) {
        add_scaled(1, grad, shape.d_value, semantic_grad.at(i, h / shape.heads_per_kv()));
        continue;
      }
      for (std::int64_t d = 0; d < shape.d_value; ++d) {
        add_scaled(grad[d], projections.w_uv.at(h, d), shape.d_latent, semantic_grad.at(i, 0));
        add_scaled(grad[d], semantic.at(i, 0), shape.d_latent, w_uv_grad.at(h, d));
      }
    }
  }
}

Array heads_join(const Array& nope, const Array& rope, std::int64_t heads) {
  Array whole(rope.rows, heads, nope.width + rope.width);
  const std::int64_t sharing = heads / rope.columns;
  for (std::int64_t i = 0; i < whole.rows; ++i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      double* to = whole.at(i, h);
      if (nope.width > 0) to = std::copy_n(nope.at(i, h), nope.width, to);
      std::copy_n(rope.at(i, h / sharing), rope.width, to);
    }
  }
  return whole;
}

HeadParts heads_split(const Array& rows, std::int64_t d_nope, std::int64_t kv_heads) {
  HeadParts parts{Array(rows.rows, rows.columns, d_nope),
                  Array(rows.rows, kv_heads, rows.width - d_nope)};
  const std::int64_t sharing = rows.columns / kv_heads;
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t h = 0; h < rows.columns; ++h) {
      const double* from = rows.at(i, h);
      std::copy_n(from, d_nope, parts.nope.at(i, h));
      add_scaled(1, from + d_nope, parts.rope.width, parts.rope.at(i, h / sharing));
    }
  }
  return parts;
}

}  // namespace lca::reference
