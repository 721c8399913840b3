/// The operators of lca/operator.h on batches. A batch whose rows are equally far apart in every
/// tensor is one call with packed documents; any other is a call for each entry. Tensors are None,
/// Views, or tensors of PyTorch.

#include "plan.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace lca::python {
namespace {

/// `count` arguments out of a tuple or list; those it does not have are None.
template <std::size_t count>
std::array<nb::object, count> arguments(const nb::sequence& values) {
  std::array<nb::object, count> all;
  all.fill(nb::none());
  const std::size_t size = std::min(nb::len(values), count);
  for (std::size_t i = 0; i < size; ++i) all[i] = values[i];
  return all;
}

// --- condense ----------------------------------------------------------------------------------

/// q_nope, q_rope, positional, semantic, w_uk: what both passes of condensation read, or the
/// gradients of it.
struct CondenseViews {
  CondenseViews(const Plan& plan, const nb::sequence& tensors)
      : CondenseViews(plan, arguments<5>(tensors)) {}
  CondenseViews(const Plan& plan, const std::array<nb::object, 5>& tensors)
      : q_nope("q_nope", plan.view(tensors[0]), plan.batch),
        q_rope("q", plan.view(tensors[1]), plan.batch),
        positional("k", plan.view(tensors[2]), plan.batch),
        semantic("v", plan.view(tensors[3]), plan.batch),
        w_uk("w_uk", plan.view(tensors[4])) {}

  bool packs(const Plan& plan) const {
    return plan.packs({&q_nope, &q_rope, &positional, &semantic});
  }

  CondenseInputs inputs(std::int64_t at) const {
    return {{q_nope.entry(at), q_rope.entry(at)},
            {semantic.entry(at), positional.entry(at)},
            w_uk.tensor};
  }

  CondenseInputGrads grads(std::int64_t at, bool add) const {
    return {q_nope.entry(at),     q_rope.entry(at), semantic.entry(at),
            positional.entry(at), w_uk.tensor,      add};
  }

  BatchedView q_nope, q_rope, positional, semantic;
  SharedView w_uk;
};

/// Values of rep_bias for one entry of the batch.
std::int64_t bias_count(const Plan& plan) {
  return plan.groups() * plan.entry.layer.shape.kv_heads;
}

/// rep_positional, rep_semantic, rep_bias, scores.
struct CondenseResult {
  CondenseResult(const Plan& plan, const nb::sequence& tensors)
      : CondenseResult(plan, arguments<4>(tensors)) {}
  CondenseResult(const Plan& plan, const std::array<nb::object, 4>& tensors)
      : positional("rep_k", plan.view(tensors[0]), plan.batch),
        semantic("rep_v", plan.view(tensors[1]), plan.batch),
        bias("rep_bias", plan.view(tensors[2]), plan.batch, bias_count(plan)),
        scores("scores", plan.view(tensors[3]), plan.batch,
               bias_count(plan) * plan.entry.layer.settings.group) {}

  bool packs(const Plan& plan) const { return plan.packs({&positional, &semantic}); }

  CondenseOutputs outputs(std::int64_t at) const {
    return {semantic.entry(at), positional.entry(at), bias.floats(at), scores.floats(at),
            bias.doubles(at)};
  }

  BatchedView positional, semantic;
  DenseValues bias, scores;
};

void condense(const Plan& plan, const nb::sequence& inputs, const nb::sequence& outputs) {
  const CondenseViews in(plan, inputs);
  const CondenseResult out(plan, outputs);
  plan.run(OperatorPart::condense, in.packs(plan) && out.packs(plan),
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_condense(spec, in.inputs(at), out.outputs(at), place);
           });
}

/// Makes the gradients of the inputs out of those of rep_positional, rep_semantic, rep_bias; with
/// `add` they are added to what is there.
void condense_backward(const Plan& plan, const nb::sequence& inputs, const nb::sequence& outputs,
                       const nb::sequence& grads, const nb::sequence& into, bool add) {
  const CondenseViews in(plan, inputs);
  const CondenseResult out(plan, outputs);
  const auto given = arguments<3>(grads);
  const BatchedView positional("the gradient of rep_k", plan.view(given[0]), plan.batch);
  const BatchedView semantic("the gradient of rep_v", plan.view(given[1]), plan.batch);
  const DenseValues bias("the gradient of rep_bias", plan.view(given[2]), plan.batch,
                         bias_count(plan));
  const CondenseViews to(plan, into);
  const bool together =
      in.packs(plan) && out.packs(plan) && to.packs(plan) && plan.packs({&positional, &semantic});
  if (!add && !together && !to.w_uk.tensor.empty()) {
    // w_uk is one for the batch: calls for each entry would overwrite each other's gradient.
    for (nb::handle grad : into) {
      if (!grad.is_none()) grad.attr("zero_")();
    }
    add = true;
  }
  plan.run(OperatorPart::condense_backward, together,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_condense_backward(
                 spec, in.inputs(at), out.outputs(at),
                 {semantic.entry(at), positional.entry(at), bias.floats(at), bias.doubles(at)},
                 to.grads(at, add), place);
           });
}

// --- attend ------------------------------------------------------------------------------------

/// q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias: inputs, or their
/// gradients.
struct AttendViews {
  AttendViews(const Plan& plan, const nb::sequence& views)
      : AttendViews(plan, arguments<9>(views)) {}
  AttendViews(const Plan& plan, const std::array<nb::object, 9>& views)
      : bias("rep_bias", plan.view(views[8]), plan.batch, bias_count(plan)) {
    static constexpr std::array<const char*, 8> kNames = {"q_nope",     "q",     "k_nope", "k", "v",
                                                          "rep_k_nope", "rep_k", "rep_v"};
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      tensors[i] = BatchedView(kNames[i], plan.view(views[i]), plan.batch);
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

void attend(const Plan& plan, const nb::sequence& inputs, nb::handle out, nb::handle lse) {
  const AttendViews in(plan, inputs);
  const BatchedView result("out", plan.view(out), plan.batch);
  const DenseValues sums("lse", plan.view(lse), plan.batch, lse_count(plan));
  plan.run(OperatorPart::attend, in.packs(plan) && plan.packs({&result}),
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_attend(spec, in.inputs(at),
                             {result.entry(at), sums.floats(at), sums.doubles(at)}, place);
           });
}

void attend_backward(const Plan& plan, const nb::sequence& inputs, nb::handle out, nb::handle lse,
                     nb::handle out_grad, const nb::sequence& into) {
  const AttendViews in(plan, inputs);
  const AttendViews grads(plan, into);
  const BatchedView result("out", plan.view(out), plan.batch);
  const BatchedView result_grad("the gradient of out", plan.view(out_grad), plan.batch);
  const DenseValues sums("lse", plan.view(lse), plan.batch, lse_count(plan));
  const bool together = in.packs(plan) && grads.packs(plan) && plan.packs({&result, &result_grad});
  plan.run(OperatorPart::attend_backward, together,
           [&](const OperatorSpec& spec, std::int64_t at, const OperatorPlace& place) {
             operator_attend_backward(spec, in.inputs(at), result.entry(at), sums.floats(at),
                                      result_grad.entry(at), grads.grads(at), place);
           });
}

// --- plans -------------------------------------------------------------------------------------

using Starts = std::optional<std::vector<std::int64_t>>;

void dims_check(const char* name, const MaybeView& view, std::size_t dims, const char* takes) {
  if (!view || view->dims == dims) return;
  throw Error(ErrorKind::bad_input, std::string(name) + " has shape " + view_dims_text(*view) +
                                        "; it takes [" + takes + "]");
}

/// The plan of a call with these tensors. MLA without semantic or value, which a half does not see:
/// any width serves in their place.
std::shared_ptr<const Plan> plan_of(nb::handle q_nope_, nb::handle q_rope_, nb::handle positional_,
                                    nb::handle semantic_, nb::handle value_,
                                    const std::string& settings, double scale, const Starts& starts,
                                    const std::vector<double>& frequencies,
                                    const std::string& rope_layout, const std::string& backend) {
  const MaybeView q_nope = view_of(q_nope_), q_rope = view_of(q_rope_);
  const MaybeView positional = view_of(positional_), semantic = view_of(semantic_);
  const MaybeView value = view_of(value_);
  const bool mla = q_nope.has_value();
  dims_check("q_nope", q_nope, 4, "B, n, H, d_n");
  dims_check("q", q_rope, 4, "B, n, H, d");
  dims_check("k", positional, mla ? 3 : 4, mla ? "B, n, d_r" : "B, n, KV, d");
  dims_check(mla ? "c" : "v", semantic, mla ? 3 : 4, mla ? "B, n, d_c" : "B, n, KV, d_v");
  dims_check("v", value, 4, mla ? "B, n, H, d_v" : "B, n, KV, d_v");
  if (!q_rope || !positional || (!mla && !value)) {
    throw Error(ErrorKind::bad_input, "q, k and v are tensors, not None");
  }
  PlanSpec spec;
  spec.mla = mla;
  spec.dims = {q_rope->shape[2], positional->shape[2], 0, q_rope->last(), 0, 0};
  if (mla) {
    spec.dims[1] = 1;
    spec.dims[2] = q_nope->last();
    spec.dims[4] = semantic ? semantic->last() : 4 * q_nope->last();
  }
  spec.dims[5] = value ? value->last() : q_nope->last();
  spec.settings = settings;
  spec.scale = scale;
  spec.frequencies = frequencies;
  spec.rope_layout = rope_layout;
  spec.batch = q_rope->shape[0];
  spec.tokens = q_rope->shape[1];
  spec.starts = starts;
  spec.device = q_rope->device;
  if (backend == "auto") {
    spec.backend = q_rope->on_gpu                ? Backend::cuda
                   : q_rope->dtype == DType::f64 ? Backend::reference
                                                 : Backend::cpu;
  } else {
    spec.backend = backend_parse(backend);
    if ((spec.backend == Backend::cuda) != q_rope->on_gpu) {
      throw Error(ErrorKind::bad_input, "backend " + backend + " does not take tensors on " +
                                            (q_rope->on_gpu ? "a GPU" : "the CPU"));
    }
  }
  return plan_find(spec);
}

std::shared_ptr<const Plan> plan_of_dims(bool mla, const std::vector<std::int64_t>& dims,
                                         const std::string& settings, double scale,
                                         const std::vector<double>& frequencies,
                                         const std::string& rope_layout, std::int64_t batch,
                                         std::int64_t tokens, const Starts& starts,
                                         const std::string& backend) {
  PlanSpec spec;
  spec.mla = mla;
  std::copy_n(dims.begin(), std::min(dims.size(), spec.dims.size()), spec.dims.begin());
  spec.settings = settings;
  spec.scale = scale;
  spec.frequencies = frequencies;
  spec.rope_layout = rope_layout;
  spec.batch = batch;
  spec.tokens = tokens;
  spec.starts = starts;
  spec.backend = backend_parse(backend);
  return plan_find(spec);
}

}  // namespace

void operators_bind(nb::module_& module) {
  nb::class_<Plan>(module, "Plan", "All of an operator's call but its tensors.")
      .def_prop_ro("groups", &Plan::groups, "Representatives of one entry of the batch.")
      .def_prop_ro(
          "group", [](const Plan& plan) { return plan.entry.layer.settings.group; },
          "Tokens of a representative.")
      .def_prop_ro(
          "has_bias", [](const Plan& plan) { return plan.entry.layer.settings.mass != Mass::none; },
          "Whether rep_bias is more than zeros.")
      .def_prop_ro(
          "has_bias_grad",
          [](const Plan& plan) { return plan.entry.layer.settings.mass == Mass::score; },
          "Whether rep_bias has a gradient.");
  module.def("plan_of", &plan_of, nb::arg("q_nope").none(), nb::arg("q_rope"),
             nb::arg("positional"), nb::arg("semantic").none(), nb::arg("value").none(),
             nb::arg("settings"), nb::arg("scale"), nb::arg("starts").none(),
             nb::arg("frequencies"), nb::arg("rope_layout"), nb::arg("backend"),
             "The plan of a call with these tensors of PyTorch.");
  module.def("plan", &plan_of_dims, nb::arg("mla"), nb::arg("dims"), nb::arg("settings"),
             nb::arg("scale"), nb::arg("frequencies"), nb::arg("rope_layout"), nb::arg("batch"),
             nb::arg("tokens"), nb::arg("starts").none(), nb::arg("backend"),
             "dims: heads, kv_heads, d_nope, d_rope, d_latent, d_value. settings: \"group=16 …\".");
  module.def("set_threads", &contexts_set_threads, nb::arg("threads"));
  module.def("condense", &condense, nb::arg("plan"), nb::arg("inputs"), nb::arg("outputs"),
             "inputs: q_nope, q_rope, positional, semantic, w_uk; outputs: rep_positional, "
             "rep_semantic, rep_bias, scores.");
  module.def("condense_backward", &condense_backward, nb::arg("plan"), nb::arg("inputs"),
             nb::arg("outputs"), nb::arg("grads"), nb::arg("into"), nb::arg("add"),
             "grads: of rep_positional, rep_semantic, rep_bias; into: of the inputs, added to what "
             "is there with `add`.");
  module.def("attend", &attend, nb::arg("plan"), nb::arg("inputs"), nb::arg("out"),
             nb::arg("lse").none(),
             "inputs: q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias.");
  module.def("attend_backward", &attend_backward, nb::arg("plan"), nb::arg("inputs"),
             nb::arg("out"), nb::arg("lse"), nb::arg("out_grad"), nb::arg("into"));
}

}  // namespace lca::python
