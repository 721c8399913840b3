// Attention of whole sequences as an operator, its backward pass, and what operators share.

#include "attention/cuda/operator.h"

#include <algorithm>

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

std::size_t attend_space_bytes(const OperatorSpec& spec, const OperatorPlace&, bool backward) {
  if (backward) fail_incompatible("the backward pass of attention is not here yet");
  DeviceCarver carver;
  carve_attend(spec, prefill_workspace_bytes(spec.starts.size() - 1), carver);
  return carver.used();
}

void operator_attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                     const OperatorPlace& place) {
  const AttentionShape& shape = spec.layer.shape;
  const OperatorCall call(spec, place);
  if (out.out.stride[1] != shape.d_value || out.out.stride[0] != shape.heads * shape.d_value) {
    fail_input("out must be contiguous on the GPU");
  }
  const std::vector<PrefillRun> runs = operator_runs(spec);
  DeviceCarver carver(place.workspace);
  const AttendSpace space = carve_attend(spec, prefill_workspace_bytes(runs.size()), carver);
  Prefill problem = attend_problem(spec, in);
  problem.rotation = call.rotation(space.steps);
  problem.out = static_cast<bf16*>(out.out.data);
  problem.lse = out.lse;
  prefill(problem, runs, space.scratch, place.portable ? Kernels::portable : Kernels::fast,
          call.queue);
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
