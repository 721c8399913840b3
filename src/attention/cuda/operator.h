#pragma once
/// The operators of <lca/operator.h> on the GPU. Everything is enqueued on the caller's stream;
/// nothing waits and nothing is allocated on the GPU, so calls can be captured. Sums have a fixed
/// order. Tensors have been checked.

#include <lca/operator.h>

namespace lca::cuda {

void operator_condense(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const OperatorPlace& place);
void operator_condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                                const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                                const CondenseInputGrads& in_grads, const OperatorPlace& place);
void operator_attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                     const OperatorPlace& place);
void operator_attend_backward(const OperatorSpec& spec, const AttendInputs& in,
                              const ConstTensor& out, const float* lse, const ConstTensor& out_grad,
                              const AttendInputGrads& in_grads, const OperatorPlace& place);
std::size_t operator_workspace_bytes(const OperatorSpec& spec, OperatorPart part,
                                     const OperatorPlace& place);

}  // namespace lca::cuda
