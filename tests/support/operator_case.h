#pragma once
/// Inputs of the operators of <lca/operator.h> that own their memory, and the two halves composed.

#include <lca/operator.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/reference/backward.h"
#include "support/random.h"

namespace lca::test {

/// An owning array of three dimensions in any type that operators take.
class Values {
 public:
  Values() = default;
  /// Filled with NaN, so that what is not written fails every comparison.
  Values(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2);

  std::int64_t size() const { return shape_[0] * shape_[1] * shape_[2]; }
  const std::array<std::int64_t, 3>& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  double get(std::int64_t i) const;
  /// Rounds to the type.
  void set(std::int64_t i, double value);
  std::vector<double> doubles() const;
  void fill_normal(double deviation, Random& random);

  /// A dense view. Without values it has the shape and no memory.
  Tensor tensor();
  ConstTensor view() const;

 private:
  DType dtype_ = DType::f64;
  std::array<std::int64_t, 3> shape_{0, 0, 0};
  std::vector<std::byte> bytes_;
};

/// All inputs of attention, or their gradients. GQA leaves q_nope, w_uk and w_uv without values.
struct OperatorValues {
  Values q_nope, q_rope, semantic, positional, w_uk, w_uv;

  /// Of the shapes that belong to the spec, filled with NaN.
  static OperatorValues of(const OperatorSpec& spec, DType dtype);
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

/// Normal inputs; queries share a direction as in random_tokens.
OperatorValues random_values(const OperatorSpec& spec, DType dtype, Random& random);

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

/// One line that describes a failing case.
std::string describe(const OperatorSpec& spec);

}  // namespace lca::test
