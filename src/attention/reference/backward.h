#pragma once
/// Gradients of a whole attention layer in double precision (mechanism §8).

#include <lca/method.h>
#include <lca/operator.h>

#include "attention/reference/attend.h"
#include "attention/reference/condense.h"
#include "attention/reference/heads.h"

namespace lca::reference {

/// Gradients of the inputs of an attention layer.
struct Gradients {
  Array q_nope;      ///< MLA [n,H,d_n]; GQA: width 0
  Array q_rope;      ///< [n,H,d_r], or [n,H,d]
  Array semantic;    ///< [n,KV,d_semantic]: c, or v
  Array positional;  ///< [n,KV,d_positional]: k_rope, or k
  Array w_uk;        ///< MLA [H,d_n,d_c]: through keys and through scores; GQA: empty
  Array w_uv;        ///< MLA [H,d_v,d_c]; GQA: empty
};

/// `out_grad` [n,H,d_v] is the gradient of the output of all documents of `spec`; each is a prompt.
Gradients attention_backward(const OperatorSpec& spec, const LayerWeights& weights,
                             const Queries& queries, const Entries& entries,
                             const ConstTensor& out_grad);

}  // namespace lca::reference
