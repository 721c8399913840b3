#pragma once
/// The operators of <lca/operator.h> in double precision and plain loops.

#include <lca/operator.h>

namespace lca::reference {

void condense(const OperatorSpec& spec, const CondenseInputs& in, const CondenseOutputs& out);
void condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                       const CondenseInputGrads& in_grads);
void attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out);
/// The output of the forward pass and its lse are computed again; with `out`, rowsum(dout ∘ out) is
/// taken of that one, as a backend takes it that keeps a rounded output.
void attend_backward(const OperatorSpec& spec, const AttendInputs& in, const ConstTensor& out_grad,
                     const AttendInputGrads& in_grads, const ConstTensor* out = nullptr);

}  // namespace lca::reference
