/// The edge of the operators: checks every tensor, then hands the call to its backend.

#include <lca/operator.h>

#include <array>
#include <string_view>

#include "attention/cpu/operator.h"
#include "attention/layout.h"
#include "attention/reference/operator.h"
#include "core/error.h"

namespace lca {
namespace {

using Dims = std::array<std::int64_t, 3>;

/// Types a backend reads and writes: f64 is the reference's alone, float32 not the GPU's.
bool dtype_fits(DType dtype, Backend backend) {
  if (backend == Backend::reference) return true;
  return dtype == DType::bf16 || (dtype == DType::f32 && backend == Backend::cpu);
}

void check_view(std::string_view name, const ConstTensor& tensor, const Dims& wanted,
                Backend backend) {
  if (tensor.shape != wanted) {
    fail_input("{} has shape [{},{},{}], not [{},{},{}]", name, tensor.shape[0], tensor.shape[1],
               tensor.shape[2], wanted[0], wanted[1], wanted[2]);
  }
  if (tensor.empty() && wanted[0] > 0) fail_input("{} has no memory", name);
  if (tensor.stride[2] != 1) fail_input("{}: the last dimension must be contiguous", name);
  if (!dtype_fits(tensor.dtype, backend)) {
    fail_input("{} is {}; this backend takes {}", name, dtype_name(tensor.dtype),
               backend == Backend::cuda ? "bf16" : "f32 and bf16");
  }
}

/// A tensor the caller may leave out.
void check_wanted(std::string_view name, const Tensor& tensor, const Dims& wanted,
                  Backend backend) {
  if (!tensor.empty()) check_view(name, tensor, wanted, backend);
}

/// Doubles in place of floats are for the reference alone.
void check_double(std::string_view name, const double* values, Backend backend) {
  if (values != nullptr && backend != Backend::reference) {
    fail_input("{} is f64; this backend takes f32", name);
  }
}

/// Shapes of all tensors of a call.
struct Shapes {
  explicit Shapes(const OperatorSpec& spec)
      : shape(spec.layer.shape),
        mla(shape.form == Form::mla),
        n(spec.tokens()),
        m(spec.groups()),
        q_nope{n, shape.heads, shape.d_nope},
        q_rope{n, shape.heads, shape.d_rope},
        w_uk{shape.heads, shape.d_nope, shape.d_latent} {}

  Dims semantic(std::int64_t rows) const { return {rows, shape.kv_heads, shape.d_semantic()}; }
  Dims positional(std::int64_t rows) const { return {rows, shape.kv_heads, shape.d_positional()}; }
  Dims k_nope(std::int64_t rows) const { return {rows, shape.heads, shape.d_nope}; }
  Dims value(std::int64_t rows) const {
    return {rows, mla ? shape.heads : shape.kv_heads, shape.d_value};
  }

  const AttentionShape& shape;
  bool mla;
  std::int64_t n, m;
  Dims q_nope, q_rope, w_uk;
};

void check_queries(const Shapes& shapes, const Queries& queries, Backend backend) {
  if (shapes.mla) check_view("q_nope", queries.nope, shapes.q_nope, backend);
  check_view(shapes.mla ? "q_rope" : "q", queries.rope, shapes.q_rope, backend);
}

void check_condense(const Shapes& shapes, const CondenseInputs& in, const CondenseOutputs& out,
                    Backend backend) {
  check_queries(shapes, in.queries, backend);
  check_view(shapes.mla ? "c" : "v", in.entries.semantic, shapes.semantic(shapes.n), backend);
  check_view(shapes.mla ? "k_rope" : "k", in.entries.positional, shapes.positional(shapes.n),
             backend);
  if (shapes.mla) check_view("w_uk", in.w_uk, shapes.w_uk, backend);
  check_view(shapes.mla ? "rep_c" : "rep_v", out.semantic, shapes.semantic(shapes.m), backend);
  check_view(shapes.mla ? "rep_k_rope" : "rep_k", out.positional, shapes.positional(shapes.m),
             backend);
  if (shapes.m > 0 && out.bias == nullptr && out.bias_f64 == nullptr) {
    fail_input("rep_bias has no memory");
  }
  check_double("rep_bias", out.bias_f64, backend);
}

void check_entries(const Shapes& shapes, const HeadEntries& entries, std::int64_t rows,
                   Backend backend) {
  if (rows == 0) return;
  if (shapes.mla) check_view("k_nope", entries.k_nope, shapes.k_nope(rows), backend);
  check_view(shapes.mla ? "k_rope" : "k", entries.k_rope, shapes.positional(rows), backend);
  check_view("v", entries.value, shapes.value(rows), backend);
}

void check_entry_grads(const Shapes& shapes, const HeadEntryGrads& grads, std::int64_t rows,
                       Backend backend) {
  if (shapes.mla)
    check_wanted("the gradient of k_nope", grads.k_nope, shapes.k_nope(rows), backend);
  check_wanted("the gradient of k", grads.k_rope, shapes.positional(rows), backend);
  check_wanted("the gradient of v", grads.value, shapes.value(rows), backend);
}

void check_attend(const Shapes& shapes, const AttendInputs& in, Backend backend) {
  check_queries(shapes, in.queries, backend);
  check_entries(shapes, in.exact, shapes.n, backend);
  check_entries(shapes, in.groups, shapes.m, backend);
  check_double("rep_bias", in.bias_f64, backend);
}

void check_place(const OperatorPlace& place) {
  if (place.backend == Backend::cpu && place.context == nullptr) {
    fail_input("the CPU's operators need a context");
  }
}

}  // namespace

std::int64_t OperatorSpec::groups() const {
  const Layout layout(layer.settings);
  std::int64_t sum = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) sum += layout.groups(starts[i] - starts[i - 1]);
  return sum;
}

void OperatorSpec::validate() const {
  layer.validate();
  if (starts.size() < 2 || starts.front() != 0) {
    fail_input("the documents' starts begin with 0 and end with the number of tokens");
  }
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] <= starts[i - 1]) fail_input("the documents' starts must increase");
  }
  if (starts.size() > 2 && layer.settings.summary == Summary::prompt &&
      layer.settings.method == MethodKind::lca) {
    fail_input("summary `prompt` takes one document, not {} packed ones", starts.size() - 1);
  }
}

void operator_condense(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const OperatorPlace& place) {
  spec.validate();
  check_place(place);
  check_condense(Shapes(spec), in, out, place.backend);
  switch (place.backend) {
    case Backend::reference:
      return reference::condense(spec, in, out);
    case Backend::cpu:
      return cpu::condense(spec, in, out, *place.context);
    case Backend::cuda:
      fail_incompatible("this backend has no condensing operator");
  }
}

void operator_condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                                const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                                const CondenseInputGrads& in_grads, const OperatorPlace& place) {
  spec.validate();
  check_place(place);
  const Shapes shapes(spec);
  check_condense(shapes, in, out, place.backend);
  if (shapes.m > 0 && out.scores == nullptr) {
    fail_input("the backward pass needs the scores that the forward pass wrote");
  }
  check_view("the gradient of rep_c or rep_v", out_grads.semantic, shapes.semantic(shapes.m),
             place.backend);
  check_view("the gradient of rep_k", out_grads.positional, shapes.positional(shapes.m),
             place.backend);
  check_double("the gradient of rep_bias", out_grads.bias_f64, place.backend);
  if (shapes.mla)
    check_wanted("the gradient of q_nope", in_grads.q_nope, shapes.q_nope, place.backend);
  check_wanted("the gradient of q", in_grads.q_rope, shapes.q_rope, place.backend);
  check_wanted("the gradient of c or v", in_grads.semantic, shapes.semantic(shapes.n),
               place.backend);
  check_wanted("the gradient of k", in_grads.positional, shapes.positional(shapes.n),
               place.backend);
  if (shapes.mla) check_wanted("the gradient of w_uk", in_grads.w_uk, shapes.w_uk, place.backend);
  switch (place.backend) {
    case Backend::reference:
      return reference::condense_backward(spec, in, out, out_grads, in_grads);
    case Backend::cpu:
      return cpu::condense_backward(spec, in, out, out_grads, in_grads, *place.context);
    case Backend::cuda:
      fail_incompatible("this backend has no condensing operator");
  }
}

void operator_attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                     const OperatorPlace& place) {
  spec.validate();
  check_place(place);
  const Shapes shapes(spec);
  check_attend(shapes, in, place.backend);
  check_view("out", out.out, {shapes.n, shapes.shape.heads, shapes.shape.d_value}, place.backend);
  check_double("lse", out.lse_f64, place.backend);
  if (out.lse == nullptr && place.backend != Backend::reference) fail_input("lse has no memory");
  switch (place.backend) {
    case Backend::reference:
      return reference::attend(spec, in, out);
    case Backend::cpu:
      return cpu::attend(spec, in, out, *place.context);
    case Backend::cuda:
      fail_incompatible("this backend has no attending operator");
  }
}

void operator_attend_backward(const OperatorSpec& spec, const AttendInputs& in,
                              const ConstTensor& out, const float* lse, const ConstTensor& out_grad,
                              const AttendInputGrads& in_grads, const OperatorPlace& place) {
  spec.validate();
  check_place(place);
  const Shapes shapes(spec);
  check_attend(shapes, in, place.backend);
  const Dims out_dims{shapes.n, shapes.shape.heads, shapes.shape.d_value};
  check_view("out", out, out_dims, place.backend);
  check_view("the gradient of out", out_grad, out_dims, place.backend);
  check_double("the gradient of rep_bias", in_grads.bias_f64, place.backend);
  if (lse == nullptr && place.backend != Backend::reference) {
    fail_input("the backward pass needs the lse that the forward pass wrote");
  }
  if (shapes.mla)
    check_wanted("the gradient of q_nope", in_grads.q_nope, shapes.q_nope, place.backend);
  check_wanted("the gradient of q", in_grads.q_rope, shapes.q_rope, place.backend);
  check_entry_grads(shapes, in_grads.exact, shapes.n, place.backend);
  check_entry_grads(shapes, in_grads.groups, shapes.m, place.backend);
  switch (place.backend) {
    case Backend::reference:
      return reference::attend_backward(spec, in, out_grad, in_grads);
    case Backend::cpu:
      return cpu::attend_backward(spec, in, out, lse, out_grad, in_grads, *place.context);
    case Backend::cuda:
      fail_incompatible("this backend has no attending operator");
  }
}

std::size_t operator_workspace_bytes(const OperatorSpec& spec, OperatorPart, const OperatorPlace&) {
  spec.validate();
  return 0;
}

}  // namespace lca
