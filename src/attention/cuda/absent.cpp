// A build without CUDA: everything throws.

#include "attention/cuda/layer.h"
#include "attention/cuda/operator.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

[[noreturn]] void fail_absent() { fail_incompatible("{}", device_missing()); }

}  // namespace

struct Layer::State {};

Layer::Layer(const LayerSpec&, const LayerWeights&, int, std::int64_t, const LayerOptions&) {
  fail_absent();
}

Layer::~Layer() = default;

void Layer::prefill(std::span<const HostRun>) { fail_absent(); }

void Layer::decode(std::span<const HostRun>) { fail_absent(); }

std::int64_t Layer::length(int) const { fail_absent(); }

Cache Layer::to_host(int) const { fail_absent(); }

void Layer::from_host(int, const Cache&) { fail_absent(); }

void operator_condense(const OperatorSpec&, const CondenseInputs&, const CondenseOutputs&,
                       const OperatorPlace&) {
  fail_absent();
}

void operator_condense_backward(const OperatorSpec&, const CondenseInputs&, const CondenseOutputs&,
                                const CondenseOutputGrads&, const CondenseInputGrads&,
                                const OperatorPlace&) {
  fail_absent();
}

void operator_attend(const OperatorSpec&, const AttendInputs&, const AttendOutputs&,
                     const OperatorPlace&) {
  fail_absent();
}

void operator_attend_backward(const OperatorSpec&, const AttendInputs&, const ConstTensor&,
                              const float*, const ConstTensor&, const AttendInputGrads&,
                              const OperatorPlace&) {
  fail_absent();
}

std::size_t operator_workspace_bytes(const OperatorSpec&, OperatorPart, const OperatorPlace&) {
  fail_absent();
}

}  // namespace lca::cuda
