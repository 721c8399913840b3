#pragma once
/// Random calls of the operators: tensors with gaps between their rows, all that is not an input
/// full of NaN, and the reference's results for them.

#include <lca/operator.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random.h"

namespace lca::test {

/// An owning array [d0,d1,d2] whose rows lie apart; every value, and what lies between, starts as
/// NaN.
class Grid {
 public:
  using Dims = std::array<std::int64_t, 3>;

  Grid() = default;
  Grid(DType dtype, const Dims& dims, Random& random);

  double get(std::int64_t i, std::int64_t j, std::int64_t k) const;
  /// Rounds to the array's type.
  void set(std::int64_t i, std::int64_t j, std::int64_t k, double value);
  void fill_normal(Random& random, double deviation = 1);

  /// The view; without memory where the array has no values.
  Tensor tensor();
  std::vector<double> values() const;
  /// Whether all that lies between the rows is still NaN.
  bool gaps_are_intact() const;
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::int64_t at(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return i * stride_[0] + j * stride_[1] + k;
  }
  double read(std::int64_t at) const;
  void write(std::int64_t at, double value);

  DType dtype_ = DType::f32;
  Dims dims_{};
  std::array<std::int64_t, 2> stride_{};
  std::vector<std::byte> bytes_;
};

/// What a call of all four operators reads.
struct OperatorCase {
  OperatorSpec spec;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;  ///< of attention's output
  bool accumulate = false;       ///< gradients of condensation are added to what is there
  Grid q_nope, q_rope, semantic, positional, w_uk;
  Grid rep_semantic_grad, rep_positional_grad;
  std::vector<float> rep_bias_grad;  ///< empty where mass is not `score`
  struct Side {
    Grid k_nope, k_rope, value;
  };
  Side exact, groups;
  std::vector<float> bias;  ///< empty: none
  Grid out_grad;
};

/// A case of this layer and these documents.
OperatorCase operator_case(const LayerSpec& layer, const std::vector<std::int64_t>& starts,
                           DType dtype, Random& random);

/// Settings, shape and documents of all kinds, of up to `most` tokens.
OperatorCase random_operator_case(Random& random, std::int64_t most);

std::string describe(const OperatorCase& a_case);

/// One named tensor of the results.
struct NamedValues {
  std::string name;
  std::vector<double> values;
  double floor;  ///< of the denominator of its error
};

/// The results of all four operators, in the same order whatever the backend.
struct OperatorResults {
  std::vector<NamedValues> tensors;
  std::vector<float> scores;  ///< of condensation
  std::vector<std::vector<std::byte>> bytes;
  bool gaps_are_intact = true;
};

/// Which of the four to run, and which gradients to leave out (bit i: the i-th of a call).
struct OperatorRuns {
  bool poison = true;
  unsigned unwanted = 0;
};

/// All four with the reference, in double; its backward pass follows `chosen`, the scores of
/// another forward pass, where given.
OperatorResults reference_results(OperatorCase& a_case, const std::vector<float>* chosen = nullptr);
/// All four on the CPU.
OperatorResults cpu_results(OperatorCase& a_case, Context& context, const OperatorRuns& runs = {});

/// Whether some group's best scores are so close that the CPU may choose another row.
bool has_near_tie(const OperatorCase& a_case, const OperatorResults& expected);

/// The largest error over all tensors; `where` names its tensor.
double worst_error(const OperatorResults& expected, const OperatorResults& actual,
                   std::string& where);

}  // namespace lca::test
