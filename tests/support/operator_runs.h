#pragma once
/// Results of all four operators of <lca/operator.h> for one case, each called on its own, with
/// all that is not an input full of NaN: the reference's and the CPU's.

#include <lca/operator.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/operator_case.h"

namespace lca::test {

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
  Values out;                 ///< of attention, in the case's type: what its gradients begin with
  std::vector<std::vector<std::byte>> bytes;
  bool gaps_are_intact = true;
};

struct OperatorRuns {
  bool poison = true;     ///< scratch memory is full of NaN
  unsigned unwanted = 0;  ///< gradients to leave out (bit i: the i-th of a call)
  /// What attention's backward pass takes for the forward pass's output; null: its own. The pass
  /// subtracts rowsum(dout ∘ out), so that the rounding of `out` is part of its result: two
  /// backends agree where they read the same one.
  const Values* out = nullptr;
};

/// All four with the reference, in double. Gradients of attention are those of `out` as rounded to
/// the case's type.
OperatorResults reference_results(const OperatorCase& a_case);
/// All four on the CPU.
OperatorResults cpu_results(const OperatorCase& a_case, Context& context,
                            const OperatorRuns& runs = {});

/// Whether some group's best scores are so close that the CPU may choose another row.
bool has_near_tie(const OperatorCase& a_case, const OperatorResults& expected);

/// The largest error over all tensors; `where` names its tensor.
double worst_error(const OperatorResults& expected, const OperatorResults& actual,
                   std::string& where);

}  // namespace lca::test
