#include "support/operator_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/reference/operator.h"
#include "core/context_state.h"
#include "support/compare.h"

namespace lca::test {
namespace {

/// Runs all four operators in one place.
class OperatorRun {
 public:
  OperatorRun(const OperatorCase& a_case, const OperatorPlace& place, DType dtype,
              const OperatorRuns& runs)
      : c_(a_case), place_(place), dtype_(dtype), runs_(runs), random_(7) {
    n_ = c_.spec.tokens();
    m_ = c_.spec.groups();
  }

  void condense() {
    const AttentionShape& shape = c_.spec.layer.shape;
    rep_semantic_ = values(m_, shape.kv_heads, shape.d_semantic());
    rep_positional_ = values(m_, shape.kv_heads, shape.d_positional());
    rep_bias_ = floats(m_ * shape.kv_heads);
    results_.scores = floats(m_ * shape.kv_heads * c_.spec.layer.settings.group);
    poison();
    operator_condense(c_.spec, c_.inputs.condense_inputs(), condense_outputs(), place_);
    add("rep_semantic", rep_semantic_);
    add("rep_positional", rep_positional_);
    add("rep_bias", rep_bias_, kErrorFloorBias);
    add("scores", results_.scores, kErrorFloorBias);
  }

  void condense_backward() {
    CondenseOutputGrads out_grads;
    out_grads.semantic = c_.rep_semantic_grad.view();
    out_grads.positional = c_.rep_positional_grad.view();
    if (!c_.rep_bias_grad.empty()) out_grads.bias = c_.rep_bias_grad.data();
    const OperatorValues& in = c_.inputs;
    std::array grads{like(in.q_nope), like(in.q_rope), like(in.semantic), like(in.positional),
                     like(in.w_uk)};
    if (c_.accumulate) {
      Random same(11);
      for (Values& one : grads) one.fill_normal(1, same);
    }
    CondenseInputGrads in_grads;
    in_grads.q_nope = wanted(grads[0], 0);
    in_grads.q_rope = wanted(grads[1], 1);
    in_grads.semantic = wanted(grads[2], 2);
    in_grads.positional = wanted(grads[3], 3);
    in_grads.w_uk = wanted(grads[4], 4);
    in_grads.accumulate = c_.accumulate;
    poison();
    operator_condense_backward(c_.spec, in.condense_inputs(), condense_outputs(), out_grads,
                               in_grads, place_);
    const std::array names{"d q_nope", "d q_rope", "d semantic", "d positional", "d w_uk"};
    for (unsigned i = 0; i < grads.size(); ++i) add_wanted(names[i], grads[i], i);
  }

  void attend() {
    const AttentionShape& shape = c_.spec.layer.shape;
    const DType dtype = is_reference() ? dtype_ : c_.out_dtype;
    Values out(dtype, n_, shape.heads, shape.d_value, &random_);
    lse_ = floats(n_ * shape.heads);
    poison();
    operator_attend(c_.spec, attend_inputs(), {out.tensor(), lse_.data()}, place_);
    add("out", out);
    add("lse", lse_, kErrorFloorBias);
    results_.out = is_reference() ? out.rounded(c_.out_dtype) : std::move(out);
  }

  void attend_backward() {
    std::array grads{like(c_.inputs.q_nope), like(c_.inputs.q_rope), like(c_.exact.k_nope),
                     like(c_.exact.k_rope),  like(c_.exact.value),   like(c_.groups.k_nope),
                     like(c_.groups.k_rope), like(c_.groups.value)};
    std::vector<float> bias = floats(m_ * c_.spec.layer.shape.kv_heads);
    AttendInputGrads in_grads;
    const std::array<Tensor*, 8> to{&in_grads.q_nope,        &in_grads.q_rope,
                                    &in_grads.exact.k_nope,  &in_grads.exact.k_rope,
                                    &in_grads.exact.value,   &in_grads.groups.k_nope,
                                    &in_grads.groups.k_rope, &in_grads.groups.value};
    for (unsigned i = 0; i < grads.size(); ++i) *to[i] = wanted(grads[i], i);
    if (is_wanted(8)) in_grads.bias = bias.data();
    poison();
    const ConstTensor out = (runs_.out != nullptr ? *runs_.out : results_.out).view();
    if (is_reference()) {
      reference::attend_backward(c_.spec, attend_inputs(), c_.out_grad.view(), in_grads, &out);
    } else {
      operator_attend_backward(c_.spec, attend_inputs(), out, lse_.data(), c_.out_grad.view(),
                               in_grads, place_);
    }
    const std::array names{"D q_nope", "D q_rope",     "D k_nope",     "D k_rope",
                           "D value",  "D rep k_nope", "D rep k_rope", "D rep value"};
    for (unsigned i = 0; i < grads.size(); ++i) add_wanted(names[i], grads[i], i);
    if (is_wanted(8)) add("D rep_bias", bias, kErrorFloorBias);
  }

  OperatorResults results() { return std::move(results_); }

 private:
  bool is_reference() const { return place_.backend == Backend::reference; }
  Values values(std::int64_t d0, std::int64_t d1, std::int64_t d2) {
    return Values(dtype_, d0, d1, d2, &random_);
  }
  Values like(const Values& input) {
    return values(input.shape()[0], input.shape()[1], input.shape()[2]);
  }
  static std::vector<float> floats(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count),
                              std::numeric_limits<float>::quiet_NaN());
  }
  bool is_wanted(unsigned i) const { return (runs_.unwanted >> i & 1U) == 0; }
  Tensor wanted(Values& to, unsigned i) const { return is_wanted(i) ? to.tensor() : Tensor(); }
  void poison() {
    if (runs_.poison && place_.context != nullptr) place_.context->state().workspace.poison();
  }

  CondenseOutputs condense_outputs() {
    return {rep_semantic_.tensor(), rep_positional_.tensor(), rep_bias_.data(),
            results_.scores.data()};
  }
  AttendInputs attend_inputs() const {
    AttendInputs in;
    in.queries = c_.inputs.queries();
    in.exact = c_.exact.entries();
    in.groups = c_.groups.entries();
    if (!c_.bias.empty()) in.bias = c_.bias.data();
    return in;
  }

  void add_wanted(const char* name, const Values& values, unsigned i, double floor = kErrorFloor) {
    if (is_wanted(i)) add(name, values, floor);
  }
  void add(const char* name, const Values& values, double floor = kErrorFloor) {
    results_.tensors.push_back({name, values.doubles(), floor});
    results_.bytes.push_back(values.bytes());
    results_.gaps_are_intact = results_.gaps_are_intact && values.gaps_are_intact();
  }
  void add(const char* name, const std::vector<float>& values, double floor = kErrorFloor) {
    results_.tensors.push_back({name, {values.begin(), values.end()}, floor});
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    results_.bytes.emplace_back(bytes, bytes + values.size() * sizeof(float));
  }

  const OperatorCase& c_;
  OperatorPlace place_;
  DType dtype_;
  OperatorRuns runs_;
  Random random_;
  std::int64_t n_ = 0, m_ = 0;
  Values rep_semantic_, rep_positional_;
  std::vector<float> rep_bias_, lse_;
  OperatorResults results_;
};

}  // namespace

OperatorResults reference_results(const OperatorCase& a_case) {
  OperatorPlace place;
  place.backend = Backend::reference;
  OperatorRun run(a_case, place, DType::f64, {});
  run.condense();
  run.condense_backward();
  run.attend();
  run.attend_backward();
  return run.results();
}

OperatorResults cpu_results(const OperatorCase& a_case, Context& context,
                            const OperatorRuns& runs) {
  OperatorPlace place;
  place.backend = Backend::cpu;
  place.context = &context;
  OperatorRun run(a_case, place, a_case.dtype, runs);
  run.condense();
  run.condense_backward();
  run.attend();
  run.attend_backward();
  return run.results();
}

bool has_near_tie(const OperatorCase& a_case, const OperatorResults& expected) {
  const Settings& settings = a_case.spec.layer.settings;
  if (!selects(settings) || settings.group < 2) return false;
  const auto g = static_cast<std::size_t>(settings.group);
  for (std::size_t first = 0; first < expected.scores.size(); first += g) {
    std::vector<float> scores(expected.scores.begin() + static_cast<std::ptrdiff_t>(first),
                              expected.scores.begin() + static_cast<std::ptrdiff_t>(first + g));
    std::sort(scores.rbegin(), scores.rend());
    if (scores[0] - scores[1] < 1e-4F * std::max(1.0F, std::abs(scores[0]))) return true;
  }
  return false;
}

double worst_error(const OperatorResults& expected, const OperatorResults& actual,
                   std::string& where) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    const NamedValues& tensor = expected.tensors[i];
    const double error = error_of(tensor.values, actual.tensors[i].values, tensor.floor);
    if (error > worst || std::isnan(error)) {
      worst = error;
      where = tensor.name;
    }
  }
  return worst;
}

}  // namespace lca::test
