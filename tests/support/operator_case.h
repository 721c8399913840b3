#pragma once
/// Inputs of the operators of <lca/operator.h> that own their memory, and the two halves composed.

#include <lca/operator.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/reference/backward.h"
#include "support/random.h"
#include "support/values.h"

namespace lca::test {

/// All inputs of attention, or their gradients. GQA leaves q_nope, w_uk and w_uv without values.
struct OperatorValues {
  Values q_nope, q_rope, semantic, positional, w_uk, w_uv;

  /// Of the shapes that belong to the spec, filled with NaN.
  static OperatorValues of(const OperatorSpec& spec, DType dtype, Random* gaps = nullptr);
  std::array<Values*, 6> all() & {
    return {&q_nope, &q_rope, &semantic, &positional, &w_uk, &w_uv};
  }
  std::array<const Values*, 6> all() const& {
    return {&q_nope, &q_rope, &semantic, &positional, &w_uk, &w_uv};
  }
  std::array<const Values*, 6> all() const&& = delete;  // would outlive its values
  static constexpr std::array<const char*, 6> kNames{"q_nope",     "q_rope", "semantic",
                                                     "positional", "w_uk",   "w_uv"};
  LayerWeights weights() const { return {w_uk.view(), w_uv.view()}; }
  Queries queries() const { return {q_nope.view(), q_rope.view()}; }
  Entries entries() const { return {semantic.view(), positional.view()}; }
  CondenseInputs condense_inputs() const { return {queries(), entries(), w_uk.view()}; }
};

/// Normal inputs; queries share a direction as in random_tokens. With `gaps` rows lie apart.
OperatorValues random_values(const OperatorSpec& spec, DType dtype, Random& random,
                             Random* gaps = nullptr);

/// Starts of `documents` packed documents that have `tokens` tokens in all.
std::vector<std::int64_t> random_starts(std::int64_t tokens, std::int64_t documents,
                                        Random& random);

/// The smallest distance of any choice of condensation (the best score, the largest element, the
/// best head) from its runner-up; infinite where nothing is chosen.
double choice_margin(const OperatorSpec& spec, const OperatorValues& inputs);

/// Outputs of the halves, condensed and attended; what lies between them in MLA is computed here in
/// double and rounded to the inputs' type.
struct Composed {
  explicit Composed(const OperatorSpec& spec, const OperatorValues& inputs,
                    const OperatorPlace& place);

  /// Gradients of all inputs.
  OperatorValues backward(const Values& out_grad) const;

  /// The inputs of each half as views.
  CondenseOutputs condense_outputs() const;
  AttendInputs attend_inputs() const;

  OperatorSpec spec;
  const OperatorValues& inputs;
  OperatorPlace place;
  mutable Values rep_semantic, rep_positional;
  mutable std::vector<float> bias, scores;
  mutable std::vector<double> bias_f64;         ///< reference only
  Values k_nope, value, rep_k_nope, rep_value;  ///< MLA only
  Values out;
  std::vector<float> lse;
};

/// What calls of all four operators read, each on its own: tensors whose rows lie apart.
struct OperatorCase {
  OperatorSpec spec;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;  ///< of attention's output
  bool accumulate = false;       ///< gradients of condensation are added to what is there
  OperatorValues inputs;
  Values rep_semantic_grad, rep_positional_grad;
  std::vector<float> rep_bias_grad;  ///< empty where mass is not `score`
  struct Side {
    Values k_nope, k_rope, value;
    HeadEntries entries() const { return {k_nope.view(), k_rope.view(), value.view()}; }
  };
  Side exact, groups;
  std::vector<float> bias;  ///< empty: none
  Values out_grad;
};

/// A case of this layer and these documents.
OperatorCase operator_case(const LayerSpec& layer, const std::vector<std::int64_t>& starts,
                           DType dtype, Random& random);

/// Settings, shape and documents of all kinds, of up to `most` tokens.
OperatorCase random_operator_case(Random& random, std::int64_t most);

/// One line that describes a failing case.
std::string describe(const OperatorSpec& spec);
std::string describe(const OperatorCase& a_case);

}  // namespace lca::test
