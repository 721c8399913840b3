#pragma once
/// The operators of <lca/operator.h> on the CPU: float32 arithmetic on float32 or bfloat16 tensors.
/// Memory grows with the number of tokens, never with pairs of them; results do not depend on the
/// number of threads. Tensors must have been checked.

#include <lca/operator.h>

namespace lca::cpu {

void condense(const OperatorSpec& spec, const CondenseInputs& in, const CondenseOutputs& out,
              Context& context);
void condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                       const CondenseInputGrads& in_grads, Context& context);
void attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
            Context& context);
void attend_backward(const OperatorSpec& spec, const AttendInputs& in, const ConstTensor& out,
                     const float* lse, const ConstTensor& out_grad,
                     const AttendInputGrads& in_grads, Context& context);

}  // namespace lca::cpu
