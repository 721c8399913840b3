#include "attention/reference/attend.h"

#include "attention/layout.h"
#include "attention/rotate.h"

#include <algorithm>
#include <cmath>

namespace lca::reference {
namespace {

// A query in its two forms: as it is, for the window, and for sink and representatives (§10).
struct QueryForms {
  std::vector<double> near, far;
};

// One thing a query sees.
struct Seen {
  const HeadRows* rows;
  std::int64_t row;
  bool is_far;
  double logit;
};

// How far the far form is rotated on.
std::int64_t far_difference(const LayerSpec& spec, std::int64_t t) {
  return spec.settings.positions == Positions::entry ? Layout(spec.settings).entry_position(t) - t
                                                     : 0;
}

QueryForms query_forms(const LayerSpec& spec, const Array& queries, std::int64_t t,
                       std::int64_t h) {
  QueryForms forms;
  forms.near.assign(queries.at(t, h), queries.at(t, h) + queries.width);
  forms.far = forms.near;
  const std::int64_t difference = far_difference(spec, t);
  if (difference != 0) {
    rotate_row(spec.rotation, difference, forms.far.data() + spec.shape.d_nope);
  }
  return forms;
}

std::size_t bias_index(const LayerSpec& spec, std::int64_t j, std::int64_t h) {
  return static_cast<std::size_t>(j * spec.shape.kv_heads + h / spec.shape.heads_per_kv());
}

// §2: representatives j < m(t+1) and tokens of local(t+1), with their logits.
std::vector<Seen> see(const LayerSpec& spec, const Scene& scene, const QueryForms& forms,
                      std::int64_t t, std::int64_t h) {
  const Visible visible = Layout(spec.settings).visible(t);
  std::vector<Seen> seen;
  const auto see_rows = [&](const HeadRows& rows, const Range& range, bool is_far) {
    const std::vector<double>& query = is_far ? forms.far : forms.near;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const double product = dot(query.data(), rows.keys.at(i, h), rows.keys.width);
      seen.push_back({&rows, i, is_far, spec.softmax_scale() * product});
    }
  };
  see_rows(scene.groups, {0, visible.groups}, true);
  for (Seen& one : seen) one.logit += scene.bias[bias_index(spec, one.row, h)];
  see_rows(scene.exact, visible.sink, true);
  see_rows(scene.exact, visible.window, false);
  return seen;
}

// The log of the softmax's denominator.
double log_sum_exp(const std::vector<Seen>& seen) {
  double top = seen.front().logit;
  for (const Seen& one : seen) top = std::max(top, one.logit);
  double sum = 0;
  for (const Seen& one : seen) sum += std::exp(one.logit - top);
  return top + std::log(sum);
}

// Σ p_i v_i
void mean_value(const std::vector<Seen>& seen, double lse, std::int64_t h, double* out) {
  for (const Seen& one : seen) {
    const Array& values = one.rows->values;
    add_scaled(std::exp(one.logit - lse), values.at(one.row, h), values.width, out);
  }
}

Array zeros_like(const Array& array) { return {array.rows, array.columns, array.width}; }

}  // namespace

Scene rebuild_scene(const AttentionShape& shape, const Projections& projections,
                    const Sequence& sequence, const Representatives& representatives) {
  return {sequence.queries,
          {sequence.keys, rebuild_values(shape, projections, sequence.semantic)},
          {rebuild_keys(shape, projections, representatives.semantic, representatives.positional),
           rebuild_values(shape, projections, representatives.semantic)},
          representatives.bias};
}

Attended attend(const LayerSpec& spec, const Scene& scene) {
  const std::int64_t tokens = scene.queries.rows;
  Attended result{Array(tokens, spec.shape.heads, spec.shape.d_value),
                  Array(tokens, spec.shape.heads, 1)};
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < spec.shape.heads; ++h) {
      const auto seen = see(spec, scene, query_forms(spec, scene.queries, t, h), t, h);
      *result.lse.at(t, h) = log_sum_exp(seen);
      mean_value(seen, *result.lse.at(t, h), h, result.out.at(t, h));
    }
  }
  return result;
}

Scene attend_backward(const LayerSpec& spec, const Scene& scene, const Array& out_grad,
                      const Array* given_out) {
  Scene grads{zeros_like(scene.queries),
              {zeros_like(scene.exact.keys), zeros_like(scene.exact.values)},
              {zeros_like(scene.groups.keys), zeros_like(scene.groups.values)},
              std::vector<double>(scene.bias.size(), 0.0)};
  const std::int64_t width = scene.queries.width;
  const std::int64_t d_value = spec.shape.d_value;
  for (std::int64_t t = 0; t < scene.queries.rows; ++t) {
    for (std::int64_t h = 0; h < spec.shape.heads; ++h) {
      const QueryForms forms = query_forms(spec, scene.queries, t, h);
      const std::vector<Seen> seen = see(spec, scene, forms, t, h);
      const double lse = log_sum_exp(seen);
      std::vector<double> out(static_cast<std::size_t>(d_value), 0.0);
      mean_value(seen, lse, h, out.data());

      // ∂p_i: dout·v_i; through the softmax: p_i (dout·v_i − dout·out).
      const double* grad = out_grad.at(t, h);
      const double mean =
          dot(grad, given_out == nullptr ? out.data() : given_out->at(t, h), d_value);
      QueryForms query_grads{std::vector<double>(forms.near.size(), 0.0),
                             std::vector<double>(forms.far.size(), 0.0)};
      for (const Seen& one : seen) {
        const bool is_group = one.rows == &scene.groups;
        HeadRows& to = is_group ? grads.groups : grads.exact;
        const double p = std::exp(one.logit - lse);
        const double logit = p * (dot(grad, one.rows->values.at(one.row, h), d_value) - mean);
        const double product = spec.softmax_scale() * logit;
        add_scaled(p, grad, d_value, to.values.at(one.row, h));
        add_scaled(product, (one.is_far ? forms.far : forms.near).data(), width,
                   to.keys.at(one.row, h));
        add_scaled(product, one.rows->keys.at(one.row, h), width,
                   (one.is_far ? query_grads.far : query_grads.near).data());
        if (is_group) grads.bias[bias_index(spec, one.row, h)] += logit;
      }
      const std::int64_t difference = far_difference(spec, t);
      if (difference != 0) {
        rotate_row(spec.rotation, -difference, query_grads.far.data() + spec.shape.d_nope);
      }
      add_scaled(1, query_grads.near.data(), width, grads.queries.at(t, h));
      add_scaled(1, query_grads.far.data(), width, grads.queries.at(t, h));
    }
  }
  return grads;
}

}  // namespace lca::reference
