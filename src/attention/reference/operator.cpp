#include "attention/reference/operator.h"

#include "attention/layout.h"
#include "attention/reference/attend.h"
#include "attention/reference/condense.h"
#include "attention/reference/heads.h"

#include <algorithm>
#include <span>
#include <vector>

namespace lca::reference {
namespace {

// One of the packed documents: its tokens and its representatives.
struct Document {
  Range tokens;
  Range groups;
};

std::vector<Document> documents_of(const OperatorSpec& spec) {
  const Layout layout(spec.layer.settings);
  std::vector<Document> documents;
  std::int64_t group = 0;
  for (std::size_t d = 0; d + 1 < spec.starts.size(); ++d) {
    const Range tokens{spec.starts[d], spec.starts[d + 1]};
    const std::int64_t groups = layout.groups(tokens.size());
    documents.push_back({tokens, {group, group + groups}});
    group += groups;
  }
  return documents;
}

// Rows of a tensor that has no memory where there are no rows.
Array read_some(const char* name, const ConstTensor& tensor, const Range& range, std::int64_t d1,
                std::int64_t d2) {
  return range.size() == 0 ? Array(0, d1, d2) : read_rows(name, tensor, range, d1, d2);
}

void write_wanted(const Array& array, const Tensor& tensor, std::int64_t first = 0,
                  bool accumulate = false) {
  if (!tensor.empty()) write(array, tensor, first, accumulate);
}

// Values of [m,KV] of one document: doubles where they are given, else floats, else 0.
std::vector<double> read_bias(const OperatorSpec& spec, const Range& groups, const float* single,
                              const double* whole) {
  const std::int64_t first = groups.begin * spec.layer.shape.kv_heads;
  const std::int64_t count = groups.size() * spec.layer.shape.kv_heads;
  if (whole != nullptr) return {whole + first, whole + first + count};
  if (single != nullptr) return {single + first, single + first + count};
  return std::vector<double>(static_cast<std::size_t>(count), 0.0);
}

void write_values(const std::vector<double>& values, std::int64_t first, float* single) {
  if (single == nullptr) return;
  std::ranges::transform(values, single + first,
                         [](double value) { return static_cast<float>(value); });
}

void write_bias(const std::vector<double>& values, std::int64_t first, float* single,
                double* whole) {
  if (whole != nullptr) {
    std::ranges::copy(values, whole + first);
  } else {
    write_values(values, first, single);
  }
}

// Only W_uk: condensation has no use for values.
Projections read_condense_projections(const AttentionShape& shape, const ConstTensor& w_uk) {
  if (shape.form == Form::gqa) return {};
  return {read("w_uk", w_uk, shape.heads, shape.d_nope, shape.d_latent), {}};
}

HeadRows read_head_rows(const AttentionShape& shape, const HeadEntries& entries,
                        const Range& range) {
  const bool mla = shape.form == Form::mla;
  const Array nope = mla ? read_some("k_nope", entries.k_nope, range, shape.heads, shape.d_nope)
                         : Array(range.size(), shape.heads, 0);
  const Array rope =
      read_some(mla ? "k_rope" : "k", entries.k_rope, range, shape.kv_heads, shape.d_positional());
  const Array value =
      read_some("v", entries.value, range, mla ? shape.heads : shape.kv_heads, shape.d_value);
  return {heads_join(nope, rope, shape.heads),
          heads_join(Array(range.size(), shape.heads, 0), value, shape.heads)};
}

Scene read_scene(const OperatorSpec& spec, const AttendInputs& in, const Document& document) {
  const AttentionShape& shape = spec.layer.shape;
  return {read_queries(shape, in.queries, document.tokens),
          read_head_rows(shape, in.exact, document.tokens),
          read_head_rows(shape, in.groups, document.groups),
          read_bias(spec, document.groups, in.bias, in.bias_f64)};
}

void write_head_rows(const AttentionShape& shape, const HeadRows& grads, std::int64_t first,
                     const HeadEntryGrads& to) {
  const HeadParts keys = heads_split(grads.keys, shape.d_nope, shape.kv_heads);
  write_wanted(keys.nope, to.k_nope, first);
  write_wanted(keys.rope, to.k_rope, first);
  const std::int64_t columns = shape.form == Form::mla ? shape.heads : shape.kv_heads;
  write_wanted(heads_split(grads.values, 0, columns).rope, to.value, first);
}

}  // namespace

void condense(const OperatorSpec& spec, const CondenseInputs& in, const CondenseOutputs& out) {
  const AttentionShape& shape = spec.layer.shape;
  const Projections projections = read_condense_projections(shape, in.w_uk);
  for (const Document& document : documents_of(spec)) {
    if (document.groups.size() == 0) continue;
    const Sequence sequence =
        read_sequence(shape, projections, in.queries, in.entries, document.tokens);
    const Range prompt{0, document.tokens.size()};
    const Representatives representatives =
        condense(spec.layer, projections, sequence, std::span(&prompt, 1));
    const std::int64_t first = document.groups.begin;
    write(representatives.semantic, out.semantic, first);
    write(representatives.positional, out.positional, first);
    write_bias(representatives.bias, first * shape.kv_heads, out.bias, out.bias_f64);
    write_values(representatives.scores, first * shape.kv_heads * spec.layer.settings.group,
                 out.scores);
  }
}

void condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                       const CondenseInputGrads& in_grads) {
  const AttentionShape& shape = spec.layer.shape;
  const Projections projections = read_condense_projections(shape, in.w_uk);
  const std::int64_t scores_per_group = shape.kv_heads * spec.layer.settings.group;
  bool is_first = true;
  for (const Document& document : documents_of(spec)) {
    const Sequence sequence =
        read_sequence(shape, projections, in.queries, in.entries, document.tokens);
    const RepresentativeGrads grads{
        read_some("the gradient of rep_c or rep_v", out_grads.semantic, document.groups,
                  shape.kv_heads, shape.d_semantic()),
        read_some("the gradient of rep_k", out_grads.positional, document.groups, shape.kv_heads,
                  shape.d_positional()),
        read_bias(spec, document.groups, out_grads.bias, out_grads.bias_f64)};
    const Range prompt{0, document.tokens.size()};
    std::span<const float> scores;
    if (document.groups.size() > 0) {
      scores = {out.scores + document.groups.begin * scores_per_group,
                static_cast<std::size_t>(document.groups.size() * scores_per_group)};
    }
    const CondenseGrads part =
        condense_backward(spec.layer, projections, sequence, std::span(&prompt, 1), scores, grads);
    const std::int64_t first = document.tokens.begin;
    const HeadParts queries = heads_split(part.queries, shape.d_nope, shape.heads);
    write_wanted(queries.nope, in_grads.q_nope, first, in_grads.accumulate);
    write_wanted(queries.rope, in_grads.q_rope, first, in_grads.accumulate);
    write_wanted(part.semantic, in_grads.semantic, first, in_grads.accumulate);
    write_wanted(part.positional, in_grads.positional, first, in_grads.accumulate);
    // Weights are shared by all documents.
    write_wanted(part.w_uk, in_grads.w_uk, 0, in_grads.accumulate || !is_first);
    is_first = false;
  }
}

void attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out) {
  for (const Document& document : documents_of(spec)) {
    const Attended attended = attend(spec.layer, read_scene(spec, in, document));
    const std::int64_t first = document.tokens.begin;
    write(attended.out, out.out, first);
    write_values(attended.lse.values, first * spec.layer.shape.heads, out.lse);
    if (out.lse_f64 != nullptr) {
      std::ranges::copy(attended.lse.values, out.lse_f64 + first * spec.layer.shape.heads);
    }
  }
}

void attend_backward(const OperatorSpec& spec, const AttendInputs& in, const ConstTensor& out_grad,
                     const AttendInputGrads& in_grads, const ConstTensor* out) {
  const AttentionShape& shape = spec.layer.shape;
  for (const Document& document : documents_of(spec)) {
    const auto read = [&](const char* name, const ConstTensor& rows) {
      return read_rows(name, rows, document.tokens, shape.heads, shape.d_value);
    };
    const Array grad = read("the gradient of out", out_grad);
    const Array given = out == nullptr ? Array() : read("out", *out);
    const Scene grads = attend_backward(spec.layer, read_scene(spec, in, document), grad,
                                        out == nullptr ? nullptr : &given);
    const HeadParts queries = heads_split(grads.queries, shape.d_nope, shape.heads);
    write_wanted(queries.nope, in_grads.q_nope, document.tokens.begin);
    write_wanted(queries.rope, in_grads.q_rope, document.tokens.begin);
    write_head_rows(shape, grads.exact, document.tokens.begin, in_grads.exact);
    write_head_rows(shape, grads.groups, document.groups.begin, in_grads.groups);
    write_bias(grads.bias, document.groups.begin * shape.kv_heads, in_grads.bias,
               in_grads.bias_f64);
  }
}

}  // namespace lca::reference
