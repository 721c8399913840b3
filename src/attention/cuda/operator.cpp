// Attention of whole sequences as an operator, its backward pass, and what operators share.

#include "attention/cuda/operator.h"

#include "attention/cuda/backward/backward.h"
#include "attention/cuda/operator_parts.h"
#include "attention/cuda/prefill/prefill.h"
#include "attention/rotate.h"

namespace lca::cuda {
namespace {

struct AttendSpace {
  std::uint64_t* steps = nullptr;
  void* scratch = nullptr;
};

AttendSpace carve_attend(const OperatorSpec& spec, std::size_t scratch, DeviceCarver& carver) {
  AttendSpace space;
  space.steps = carver.take<std::uint64_t>(steps_room(spec));
  space.scratch = carver.take<std::byte>(static_cast<std::int64_t>(scratch));
  return space;
}

KeyRows key_rows(const HeadEntries& entries, bool mla) {
  KeyRows rows;
  if (mla) rows.nope = operator_rows(entries.k_nope);
  rows.rope = operator_rows(entries.k_rope);
  if (mla) rows.rope.head_stride = 0;  // one key serves all heads
  rows.value = operator_rows(entries.value);
  rows.rows = entries.value.shape[0];
  return rows;
}

/// A problem whose tensors have the shapes of the spec; without memory it serves to ask for bytes.
Prefill attend_problem(const OperatorSpec& spec, const AttendInputs& in) {
  const AttentionShape& shape = spec.layer.shape;
  const bool mla = shape.form == Form::mla;
  Prefill problem;
  problem.heads = static_cast<int>(shape.heads);
  problem.kv_heads = static_cast<int>(shape.kv_heads);
  problem.form = shape.form;
  problem.layout = Layout(spec.layer.settings);
  problem.scale = static_cast<float>(spec.layer.softmax_scale());
  if (mla) problem.q_nope = operator_rows(in.queries.nope);
  problem.q_rope = operator_rows(in.queries.rope);
  problem.query_rows = spec.tokens();
  problem.exact = key_rows(in.exact, mla);
  if (spec.groups() > 0) problem.groups = key_rows(in.groups, mla);
  problem.bias = in.bias;
  return problem;
}

Kernels operator_kernels(const OperatorPlace& place) {
  return place.portable ? Kernels::portable : Kernels::fast;
}

GradRows grad_rows(const Tensor& tensor) {
  return {static_cast<bf16*>(tensor.data), tensor.stride[0], tensor.stride[1]};
}

KeyGrads key_grads(const HeadEntryGrads& grads) {
  return {grad_rows(grads.k_nope), grad_rows(grads.k_rope), grad_rows(grads.value)};
}

/// Inputs and gradients of a spec's shapes, all wanted, without memory.
AttendInputs inputs_shaped(const OperatorSpec& spec) {
  const AttentionShape& shape = spec.layer.shape;
  const std::int64_t n = spec.tokens();
  const bool mla = shape.form == Form::mla;
  const auto tensor = [](std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return ConstTensor(nullptr, DType::bf16, {rows, heads, width});
  };
  const auto entries = [&](std::int64_t rows) {
    HeadEntries of;
    if (mla) of.k_nope = tensor(rows, shape.heads, shape.d_nope);
    of.k_rope = tensor(rows, shape.kv_heads, shape.d_rope);
    of.value = tensor(rows, mla ? shape.heads : shape.kv_heads, shape.d_value);
    return of;
  };
  AttendInputs in;
  if (mla) in.queries.nope = tensor(n, shape.heads, shape.d_nope);
  in.queries.rope = tensor(n, shape.heads, shape.d_rope);
  in.exact = entries(n);
  in.groups = entries(spec.groups());
  return in;
}

std::size_t backward_bytes(const OperatorSpec& spec, const OperatorPlace& place) {
  const AttentionShape& shape = spec.layer.shape;
  PrefillBackward problem;
  problem.forward = attend_problem(spec, inputs_shaped(spec));
  problem.dout = head_rows(nullptr, shape.heads, shape.d_value);
  if (spec.layer.settings.positions == Positions::entry) {
    static constexpr std::uint64_t kSomeStep = 0;  // only whether there are steps counts
    const Rotation& rotation = spec.layer.rotation;
    problem.forward.rotation = {&kSomeStep, static_cast<int>(rotation.frequencies.size()),
                                rotation.layout};
  }
  return backward_workspace_bytes(problem, operator_runs(spec), operator_kernels(place));
}

void out_check(const ConstTensor& out, const AttentionShape& shape) {
  if (out.stride[1] != shape.d_value || out.stride[0] != shape.heads * shape.d_value) {
    fail_input("out must be contiguous on the GPU");
  }
}

}  // namespace

RotationView OperatorCall::rotation(std::uint64_t* steps) const {
  if (!rotates()) return {};
  const Rotation& rotation = spec_.layer.rotation;
  const std::vector<std::uint64_t> values = rotation_steps(rotation);
  numbers_write(values, steps, queue);
  return {steps, static_cast<int>(values.size()), rotation.layout};
}

std::vector<PrefillRun> operator_runs(const OperatorSpec& spec) {
  const Layout layout(spec.layer.settings);
  std::vector<PrefillRun> runs;
  std::int64_t group = 0;
  for (std::size_t i = 0; i + 1 < spec.starts.size(); ++i) {
    const std::int64_t first = spec.starts[i];
    const std::int64_t tokens = spec.starts[i + 1] - first;
    runs.push_back({first, 0, tokens, first, 0, group});
    group += layout.groups(tokens);
  }
  return runs;
}

std::size_t attend_space_bytes(const OperatorSpec& spec, const OperatorPlace& place,
                               bool backward) {
  DeviceCarver carver;
  carve_attend(
      spec,
      backward ? backward_bytes(spec, place) : prefill_workspace_bytes(spec.starts.size() - 1),
      carver);
  return carver.used();
}

void operator_attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                     const OperatorPlace& place) {
  const OperatorCall call(spec, place);
  out_check(out.out, spec.layer.shape);
  const std::vector<PrefillRun> runs = operator_runs(spec);
  DeviceCarver carver(place.workspace);
  const AttendSpace space = carve_attend(spec, prefill_workspace_bytes(runs.size()), carver);
  Prefill problem = attend_problem(spec, in);
  problem.rotation = call.rotation(space.steps);
  problem.out = static_cast<bf16*>(out.out.data);
  problem.lse = out.lse;
  prefill(problem, runs, space.scratch, operator_kernels(place), call.queue);
}

void operator_attend_backward(const OperatorSpec& spec, const AttendInputs& in,
                              const ConstTensor& out, const float* lse, const ConstTensor& out_grad,
                              const AttendInputGrads& in_grads, const OperatorPlace& place) {
  const OperatorCall call(spec, place);
  out_check(out, spec.layer.shape);
  DeviceCarver carver(place.workspace);
  const AttendSpace space = carve_attend(spec, backward_bytes(spec, place), carver);
  PrefillBackward problem;
  problem.forward = attend_problem(spec, in);
  problem.forward.rotation = call.rotation(space.steps);
  problem.forward.out = static_cast<bf16*>(const_cast<void*>(out.data));  // it is read alone
  problem.forward.lse = const_cast<float*>(lse);
  problem.dout = operator_rows(out_grad);
  problem.q_nope = grad_rows(in_grads.q_nope);
  problem.q_rope = grad_rows(in_grads.q_rope);
  problem.exact = key_grads(in_grads.exact);
  problem.groups = key_grads(in_grads.groups);
  problem.dbias = in_grads.bias;
  backward(problem, operator_runs(spec), space.scratch, operator_kernels(place), call.queue);
}

std::size_t operator_workspace_bytes(const OperatorSpec& spec, OperatorPart part,
                                     const OperatorPlace& place) {
  switch (part) {
    case OperatorPart::condense:
      return condense_space_bytes(spec, false);
    case OperatorPart::condense_backward:
      return condense_space_bytes(spec, true);
    case OperatorPart::attend:
      return attend_space_bytes(spec, place, false);
    case OperatorPart::attend_backward:
      return attend_space_bytes(spec, place, true);
  }
  return 0;
}

}  // namespace lca::cuda
