#include "support/operator_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/layout.h"
#include "attention/reference/group.h"
#include "support/random_layer.h"

namespace lca::test {

OperatorValues OperatorValues::of(const OperatorSpec& spec, DType dtype, Random* gaps) {
  const AttentionShape& shape = spec.layer.shape;
  const std::int64_t tokens = spec.tokens();
  OperatorValues values;
  values.q_rope = Values(dtype, tokens, shape.heads, shape.d_rope, gaps);
  values.semantic = Values(dtype, tokens, shape.kv_heads, shape.d_semantic(), gaps);
  values.positional = Values(dtype, tokens, shape.kv_heads, shape.d_positional(), gaps);
  if (shape.form == Form::mla) {
    values.q_nope = Values(dtype, tokens, shape.heads, shape.d_nope, gaps);
    values.w_uk = Values(dtype, shape.heads, shape.d_nope, shape.d_latent, gaps);
    values.w_uv = Values(dtype, shape.heads, shape.d_value, shape.d_latent, gaps);
  }
  return values;
}

OperatorValues random_values(const OperatorSpec& spec, DType dtype, Random& random, Random* gaps) {
  OperatorValues values = OperatorValues::of(spec, dtype, gaps);
  const double deviation =
      1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, spec.layer.shape.d_latent)));
  values.semantic.fill_normal(1, random);
  values.positional.fill_normal(1, random);
  values.w_uk.fill_normal(deviation, random);
  values.w_uv.fill_normal(deviation, random);
  for (Values* queries : {&values.q_nope, &values.q_rope}) {
    const std::int64_t row = queries->shape()[1] * queries->shape()[2];
    Values shared(DType::f64, 1, 1, row);
    shared.fill_normal(1, random);
    for (std::int64_t i = 0; i < queries->size(); ++i) {
      queries->set(i, shared.get(i % row) + random.normal());
    }
  }
  return values;
}

std::vector<std::int64_t> random_starts(std::int64_t tokens, std::int64_t documents,
                                        Random& random) {
  std::vector<std::int64_t> starts{0, tokens};
  while (static_cast<std::int64_t>(starts.size()) < std::min(documents, tokens) + 1) {
    const std::int64_t cut = random.integer(1, tokens - 1);
    if (std::find(starts.begin(), starts.end(), cut) == starts.end()) starts.push_back(cut);
  }
  std::sort(starts.begin(), starts.end());
  return starts;
}

namespace {

// How far the largest of some values is above the next.
double runner_up_distance(std::vector<double> values) {
  if (values.size() < 2) return std::numeric_limits<double>::infinity();
  std::sort(values.begin(), values.end(), std::greater<>());
  return values[0] - values[1];
}

double element_margin(const reference::Array& rows, const Range& range) {
  double margin = std::numeric_limits<double>::infinity();
  for (std::int64_t kv = 0; kv < rows.columns; ++kv) {
    for (std::int64_t d = 0; d < rows.width; ++d) {
      std::vector<double> column;
      for (std::int64_t i = range.begin; i < range.end; ++i) column.push_back(rows.at(i, kv)[d]);
      margin = std::min(margin, runner_up_distance(column));
    }
  }
  return margin;
}

double group_margin(const LayerSpec& spec, const reference::Sequence& sequence,
                    const reference::Group& group, std::int64_t j) {
  const Settings& settings = spec.settings;
  double margin = std::numeric_limits<double>::infinity();
  const auto narrow = [&](double other) { margin = std::min(margin, other); };
  if (selects(settings)) {
    for (const reference::Weights& weights : group.weights) narrow(weights.margin);
  }
  if (settings.semantic_pool == Pool::max) narrow(element_margin(sequence.semantic, group.rows));
  if (settings.positional_pool == Pool::max) {
    narrow(element_margin(sequence.positional, group.rows));
    if (settings.positions == Positions::entry) {
      const reference::Array rows = rows_at_entry(spec, Layout(settings), sequence.positional, j);
      narrow(element_margin(rows, {0, rows.rows}));
    }
  }
  if (settings.head_reduce == HeadReduce::max) {
    for (std::int64_t kv = 0; kv < spec.shape.kv_heads; ++kv) {
      for (std::int64_t i = group.rows.begin; i < group.rows.end; ++i) {
        narrow(runner_up_distance(head_scores(spec, group.summary, sequence.keys, i, kv)));
      }
      narrow(runner_up_distance(head_scores(spec, group.summary, group.keys, 0, kv)));
    }
  }
  return margin;
}

// rows · wᵀ for every head: [rows,H,d], in the type of the inputs.
Values project(const Values& weights, const Values& rows) {
  const std::int64_t heads = weights.shape()[0];
  const std::int64_t width = weights.shape()[1];
  const std::int64_t latent = weights.shape()[2];
  Values product(rows.dtype(), rows.shape()[0], heads, width);
  for (std::int64_t i = 0; i < rows.shape()[0]; ++i) {
    for (std::int64_t at = 0; at < heads * width; ++at) {
      double sum = 0;
      for (std::int64_t k = 0; k < latent; ++k) {
        sum += weights.get(at * latent + k) * rows.get(i * latent + k);
      }
      product.set(i * heads * width + at, sum);
    }
  }
  return product;
}

// Adds the gradients of such a product to those of its factors.
void project_backward(const Values& weights, const Values& rows, const Values& grad,
                      std::vector<double>& weights_grad, std::vector<double>& rows_grad) {
  const std::int64_t per_row = weights.shape()[0] * weights.shape()[1];
  const std::int64_t latent = weights.shape()[2];
  for (std::int64_t i = 0; i < rows.shape()[0]; ++i) {
    for (std::int64_t at = 0; at < per_row; ++at) {
      const double g = grad.get(i * per_row + at);
      for (std::int64_t k = 0; k < latent; ++k) {
        weights_grad[static_cast<std::size_t>(at * latent + k)] += g * rows.get(i * latent + k);
        rows_grad[static_cast<std::size_t>(i * latent + k)] += g * weights.get(at * latent + k);
      }
    }
  }
}

void store(const std::vector<double>& from, Values& to) {
  for (std::int64_t i = 0; i < to.size(); ++i) to.set(i, from[static_cast<std::size_t>(i)]);
}

}  // namespace

double choice_margin(const OperatorSpec& spec, const OperatorValues& inputs) {
  const LayerSpec& layer = spec.layer;
  const reference::Projections projections =
      reference::read_projections(layer.shape, inputs.weights());
  double margin = std::numeric_limits<double>::infinity();
  for (std::size_t d = 0; d + 1 < spec.starts.size(); ++d) {
    const Range range{spec.starts[d], spec.starts[d + 1]};
    const reference::Sequence sequence = reference::read_sequence(
        layer.shape, projections, inputs.queries(), inputs.entries(), range);
    const Range prompt{0, range.size()};
    for (std::int64_t j = 0; j < Layout(layer.settings).groups(range.size()); ++j) {
      const reference::Group group =
          group_condense(layer, projections, sequence, std::span(&prompt, 1), j);
      margin = std::min(margin, group_margin(layer, sequence, group, j));
    }
  }
  return margin;
}

Composed::Composed(const OperatorSpec& spec_, const OperatorValues& inputs_,
                   const OperatorPlace& place_)
    : spec(spec_), inputs(inputs_), place(place_) {
  const AttentionShape& shape = spec.layer.shape;
  const std::int64_t groups = spec.groups();
  const DType dtype = inputs.semantic.dtype();
  const auto biases = static_cast<std::size_t>(groups * shape.kv_heads);
  rep_semantic = Values(dtype, groups, shape.kv_heads, shape.d_semantic());
  rep_positional = Values(dtype, groups, shape.kv_heads, shape.d_positional());
  bias.assign(biases, std::nanf(""));
  scores.assign(biases * static_cast<std::size_t>(spec.layer.settings.group), std::nanf(""));
  if (dtype == DType::f64) bias_f64.assign(biases, std::nan(""));
  operator_condense(spec, inputs.condense_inputs(), condense_outputs(), place);

  if (shape.form == Form::mla) {
    k_nope = project(inputs.w_uk, inputs.semantic);
    value = project(inputs.w_uv, inputs.semantic);
    rep_k_nope = project(inputs.w_uk, rep_semantic);
    rep_value = project(inputs.w_uv, rep_semantic);
  }
  out = Values(dtype, spec.tokens(), shape.heads, shape.d_value);
  lse.assign(static_cast<std::size_t>(spec.tokens() * shape.heads), std::nanf(""));
  AttendOutputs to;
  to.out = out.tensor();
  to.lse = lse.data();
  operator_attend(spec, attend_inputs(), to, place);
}

CondenseOutputs Composed::condense_outputs() const {
  CondenseOutputs outputs;
  outputs.semantic = rep_semantic.tensor();
  outputs.positional = rep_positional.tensor();
  outputs.bias = bias.data();
  outputs.scores = scores.data();
  if (!bias_f64.empty()) outputs.bias_f64 = bias_f64.data();
  return outputs;
}

AttendInputs Composed::attend_inputs() const {
  const bool mla = spec.layer.shape.form == Form::mla;
  AttendInputs in;
  in.queries = inputs.queries();
  in.exact = {k_nope.view(), inputs.positional.view(), (mla ? value : inputs.semantic).view()};
  in.groups = {rep_k_nope.view(), rep_positional.view(), (mla ? rep_value : rep_semantic).view()};
  in.bias = bias.empty() ? nullptr : bias.data();
  in.bias_f64 = bias_f64.empty() ? nullptr : bias_f64.data();
  return in;
}

OperatorValues Composed::backward(const Values& out_grad) const {
  const bool mla = spec.layer.shape.form == Form::mla;
  const auto like = [](const Values& values) {
    return Values(values.dtype(), values.shape()[0], values.shape()[1], values.shape()[2]);
  };
  OperatorValues grads = OperatorValues::of(spec, inputs.semantic.dtype());
  Values k_nope_grad = like(k_nope), value_grad = like(value);
  Values rep_k_nope_grad = like(rep_k_nope), rep_value_grad = like(rep_value);
  Values rep_semantic_grad = like(rep_semantic), rep_positional_grad = like(rep_positional);
  std::vector<float> bias_grad(bias.size(), std::nanf(""));
  std::vector<double> bias_grad_f64(bias_f64.size(), std::nan(""));

  AttendInputGrads to;
  to.q_nope = grads.q_nope.tensor();
  to.q_rope = grads.q_rope.tensor();
  to.exact = {k_nope_grad.tensor(), grads.positional.tensor(),
              (mla ? value_grad : grads.semantic).tensor()};
  to.groups = {rep_k_nope_grad.tensor(), rep_positional_grad.tensor(),
               (mla ? rep_value_grad : rep_semantic_grad).tensor()};
  to.bias = bias_grad.empty() ? nullptr : bias_grad.data();
  to.bias_f64 = bias_grad_f64.empty() ? nullptr : bias_grad_f64.data();
  operator_attend_backward(spec, attend_inputs(), out.view(), lse.data(), out_grad.view(), to,
                           place);

  const auto zeros = [](const Values& values) {
    return std::vector<double>(static_cast<std::size_t>(values.size()), 0.0);
  };
  if (mla) {
    std::vector<double> w_uk = zeros(grads.w_uk), w_uv = zeros(grads.w_uv);
    std::vector<double> semantic = zeros(grads.semantic), groups = zeros(rep_semantic);
    project_backward(inputs.w_uk, inputs.semantic, k_nope_grad, w_uk, semantic);
    project_backward(inputs.w_uv, inputs.semantic, value_grad, w_uv, semantic);
    project_backward(inputs.w_uk, rep_semantic, rep_k_nope_grad, w_uk, groups);
    project_backward(inputs.w_uv, rep_semantic, rep_value_grad, w_uv, groups);
    store(w_uk, grads.w_uk);
    store(w_uv, grads.w_uv);
    store(semantic, grads.semantic);
    store(groups, rep_semantic_grad);
  }

  CondenseOutputGrads from;
  from.semantic = rep_semantic_grad.view();
  from.positional = rep_positional_grad.view();
  if (spec.layer.settings.mass == Mass::score && !bias_grad.empty()) {
    from.bias = bias_grad.data();
    if (!bias_grad_f64.empty()) from.bias_f64 = bias_grad_f64.data();
  }
  CondenseInputGrads onto;
  onto.q_nope = grads.q_nope.tensor();
  onto.q_rope = grads.q_rope.tensor();
  onto.semantic = grads.semantic.tensor();
  onto.positional = grads.positional.tensor();
  onto.w_uk = grads.w_uk.tensor();
  onto.accumulate = true;
  operator_condense_backward(spec, inputs.condense_inputs(), condense_outputs(), from, onto, place);
  return grads;
}

namespace {

std::vector<float> random_floats(std::int64_t count, Random& random) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random.normal()));
  return values;
}

}  // namespace

OperatorCase operator_case(const LayerSpec& layer, const std::vector<std::int64_t>& starts,
                           DType dtype, Random& random) {
  OperatorCase a_case;
  a_case.spec.layer = layer;
  a_case.spec.starts = starts;
  a_case.dtype = dtype;
  const AttentionShape& shape = layer.shape;
  const bool mla = shape.form == Form::mla;
  const std::int64_t n = a_case.spec.tokens();
  const std::int64_t m = a_case.spec.groups();
  const auto normal = [&](std::int64_t d0, std::int64_t d1, std::int64_t d2) {
    Values made(dtype, d0, d1, d2, &random);
    made.fill_normal(1, random);
    return made;
  };
  const auto side = [&](std::int64_t rows) {
    return OperatorCase::Side{normal(rows, mla ? shape.heads : 0, shape.d_nope),
                              normal(rows, shape.kv_heads, shape.d_rope),
                              normal(rows, mla ? shape.heads : shape.kv_heads, shape.d_value)};
  };
  a_case.inputs = random_values(a_case.spec, dtype, random, &random);
  a_case.rep_semantic_grad = normal(m, shape.kv_heads, shape.d_semantic());
  a_case.rep_positional_grad = normal(m, shape.kv_heads, shape.d_positional());
  if (layer.settings.mass == Mass::score) {
    a_case.rep_bias_grad = random_floats(m * shape.kv_heads, random);
  }
  a_case.exact = side(n);
  a_case.groups = side(m);
  if (random.chance(0.7)) a_case.bias = random_floats(m * shape.kv_heads, random);
  a_case.out_grad = normal(n, shape.heads, shape.d_value);
  a_case.out_dtype = random.chance(0.3) ? DType::f32 : dtype;
  a_case.accumulate = random.chance(0.3);
  return a_case;
}

OperatorCase random_operator_case(Random& random, std::int64_t most) {
  LayerSpec layer;
  layer.shape = random_shape(random);
  std::vector<std::int64_t> starts{0};
  const std::int64_t documents = random.pick<std::int64_t>({1, 1, 1, 2, 4});
  for (std::int64_t i = 0; i < documents; ++i) {
    starts.push_back(starts.back() +
                     random.pick({std::int64_t{1}, random.integer(1, most), random.integer(1, 40),
                                  random.integer((most + 1) / 2, most)}));
  }
  layer.settings = random_settings(random, most);
  if (documents > 1) layer.settings.summary = Summary::streaming;
  random_positions(layer, random);
  if (random.chance(0.2)) layer.scale = 0.05 + random.unit();
  return operator_case(layer, starts, random.chance(0.7) ? DType::f32 : DType::bf16, random);
}

std::string describe(const OperatorSpec& spec) {
  return fmt::format("{} starts={}", describe(spec.layer), spec.starts);
}

std::string describe(const OperatorCase& a_case) {
  return fmt::format("{} tensors={} out={} starts=[{}]{}{}", describe(a_case.spec.layer),
                     dtype_name(a_case.dtype), dtype_name(a_case.out_dtype),
                     fmt::join(a_case.spec.starts, ","), a_case.bias.empty() ? "" : " biased",
                     a_case.accumulate ? " adds" : "");
}

}  // namespace lca::test
