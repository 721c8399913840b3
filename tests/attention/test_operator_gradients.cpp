// The reference's gradients against numeric differences of its own forward pass (mechanism §8), on
// inputs whose choices (best score, largest element, best head) are no matter of rounding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/reference/backward.h"
#include "attention/reference/reference.h"
#include "support/compare.h"
#include "support/operator_case.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

// A step moves a score or an element by far less than the smallest margin of a choice.
constexpr double kStep = 1e-4;
constexpr double kMargin = 4e-3;
// Differences of fourth order: h⁴ and 1e-16 / h are both far below.
constexpr double kToleranceDifference = 1e-8;

constexpr std::array kAllPools{Pool::weighted, Pool::mean, Pool::max, Pool::select};
constexpr std::array kMasses{Mass::none, Mass::count, Mass::score};
constexpr std::array kReduces{HeadReduce::mean, HeadReduce::sum, HeadReduce::max};

// Inputs, and the gradient of the output that makes a loss of them: Σ out · out_grad.
struct Problem {
  OperatorSpec spec;
  OperatorValues inputs;
  Values out_grad;

  double loss() const {
    const Source whole(spec.layer, inputs.weights(), inputs.queries(), inputs.entries());
    double sum = 0;
    std::int64_t at = 0;
    for (std::size_t d = 0; d + 1 < spec.starts.size(); ++d) {
      const std::int64_t length = spec.starts[d + 1] - spec.starts[d];
      const reference::Result result =
          reference::attention(spec.layer, inputs.weights(), whole.queries(spec.starts[d], length),
                               whole.entries(spec.starts[d], length), length);
      for (const double value : result.out) sum += value * out_grad.get(at++);
    }
    return sum;
  }

  std::array<std::vector<double>, 6> gradients() const {
    const reference::Gradients all = reference::attention_backward(
        spec, inputs.weights(), inputs.queries(), inputs.entries(), out_grad.view());
    return {all.q_nope.values,     all.q_rope.values, all.semantic.values,
            all.positional.values, all.w_uk.values,   all.w_uv.values};
  }

  // The derivative of the loss where `move(x)` moves the inputs by x.
  double difference(const std::function<void(double)>& move) const {
    const auto at = [&](double x) {
      move(x);
      return loss();
    };
    const double near = at(kStep) - at(-kStep);
    const double far = at(2 * kStep) - at(-2 * kStep);
    move(0);
    return (8 * near - far) / (12 * kStep);
  }
};

Problem random_problem(const OperatorSpec& spec, Random& random) {
  for (int draw = 0; draw < 1000; ++draw) {
    Problem problem{spec, random_values(spec, DType::f64, random), {}};
    if (choice_margin(spec, problem.inputs) < kMargin) continue;
    problem.out_grad =
        Values(DType::f64, spec.tokens(), spec.layer.shape.heads, spec.layer.shape.d_value);
    problem.out_grad.fill_normal(1, random);
    return problem;
  }
  throw std::runtime_error("no inputs without near ties: " + describe(spec));
}

OperatorSpec gradient_spec(Form form, const Settings& settings) {
  OperatorSpec spec;
  spec.layer.shape =
      form == Form::mla ? AttentionShape::mla(2, 3, 4, 5, 3) : AttentionShape::gqa(4, 2, 4, 3);
  spec.layer.settings = settings;
  spec.layer.settings.group = 3;
  spec.layer.settings.window = 2;
  spec.layer.settings.summary_queries = 2;
  spec.layer.scale = 0.6;
  if (settings.positions == Positions::entry) {
    spec.layer.rotation = {RopeLayout::adjacent, {0.9, 0.2}};
  }
  // Two documents with groups and one without; `prompt` takes one.
  spec.starts = settings.summary == Summary::prompt ? std::vector<std::int64_t>{0, 13}
                                                    : std::vector<std::int64_t>{0, 9, 12, 20};
  return spec;
}

// The largest gap between gradients and differences along one random direction per input tensor,
// relative to the largest derivative. `expected` are gradients that another setting may have given.
double directional_error(Problem& problem, const std::array<std::vector<double>, 6>& gradients,
                         Random& random) {
  double worst = 0;
  double largest = 1e-2;
  for (std::size_t at = 0; at < gradients.size(); ++at) {
    Values& values = *problem.inputs.all()[at];
    if (values.size() == 0) continue;
    const std::vector<double> start = values.doubles();
    std::vector<double> direction;
    double slope = 0;
    for (std::size_t i = 0; i < start.size(); ++i) {
      direction.push_back(random.normal());
      slope += direction[i] * gradients[at][i];
    }
    const double difference = problem.difference([&](double x) {
      for (std::size_t i = 0; i < start.size(); ++i) {
        values.set(static_cast<std::int64_t>(i), start[i] + x * direction[i]);
      }
    });
    worst = std::max(worst, std::abs(difference - slope));
    largest = std::max(largest, std::abs(difference));
  }
  return worst / largest;
}

// Every combination of form, summary, positions, mass, reduction and pools.
template <typename Visit>
void for_every_setting(const Visit& visit) {
  for (const Form form : {Form::mla, Form::gqa}) {
    for (const Summary summary : {Summary::streaming, Summary::prompt}) {
      for (const Positions positions : {Positions::token, Positions::entry}) {
        for (const Mass mass : kMasses) {
          for (const HeadReduce reduce : kReduces) {
            for (const Pool semantic : kAllPools) {
              for (const Pool positional : kAllPools) {
                Settings settings;
                settings.summary = summary;
                settings.positions = positions;
                settings.mass = mass;
                settings.head_reduce = reduce;
                settings.semantic_pool = semantic;
                settings.positional_pool = positional;
                visit(form, settings);
              }
            }
          }
        }
      }
    }
  }
}

TEST(OperatorGradients, EverySettingHasTheDerivativesOfItsForwardPassInRandomDirections) {
  std::uint64_t seed = 0;
  const std::uint64_t step = scaled_step(7);
  for_every_setting([&](Form form, Settings settings) {
    if (seed++ % step != 0) return;
    settings.sink = static_cast<std::int64_t>(seed % 3);
    Random random(5000 + seed);
    Problem problem = random_problem(gradient_spec(form, settings), random);
    const double error = directional_error(problem, problem.gradients(), random);
    EXPECT_LE(error, kToleranceDifference) << describe(problem.spec);
  });
  EXPECT_EQ(seed, 2u * 2 * 2 * 3 * 3 * 16);
}

TEST(OperatorGradients, EveryElementOfEveryInputHasTheDerivativeOfTheForwardPass) {
  // Options go round, so that each meets each form and kind of positions.
  for (std::size_t i = 0; i < 24; i += scaled_step(5)) {
    Settings settings;
    settings.semantic_pool = kAllPools[i % 4];
    settings.positional_pool = kAllPools[(i / 4 + i) % 4];
    settings.mass = kMasses[(i + 2) % 3];
    settings.head_reduce = kReduces[(i / 3) % 3];
    settings.summary = (i / 2) % 3 == 0 ? Summary::prompt : Summary::streaming;
    settings.positions = i % 4 < 2 ? Positions::token : Positions::entry;
    settings.sink = static_cast<std::int64_t>(i % 3);
    Random random(700 + i);
    Problem problem =
        random_problem(gradient_spec(i % 2 == 0 ? Form::mla : Form::gqa, settings), random);
    SCOPED_TRACE(describe(problem.spec));
    ASSERT_GE(problem.spec.groups(), 2);
    const auto gradients = problem.gradients();
    for (std::size_t at = 0; at < gradients.size(); ++at) {
      Values& values = *problem.inputs.all()[at];
      if (values.size() == 0) continue;
      std::vector<double> differences;
      double size = 0;
      for (std::int64_t k = 0; k < values.size(); ++k) {
        const double start = values.get(k);
        differences.push_back(problem.difference([&](double x) { values.set(k, start + x); }));
        size = std::max(size, std::abs(differences.back()));
      }
      EXPECT_GT(size, 1e-2) << OperatorValues::kNames[at];  // else nothing would be compared
      EXPECT_LE(error_of(differences, gradients[at]), kToleranceDifference)
          << OperatorValues::kNames[at];
    }
  }
}

TEST(OperatorGradients, DenseAndWindowAreDerivedToo) {
  for (const MethodKind method : {MethodKind::dense, MethodKind::window}) {
    for (const Form form : {Form::mla, Form::gqa}) {
      for (const Positions positions : {Positions::token, Positions::entry}) {
        Settings settings;
        settings.method = method;
        settings.positions = positions;
        settings.sink = 2;
        Random random(40);
        Problem problem = random_problem(gradient_spec(form, settings), random);
        EXPECT_EQ(problem.spec.groups(), 0);
        EXPECT_LE(directional_error(problem, problem.gradients(), random), kToleranceDifference)
            << describe(problem.spec);
      }
    }
  }
}

TEST(OperatorGradients, GradientsOfAnotherSettingDoNotPass) {
  // The comparison above can fail: it tells each option from its neighbour.
  using Change = std::function<void(Settings&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"window", [](Settings& s) { s.method = MethodKind::window; }},
      {"sink", [](Settings& s) { s.sink = 0; }},
      {"head_reduce", [](Settings& s) { s.head_reduce = HeadReduce::sum; }},
      {"max head", [](Settings& s) { s.head_reduce = HeadReduce::max; }},
      {"mass", [](Settings& s) { s.mass = Mass::count; }},
      {"semantic_pool", [](Settings& s) { s.semantic_pool = Pool::mean; }},
      {"positional_pool", [](Settings& s) { s.positional_pool = Pool::weighted; }},
      {"positions", [](Settings& s) { s.positions = Positions::token; }},
  };
  for (const Form form : {Form::mla, Form::gqa}) {
    Settings settings;
    settings.sink = 1;
    settings.mass = Mass::score;
    settings.positions = Positions::entry;
    Random random(41);
    Problem problem = random_problem(gradient_spec(form, settings), random);
    for (const auto& [name, change] : changes) {
      Problem other = problem;
      change(other.spec.layer.settings);
      EXPECT_GT(directional_error(problem, other.gradients(), random), 1e-4) << name;
    }
    // One document in place of three.
    Problem joined = problem;
    joined.spec.starts = {0, problem.spec.tokens()};
    EXPECT_GT(directional_error(problem, joined.gradients(), random), 1e-4);
  }
}

TEST(OperatorGradients, ABiasOfEachRepresentativeHasTheDerivativeOfAttention) {
  // attend alone: its bias is an input, whatever the mass.
  Settings settings;
  settings.sink = 1;
  settings.positions = Positions::entry;
  for (const Form form : {Form::mla, Form::gqa}) {
    Random random(42);
    const OperatorPlace place{.backend = Backend::reference};
    const Problem problem = random_problem(gradient_spec(form, settings), random);
    const OperatorSpec& spec = problem.spec;
    Composed composed(spec, problem.inputs, place);
    std::vector<double> grads(composed.bias_f64.size(), std::nan(""));
    AttendInputGrads to;
    to.bias_f64 = grads.data();
    operator_attend_backward(spec, composed.attend_inputs(), composed.out.view(), nullptr,
                             problem.out_grad.view(), to, place);
    const auto loss = [&] {
      AttendOutputs out;
      out.out = composed.out.tensor();
      operator_attend(spec, composed.attend_inputs(), out, place);
      double sum = 0;
      for (std::int64_t i = 0; i < composed.out.size(); ++i) {
        sum += composed.out.get(i) * problem.out_grad.get(i);
      }
      return sum;
    };
    ASSERT_GE(grads.size(), 2u);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      composed.bias_f64[i] = kStep;
      const double above = loss();
      composed.bias_f64[i] = -kStep;
      const double below = loss();
      composed.bias_f64[i] = 0;
      EXPECT_GT(std::abs(grads[i]), 1e-6);
      EXPECT_NEAR(grads[i], (above - below) / (2 * kStep), 1e-7);
    }
  }
}

}  // namespace
}  // namespace lca::test
