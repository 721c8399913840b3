// The operators of <lca/operator.h> in double: the halves composed against the attention of whole
// sequences, and what their tensors may be.

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "attention/layout.h"
#include "attention/reference/backward.h"
#include "attention/reference/reference.h"
#include "support/compare.h"
#include "support/operator_case.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

constexpr double kToleranceDouble = 1e-10;
const OperatorPlace kReferencePlace{.backend = Backend::reference};

OperatorSpec random_operator_spec(Random& random, std::int64_t tokens) {
  OperatorSpec spec;
  spec.layer.shape = random_shape(random);
  spec.layer.settings = random_settings(random, tokens);
  spec.layer.scale = random.pick({0.0, 0.3});
  random_positions(spec.layer, random);
  const bool one = spec.layer.settings.summary == Summary::prompt || random.chance(0.4);
  spec.starts = random_starts(tokens, one ? 1 : random.integer(2, 4), random);
  return spec;
}

// Document after document, each a sequence of its own.
reference::Result documents_truth(const OperatorSpec& spec, const OperatorValues& inputs) {
  const Source whole(spec.layer, inputs.weights(), inputs.queries(), inputs.entries());
  reference::Result all;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (std::size_t d = 0; d + 1 < spec.starts.size(); ++d) {
    const std::int64_t first = spec.starts[d];
    const std::int64_t length = spec.starts[d + 1] - first;
    const reference::Result part =
        reference::attention(spec.layer, inputs.weights(), whole.queries(first, length),
                             whole.entries(first, length), length);
    append(all.out, part.out);
    append(all.lse, part.lse);
    append(all.rep_semantic, part.rep_semantic);
    append(all.rep_positional, part.rep_positional);
    append(all.rep_bias, part.rep_bias);
  }
  return all;
}

reference::Result result_of(const Composed& composed) {
  reference::Result result;
  result.out = composed.out.doubles();
  result.lse.assign(composed.lse.begin(), composed.lse.end());
  result.rep_semantic = composed.rep_semantic.doubles();
  result.rep_positional = composed.rep_positional.doubles();
  result.rep_bias.assign(composed.bias.begin(), composed.bias.end());
  if (!composed.bias_f64.empty()) result.rep_bias = composed.bias_f64;
  return result;
}

TEST(Operator, TheHalvesComposedAreTheAttentionOfWholeSequences) {
  std::int64_t condensed = 0;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(scaled(200)); ++i) {
    Random random(100 + i);
    const OperatorSpec spec = random_operator_spec(random, random.integer(1, 60));
    SCOPED_TRACE(describe(spec));
    const OperatorValues inputs = random_values(spec, DType::f64, random);
    const reference::Result expected = documents_truth(spec, inputs);
    const reference::Result actual = result_of(Composed(spec, inputs, kReferencePlace));
    EXPECT_LE(error_of(expected.out, actual.out), kToleranceDouble);
    EXPECT_LE(error_of(expected.rep_semantic, actual.rep_semantic), kToleranceDouble);
    EXPECT_LE(error_of(expected.rep_positional, actual.rep_positional), kToleranceDouble);
    EXPECT_LE(error_of(expected.rep_bias, actual.rep_bias), kToleranceDouble);
    EXPECT_LE(error_of(expected.lse, actual.lse), 1e-6);  // stored as floats
    condensed += spec.groups();
  }
  EXPECT_GT(condensed, scaled(250));
}

TEST(Operator, FloatsAndBfloat16AreReadExactlyAndRoundedOnce) {
  for (std::uint64_t i = 0; i < 60; ++i) {
    Random random(900 + i);
    OperatorSpec spec = random_operator_spec(random, 40);
    if (spec.layer.shape.form == Form::mla) {
      // Keys and values of MLA are rounded between the halves, which is the caller's affair.
      spec.layer.shape = AttentionShape::gqa(4, 2, 6, 5);
      if (spec.layer.settings.positions == Positions::entry) {
        spec.layer.rotation = random_rotation(random, 6);
      }
    }
    SCOPED_TRACE(describe(spec));
    const DType dtype = random.pick({DType::f32, DType::bf16});
    const OperatorValues inputs = random_values(spec, dtype, random);
    const reference::Result actual = result_of(Composed(spec, inputs, kReferencePlace));
    EXPECT_TRUE(close(documents_truth(spec, inputs), actual, dtype == DType::f32 ? 1e-6 : 2e-2));
  }
}

TEST(Operator, TheBackwardHalvesComposedAreTheGradientsOfTheWhole) {
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(scaled(150)); ++i) {
    Random random(300 + i);
    const OperatorSpec spec = random_operator_spec(random, random.integer(1, 50));
    SCOPED_TRACE(describe(spec));
    const OperatorValues inputs = random_values(spec, DType::f64, random);
    Values out_grad(DType::f64, spec.tokens(), spec.layer.shape.heads, spec.layer.shape.d_value);
    out_grad.fill_normal(1, random);
    const OperatorValues actual = Composed(spec, inputs, kReferencePlace).backward(out_grad);
    const reference::Gradients expected = reference::attention_backward(
        spec, inputs.weights(), inputs.queries(), inputs.entries(), out_grad.view());
    EXPECT_LE(error_of(expected.q_nope.values, actual.q_nope.doubles()), kToleranceDouble);
    EXPECT_LE(error_of(expected.q_rope.values, actual.q_rope.doubles()), kToleranceDouble);
    EXPECT_LE(error_of(expected.semantic.values, actual.semantic.doubles()), kToleranceDouble);
    EXPECT_LE(error_of(expected.positional.values, actual.positional.doubles()), kToleranceDouble);
    EXPECT_LE(error_of(expected.w_uk.values, actual.w_uk.doubles()), kToleranceDouble);
    EXPECT_LE(error_of(expected.w_uv.values, actual.w_uv.doubles()), kToleranceDouble);
  }
}

// One setting of MLA with three groups, for the tests below.
OperatorSpec small_spec() {
  OperatorSpec spec;
  spec.layer.shape = AttentionShape::mla(2, 3, 4, 5, 3);
  spec.layer.settings.group = 3;
  spec.layer.settings.window = 4;
  spec.layer.settings.sink = 1;
  spec.layer.settings.summary_queries = 2;
  spec.layer.settings.mass = Mass::score;
  spec.starts = {0, 15};
  return spec;
}

// Gradients of condensation for random gradients of its outputs.
struct CondenseBackward {
  CondenseBackward(const OperatorSpec& spec_, const OperatorValues& inputs_, Random& random)
      : composed(spec_, inputs_, kReferencePlace),
        semantic(DType::f64, spec_.groups(), 1, spec_.layer.shape.d_semantic()),
        positional(DType::f64, spec_.groups(), 1, spec_.layer.shape.d_positional()),
        bias(static_cast<std::size_t>(spec_.groups()), 0.7F) {
    semantic.fill_normal(1, random);
    positional.fill_normal(1, random);
  }

  void run(const CondenseInputGrads& to) {
    CondenseOutputGrads from;
    from.semantic = semantic.view();
    from.positional = positional.view();
    from.bias = bias.data();
    operator_condense_backward(composed.spec, composed.inputs.condense_inputs(),
                               composed.condense_outputs(), from, to, kReferencePlace);
  }

  static CondenseInputGrads all_of(OperatorValues& grads) {
    CondenseInputGrads to;
    to.q_nope = grads.q_nope.tensor();
    to.q_rope = grads.q_rope.tensor();
    to.semantic = grads.semantic.tensor();
    to.positional = grads.positional.tensor();
    to.w_uk = grads.w_uk.tensor();
    return to;
  }

  Composed composed;
  Values semantic, positional;
  std::vector<float> bias;
};

TEST(Operator, RowsThatNoGroupTouchesGetNoGradientAndAccumulatingAdds) {
  Random random(5);
  const OperatorSpec spec = small_spec();
  const OperatorValues inputs = random_values(spec, DType::f64, random);
  CondenseBackward backward(spec, inputs, random);
  OperatorValues grads = OperatorValues::of(spec, DType::f64);
  backward.run(CondenseBackward::all_of(grads));
  const std::vector<double> once = grads.semantic.doubles();
  const Layout layout(spec.layer.settings);
  const std::int64_t width = spec.layer.shape.d_latent;
  for (std::int64_t i = 0; i < spec.tokens(); ++i) {
    const bool grouped = i >= 1 && i < layout.group_range(spec.groups() - 1).end;
    double sum = 0;
    for (std::int64_t k = 0; k < width; ++k) {
      sum += std::abs(once[static_cast<std::size_t>(i * width + k)]);
    }
    EXPECT_EQ(sum > 0, grouped) << i;
  }

  CondenseInputGrads again = CondenseBackward::all_of(grads);
  again.accumulate = true;
  const std::vector<double> weights_once = grads.w_uk.doubles();
  backward.run(again);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(grads.semantic.get(static_cast<std::int64_t>(i)), 2 * once[i]);
  }
  for (std::size_t i = 0; i < weights_once.size(); ++i) {
    EXPECT_EQ(grads.w_uk.get(static_cast<std::int64_t>(i)), 2 * weights_once[i]);
  }
}

TEST(Operator, GradientsOfPackedDocumentsReplaceWhatWasThere) {
  Random random(10);
  OperatorSpec spec = small_spec();
  spec.starts = {0, 11, 13, 26};
  const OperatorValues inputs = random_values(spec, DType::f64, random);
  CondenseBackward backward(spec, inputs, random);
  OperatorValues replaced = OperatorValues::of(spec, DType::f64);  // NaN
  backward.run(CondenseBackward::all_of(replaced));
  OperatorValues added = OperatorValues::of(spec, DType::f64);
  for (Values* values : added.all()) {
    for (std::int64_t i = 0; i < values->size(); ++i) values->set(i, 0);
  }
  CondenseInputGrads onto = CondenseBackward::all_of(added);
  onto.accumulate = true;
  backward.run(onto);
  for (std::size_t at = 0; at < 5; ++at) {  // all but w_uv
    EXPECT_LE(error_of(added.all()[at]->doubles(), replaced.all()[at]->doubles()), kToleranceDouble)
        << OperatorValues::kNames[at];
  }
}

TEST(Operator, GradientsThatAreNotWantedAreLeftOut) {
  Random random(6);
  const OperatorSpec spec = small_spec();
  const OperatorValues inputs = random_values(spec, DType::f64, random);
  CondenseBackward backward(spec, inputs, random);
  OperatorValues all = OperatorValues::of(spec, DType::f64);
  OperatorValues one = OperatorValues::of(spec, DType::f64);
  backward.run(CondenseBackward::all_of(all));
  CondenseInputGrads only;
  only.positional = one.positional.tensor();
  backward.run(only);
  EXPECT_EQ(one.positional.doubles(), all.positional.doubles());
  EXPECT_TRUE(std::isnan(one.semantic.get(0)));

  const Values& out = backward.composed.out;
  Values out_grad(DType::f64, out.shape()[0], out.shape()[1], out.shape()[2]);
  out_grad.fill_normal(1, random);
  AttendInputGrads to;
  to.q_rope = one.q_rope.tensor();
  operator_attend_backward(spec, backward.composed.attend_inputs(), out.view(), nullptr,
                           out_grad.view(), to, kReferencePlace);
  for (const double value : one.q_rope.doubles()) EXPECT_TRUE(std::isfinite(value));
}

TEST(Operator, TheBackwardPassFollowsTheRowsThatTheForwardPassSelected) {
  Random random(7);
  OperatorSpec spec = small_spec();
  spec.layer.settings.semantic_pool = Pool::select;
  spec.layer.settings.mass = Mass::none;
  const OperatorValues inputs = random_values(spec, DType::f64, random);
  CondenseBackward backward(spec, inputs, random);
  std::vector<float>& scores = backward.composed.scores;
  const auto selected = [&](std::int64_t j) {
    OperatorValues grads = OperatorValues::of(spec, DType::f64);
    backward.run(CondenseBackward::all_of(grads));
    std::vector<std::int64_t> rows;
    const Range group = Layout(spec.layer.settings).group_range(j);
    for (std::int64_t i = group.begin; i < group.end; ++i) {
      if (grads.semantic.get(i * spec.layer.shape.d_latent) != 0) rows.push_back(i - group.begin);
    }
    return rows;
  };
  const std::vector<std::int64_t> own = selected(1);
  ASSERT_EQ(own.size(), 1u);
  // A forward pass of less precision may have seen another row as the best …
  const std::int64_t other = (own[0] + 1) % 3;
  const std::vector<float> kept = scores;
  scores[static_cast<std::size_t>(3 + other)] = 1e3F;
  EXPECT_EQ(selected(1), std::vector<std::int64_t>{other});
  // … and where its scores are equal, the exact ones tell the rows apart.
  scores = kept;
  for (std::size_t i = 3; i < 6; ++i) scores[i] = 1.5F;
  EXPECT_EQ(selected(1), own);
}

TEST(Operator, ALogSumExpInDoubleIsTheOneOfTheWhole) {
  Random random(8);
  const OperatorSpec spec = small_spec();
  const OperatorValues inputs = random_values(spec, DType::f64, random);
  Composed composed(spec, inputs, kReferencePlace);
  std::vector<double> lse(composed.lse.size(), std::nan(""));
  AttendOutputs to;
  to.out = composed.out.tensor();
  to.lse_f64 = lse.data();
  operator_attend(spec, composed.attend_inputs(), to, kReferencePlace);
  EXPECT_LE(error_of(documents_truth(spec, inputs).lse, lse), kToleranceDouble);
}

}  // namespace
}  // namespace lca::test
