#include "attention/cpu/operator_groups.h"

#include <algorithm>

namespace lca::cpu {

GroupPlan::GroupPlan(const OperatorSpec& spec, const CondenseInputs& inputs)
    : layer(spec.layer),
      shape(spec.layer.shape),
      in(inputs),
      layout(spec.layer.settings),
      prompt(spec.layer.settings.summary == Summary::prompt),
      rotates(spec.layer.settings.positions == Positions::entry) {
  const std::int64_t batch = condense_batch_groups(layer.settings);
  for (std::size_t i = 1; i < spec.starts.size(); ++i) {
    GroupDocument document;
    document.start = spec.starts[i - 1];
    document.length = spec.starts[i] - document.start;
    document.first_group = groups;
    document.groups = layout.groups(document.length);
    document.first_summary = summaries;
    document.summaries = prompt ? std::min<std::int64_t>(1, document.groups) : document.groups;
    groups += document.groups;
    summaries += document.summaries;
    const auto cut = [&](std::int64_t count, std::vector<GroupBatch>& to) {
      for (std::int64_t first = 0; first < count; first += batch) {
        to.push_back({documents.size(), first, std::min(batch, count - first)});
      }
    };
    cut(document.groups, batches);
    cut(document.summaries, summary_batches);
    documents.push_back(document);
  }
  if (rotates) steps = rotation_steps(layer.rotation);
}

RowRotation GroupPlan::rotation() const {
  return {layer.rotation.layout, steps.data(), static_cast<std::int64_t>(steps.size())};
}

Range GroupPlan::summary_range(const GroupDocument& document, std::int64_t summary) const {
  return layout.summary_range(summary, prompt ? document.length : 0);
}

void GroupPlan::average(const GroupDocument& document, std::int64_t summary,
                        const ScoreVectors& vectors, std::int64_t to) const {
  const Range range = summary_range(document, summary);
  const float share = 1.0F / static_cast<float>(range.size());
  const auto mean = [&](const ConstTensor& q, std::int64_t head, std::int64_t width, float* row) {
    vector_sum_rows(share, q.row(document.start + range.begin, head), q.dtype, q.stride[0],
                    range.size(), width, row);
  };
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    if (shape.d_nope > 0) mean(in.queries.nope, head, shape.d_nope, vectors.mean_nope(head, to));
    mean(in.queries.rope, head, shape.d_rope, vectors.mean_rope(head, to));
  }
}

PoolRow GroupMembers::semantic(std::int64_t k) const {
  const ConstTensor& rows = plan.in.entries.semantic;
  return {rows.row(token(k), kv), rows.dtype, plan.shape.d_semantic()};
}

PoolRow GroupMembers::positional(std::int64_t k) const {
  const ConstTensor& rows = plan.in.entries.positional;
  return {rows.row(token(k), kv), rows.dtype, plan.shape.d_positional()};
}

std::int64_t GroupMembers::difference(std::int64_t k) const {
  return plan.layout.group_position(group) - (plan.layout.group_range(group).begin + k);
}

PoolRow GroupMembers::rotated(std::int64_t k) const {
  const PoolRow from = positional(k);
  const RowRotation rotation = plan.rotation();
  vector_angles(rotation, difference(k), angles);
  vector_rotate(rotation, angles, 1, from.data, from.dtype, from.width, row);
  return {row, DType::f32, from.width};
}

}  // namespace lca::cpu
