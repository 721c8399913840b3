// Times of condensing as an operator, both passes: what a training step calls.

#include <lca/operator.h>

#include <vector>

#include "bench/cuda/bench_inputs.h"
#include "bench/cuda/stopwatch.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

OperatorSpec operator_spec(const BenchSetup& setup, std::int64_t length, std::int64_t documents) {
  OperatorSpec spec;
  spec.layer = setup.spec;
  for (std::int64_t i = 0; i <= documents; ++i) spec.starts.push_back(i * length);
  spec.validate();
  return spec;
}

/// Values of all tensors that are as long as the prompt, and bytes of one set of them.
double token_values(const AttentionShape& shape) {
  return static_cast<double>(shape.heads * (shape.d_nope + shape.d_rope) + shape.entry_values());
}

}  // namespace

double bench_operator_traffic(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                              bool backward) {
  const OperatorSpec spec = operator_spec(setup, length, documents);
  const AttentionShape& shape = spec.layer.shape;
  const double tokens = 2.0 * static_cast<double>(spec.tokens()) * token_values(shape);
  const double groups = 2.0 * static_cast<double>(spec.groups() * shape.entry_values());
  return (backward ? 2 : 1) * tokens + groups;
}

double bench_operator_bytes(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                            bool backward) {
  const OperatorSpec spec = operator_spec(setup, length, documents);
  OperatorPlace place;
  place.backend = Backend::cuda;
  place.device = setup.options.device;
  const auto part = backward ? OperatorPart::condense_backward : OperatorPart::condense;
  return bench_operator_traffic(setup, length, documents, backward) *
             sets_for(device_of(setup), bench_operator_traffic(setup, length, documents, false)) +
         static_cast<double>(lca::operator_workspace_bytes(spec, part, place));
}

Timed bench_operator(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                     bool backward) {
  const OperatorSpec spec = operator_spec(setup, length, documents);
  const AttentionShape& shape = spec.layer.shape;
  const std::int64_t n = spec.tokens();
  const std::int64_t m = spec.groups();
  if (m < 1) fail_input("nothing is condensed at {} tokens", length);
  const bool mla = shape.form == Form::mla;
  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  Inputs inputs(stream);
  const auto random = [&](std::int64_t rows, std::int64_t heads, std::int64_t width,
                          float deviation) {
    return Tensor(inputs.random(rows * heads * width, deviation), DType::bf16,
                  {rows, heads, width});
  };
  const auto semantic = [&](std::int64_t rows) {
    return random(rows, shape.kv_heads, shape.d_semantic(), 1);
  };
  const auto positional = [&](std::int64_t rows) {
    return random(rows, shape.kv_heads, shape.d_positional(), 1);
  };
  const int sets = sets_for(device, bench_operator_traffic(setup, length, documents, false));
  struct Set {
    CondenseInputs in;
    CondenseInputGrads grads;
  };
  std::vector<Set> all(static_cast<std::size_t>(sets));
  Tensor w_uk;
  if (mla) w_uk = random(shape.heads, shape.d_nope, shape.d_latent, 0.05f);
  for (Set& set : all) {
    const auto queries = [&](Tensor& nope, Tensor& rope) {
      if (mla) nope = random(n, shape.heads, shape.d_nope, 0.5f);
      rope = random(n, shape.heads, shape.d_rope, 0.5f);
    };
    Tensor nope, rope;
    queries(nope, rope);
    set.in = {{nope, rope}, {semantic(n), positional(n)}, w_uk};
    if (!backward) continue;
    queries(set.grads.q_nope, set.grads.q_rope);
    set.grads.semantic = semantic(n);
    set.grads.positional = positional(n);
    if (mla) set.grads.w_uk = random(shape.heads, shape.d_nope, shape.d_latent, 1);
  }
  CondenseOutputs out;
  out.semantic = semantic(m);
  out.positional = positional(m);
  out.bias = inputs.random<float>(m * shape.kv_heads);
  out.scores = inputs.random<float>(m * shape.kv_heads * spec.layer.settings.group);
  const CondenseOutputGrads grads{semantic(m), positional(m), out.bias};

  OperatorPlace place;
  place.backend = Backend::cuda;
  place.device = device.ordinal;
  place.stream = static_cast<cudaStream_t>(stream);
  const auto part = backward ? OperatorPart::condense_backward : OperatorPart::condense;
  place.workspace = inputs.allocate<std::byte>(
      static_cast<std::int64_t>(lca::operator_workspace_bytes(spec, part, place)));
  return time_graph(stream, sets, 200, [&](int index) {
    const Set& set = all[static_cast<std::size_t>(index)];
    if (backward) {
      lca::operator_condense_backward(spec, set.in, out, grads, set.grads, place);
    } else {
      lca::operator_condense(spec, set.in, out, place);
    }
  });
}

}  // namespace lca::cuda
