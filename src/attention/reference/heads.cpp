#include "attention/reference/heads.h"

#include "core/bf16.h"
#include "core/error.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace lca::reference {

double dot(const double* a, const double* b, std::int64_t width) {
  return std::transform_reduce(a, a + width, b, 0.0);
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
      for (std::int64_t k = 0; k < d2; ++k) {
        to[k] = tensor.dtype == DType::f32 ? static_cast<const float*>(from)[k]
                                           : bf16_to_f32(static_cast<const bf16_bits*>(from)[k]);
      }
    }
  }
  return array;
}

Projections read_projections(const AttentionShape& shape, const LayerWeights& weights) {
  if (shape.form == Form::gqa) return {};
  return {read("w_uk", weights.w_uk, shape.heads, shape.d_nope, shape.d_latent),
          read("w_uv", weights.w_uv, shape.heads, shape.d_value, shape.d_latent)};
}

Array read_queries(const AttentionShape& shape, const Queries& queries, std::int64_t tokens) {
  if (shape.form == Form::gqa) return read("q", queries.rope, tokens, shape.heads, shape.d_rope);
  const Array nope = read("q_nope", queries.nope, tokens, shape.heads, shape.d_nope);
  const Array rope = read("q_rope", queries.rope, tokens, shape.heads, shape.d_rope);
  Array whole(tokens, shape.heads, shape.d_score());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      double* end_of_nope = std::copy_n(nope.at(t, h), shape.d_nope, whole.at(t, h));
      std::copy_n(rope.at(t, h), shape.d_rope, end_of_nope);
    }
  }
  return whole;
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

}  // namespace lca::reference
