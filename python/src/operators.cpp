/// The operators of lca/operator.h on batches. A batch whose rows are equally far apart in every
/// tensor is one call with packed documents; any other is a call for each entry.

#include "plan.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace lca::python {
namespace {

// --- condense ----------------------------------------------------------------------------------

/// What both passes of condensation read.
struct CondenseViews {
  CondenseViews(const Plan& plan, const MaybeView& q_nope_, const MaybeView& q_rope_,
                const MaybeView& positional_, const MaybeView& semantic_, const MaybeView& w_uk_)
      : q_nope("q_nope", q_nope_, plan.batch),
        q_rope("q", q_rope_, plan.batch),
        positional("k", positional_, plan.batch),
        semantic("v", semantic_, plan.batch),
        w_uk(shared_view("w_uk", w_uk_)) {}

  CondenseInputs at(std::int64_t entry) const {
    return {{q_nope.entry(entry), q_rope.entry(entry)},
            {semantic.entry(entry), positional.entry(entry)},
            w_uk};
  }

  BatchedView q_nope, q_rope, positional, semantic;
  Tensor w_uk;
};

/// Values of rep_bias for one entry of the batch.
std::int64_t bias_count(const Plan& plan) {
  return plan.groups() * plan.entry.layer.shape.kv_heads;
}

/// What it writes.
struct CondenseResult {
  CondenseResult(const Plan& plan, const MaybeView& positional_, const MaybeView& semantic_,
                 const MaybeView& bias_, const MaybeView& scores_)
      : positional("rep_k", positional_, plan.batch),
        semantic("rep_v", semantic_, plan.batch),
        bias("rep_bias", bias_, plan.batch, bias_count(plan)),
        scores("scores", scores_, plan.batch, bias_count(plan) * plan.entry.layer.settings.group) {}

  CondenseOutputs at(std::int64_t entry) const {
    return {semantic.entry(entry), positional.entry(entry), bias.floats(entry),
            scores.floats(entry), bias.doubles(entry)};
  }

  BatchedView positional, semantic;
  DenseValues bias, scores;
};

void condense(const Plan& plan, const MaybeView& q_nope, const MaybeView& q_rope,
              const MaybeView& positional, const MaybeView& semantic, const MaybeView& w_uk,
              const MaybeView& rep_positional, const MaybeView& rep_semantic, const MaybeView& bias,
              const MaybeView& scores, std::uintptr_t stream, std::uintptr_t workspace) {
  const CondenseViews in(plan, q_nope, q_rope, positional, semantic, w_uk);
  const CondenseResult out(plan, rep_positional, rep_semantic, bias, scores);
  const bool together = plan.packs(
      {&in.q_nope, &in.q_rope, &in.positional, &in.semantic, &out.positional, &out.semantic});
  plan.run(together, stream, workspace,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_condense(spec, in.at(at), out.at(at), place);
           });
}

/// `grads` are those of rep_positional, rep_semantic, bias; `into` those of q_nope, q_rope,
/// positional, semantic, w_uk. With `add` they are added to what is there.
void condense_backward(const Plan& plan, const MaybeView& q_nope, const MaybeView& q_rope,
                       const MaybeView& positional, const MaybeView& semantic,
                       const MaybeView& w_uk, const MaybeView& rep_positional,
                       const MaybeView& rep_semantic, const MaybeView& bias,
                       const MaybeView& scores, const std::array<MaybeView, 3>& grads,
                       const std::array<MaybeView, 5>& into, bool add, std::uintptr_t stream,
                       std::uintptr_t workspace) {
  const CondenseViews in(plan, q_nope, q_rope, positional, semantic, w_uk);
  const CondenseResult out(plan, rep_positional, rep_semantic, bias, scores);
  const BatchedView positional_grad("the gradient of rep_k", grads[0], plan.batch);
  const BatchedView semantic_grad("the gradient of rep_v", grads[1], plan.batch);
  const DenseValues bias_grad("the gradient of rep_bias", grads[2], plan.batch, bias_count(plan));
  const BatchedView dq_nope("the gradient of q_nope", into[0], plan.batch);
  const BatchedView dq_rope("the gradient of q", into[1], plan.batch);
  const BatchedView dpositional("the gradient of k", into[2], plan.batch);
  const BatchedView dsemantic("the gradient of v", into[3], plan.batch);
  const Tensor dw_uk = shared_view("the gradient of w_uk", into[4]);
  const bool together = plan.packs({&in.q_nope, &in.q_rope, &in.positional, &in.semantic,
                                    &out.positional, &out.semantic, &positional_grad,
                                    &semantic_grad, &dq_nope, &dq_rope, &dpositional, &dsemantic});
  plan.run(together, stream, workspace,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_condense_backward(spec, in.at(at), out.at(at),
                                        {semantic_grad.entry(at), positional_grad.entry(at),
                                         bias_grad.floats(at), bias_grad.doubles(at)},
                                        {dq_nope.entry(at), dq_rope.entry(at), dsemantic.entry(at),
                                         dpositional.entry(at), dw_uk, add},
                                        place);
           });
}

// --- attend ------------------------------------------------------------------------------------

/// q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v: inputs, or their gradients.
struct AttendViews {
  AttendViews(const Plan& plan, const std::array<MaybeView, 8>& views, const MaybeView& bias_)
      : bias("rep_bias", bias_, plan.batch, bias_count(plan)) {
    static constexpr std::array<const char*, 8> kNames = {"q_nope",     "q",     "k_nope", "k", "v",
                                                          "rep_k_nope", "rep_k", "rep_v"};
    for (std::size_t i = 0; i < views.size(); ++i) {
      tensors[i] = BatchedView(kNames[i], views[i], plan.batch);
    }
  }

  bool packs(const Plan& plan) const {
    return plan.packs({&tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4], &tensors[5],
                       &tensors[6], &tensors[7]});
  }

  Tensor tensor(std::size_t i, std::int64_t at) const { return tensors[i].entry(at); }

  AttendInputs inputs(std::int64_t at) const {
    return {{tensor(0, at), tensor(1, at)},
            {tensor(2, at), tensor(3, at), tensor(4, at)},
            {tensor(5, at), tensor(6, at), tensor(7, at)},
            bias.floats(at),
            bias.doubles(at)};
  }

  AttendInputGrads grads(std::int64_t at) const {
    return {tensor(0, at),
            tensor(1, at),
            {tensor(2, at), tensor(3, at), tensor(4, at)},
            {tensor(5, at), tensor(6, at), tensor(7, at)},
            bias.floats(at),
            bias.doubles(at)};
  }

  std::array<BatchedView, 8> tensors;
  DenseValues bias;
};

std::int64_t lse_count(const Plan& plan) {
  return plan.entry.tokens() * plan.entry.layer.shape.heads;
}

void attend(const Plan& plan, const std::array<MaybeView, 8>& inputs, const MaybeView& bias,
            const MaybeView& out, const MaybeView& lse, std::uintptr_t stream,
            std::uintptr_t workspace) {
  const AttendViews in(plan, inputs, bias);
  const BatchedView result("out", out, plan.batch);
  const DenseValues sums("lse", lse, plan.batch, lse_count(plan));
  plan.run(in.packs(plan) && plan.packs({&result}), stream, workspace,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_attend(spec, in.inputs(at),
                             {result.entry(at), sums.floats(at), sums.doubles(at)}, place);
           });
}

void attend_backward(const Plan& plan, const std::array<MaybeView, 8>& inputs,
                     const MaybeView& bias, const MaybeView& out, const MaybeView& lse,
                     const MaybeView& out_grad, const std::array<MaybeView, 8>& into,
                     const MaybeView& bias_grad, std::uintptr_t stream, std::uintptr_t workspace) {
  const AttendViews in(plan, inputs, bias);
  const AttendViews grads(plan, into, bias_grad);
  const BatchedView result("out", out, plan.batch);
  const BatchedView result_grad("the gradient of out", out_grad, plan.batch);
  const DenseValues sums("lse", lse, plan.batch, lse_count(plan));
  const bool together = in.packs(plan) && grads.packs(plan) && plan.packs({&result, &result_grad});
  plan.run(together, stream, workspace,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_attend_backward(spec, in.inputs(at), result.entry(at), sums.floats(at),
                                      result_grad.entry(at), grads.grads(at), place);
           });
}

}  // namespace

void operators_bind(nb::module_& module) {
  nb::class_<Plan>(module, "Plan", "All of an operator's call but its tensors.")
      .def_prop_ro("groups", &Plan::groups, "Representatives of one entry of the batch.");
  module.def(
      "plan",
      [](bool mla, const std::vector<std::int64_t>& dims, const std::string& settings, double scale,
         std::vector<double> frequencies, const std::string& rope_layout, std::int64_t batch,
         std::int64_t tokens, const std::optional<std::vector<std::int64_t>>& starts,
         const std::string& backend, int device, bool portable) {
        std::array<std::int64_t, 6> widths{};
        std::copy_n(dims.begin(), std::min(dims.size(), widths.size()), widths.begin());
        return plan_make(mla, widths, settings, scale, std::move(frequencies), rope_layout, batch,
                         tokens, starts, backend, device, portable);
      },
      nb::arg("mla"), nb::arg("dims"), nb::arg("settings"), nb::arg("scale"),
      nb::arg("frequencies"), nb::arg("rope_layout"), nb::arg("batch"), nb::arg("tokens"),
      nb::arg("starts").none(), nb::arg("backend"), nb::arg("device"), nb::arg("portable"),
      "dims: heads, kv_heads, d_nope, d_rope, d_latent, d_value. settings: \"group=16 …\".");
  module.def("packs", &plan_packs, nb::arg("plan"), nb::arg("views"),
             "Whether a call with these tensors is one call for the whole batch.");
  module.def("workspace_bytes", &workspace_bytes, nb::arg("plan"), nb::arg("part"));
  module.def("set_threads", &contexts_set_threads, nb::arg("threads"));
  module.def("condense", &condense, nb::arg("plan"), nb::arg("q_nope").none(), nb::arg("q_rope"),
             nb::arg("positional"), nb::arg("semantic"), nb::arg("w_uk").none(),
             nb::arg("rep_positional"), nb::arg("rep_semantic"), nb::arg("bias"),
             nb::arg("scores").none(), nb::arg("stream") = 0, nb::arg("workspace") = 0);
  module.def(
      "condense_backward",
      [](const Plan& plan, const MaybeView& q_nope, const MaybeView& q_rope,
         const MaybeView& positional, const MaybeView& semantic, const MaybeView& w_uk,
         const MaybeView& rep_positional, const MaybeView& rep_semantic, const MaybeView& bias,
         const MaybeView& scores, std::vector<MaybeView> grads, std::vector<MaybeView> into,
         bool add, std::uintptr_t stream, std::uintptr_t workspace) {
        grads.resize(3);
        into.resize(5);
        condense_backward(plan, q_nope, q_rope, positional, semantic, w_uk, rep_positional,
                          rep_semantic, bias, scores, {grads[0], grads[1], grads[2]},
                          {into[0], into[1], into[2], into[3], into[4]}, add, stream, workspace);
      },
      nb::arg("plan"), nb::arg("q_nope").none(), nb::arg("q_rope"), nb::arg("positional"),
      nb::arg("semantic"), nb::arg("w_uk").none(), nb::arg("rep_positional"),
      nb::arg("rep_semantic"), nb::arg("bias"), nb::arg("scores"), nb::arg("grads"),
      nb::arg("into"), nb::arg("add") = false, nb::arg("stream") = 0, nb::arg("workspace") = 0);
  const auto eight = [](std::vector<MaybeView> views) {
    std::array<MaybeView, 8> fixed;
    for (std::size_t i = 0; i < std::min(views.size(), fixed.size()); ++i) {
      fixed[i] = std::move(views[i]);
    }
    return fixed;
  };
  module.def(
      "attend",
      [eight](const Plan& plan, std::vector<MaybeView> inputs, const MaybeView& bias,
              const MaybeView& out, const MaybeView& lse, std::uintptr_t stream,
              std::uintptr_t workspace) {
        attend(plan, eight(std::move(inputs)), bias, out, lse, stream, workspace);
      },
      nb::arg("plan"), nb::arg("inputs"), nb::arg("bias").none(), nb::arg("out"),
      nb::arg("lse").none(), nb::arg("stream") = 0, nb::arg("workspace") = 0,
      "inputs: q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v.");
  module.def(
      "attend_backward",
      [eight](const Plan& plan, std::vector<MaybeView> inputs, const MaybeView& bias,
              const MaybeView& out, const MaybeView& lse, const MaybeView& out_grad,
              std::vector<MaybeView> into, const MaybeView& bias_grad, std::uintptr_t stream,
              std::uintptr_t workspace) {
        attend_backward(plan, eight(std::move(inputs)), bias, out, lse, out_grad,
                        eight(std::move(into)), bias_grad, stream, workspace);
      },
      nb::arg("plan"), nb::arg("inputs"), nb::arg("bias").none(), nb::arg("out"), nb::arg("lse"),
      nb::arg("out_grad"), nb::arg("into"), nb::arg("bias_grad").none(), nb::arg("stream") = 0,
      nb::arg("workspace") = 0);
}

}  // namespace lca::python
