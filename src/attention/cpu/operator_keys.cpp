#include "attention/cpu/operator_keys.h"

#include <algorithm>

#include "core/context_state.h"

namespace lca::cpu {

namespace {

/// Rows that are laid out, or summed up, in one task: whole panels.
constexpr std::int64_t kRowsTask = 6 * kPanel;
/// Tasks for each thread, so that the last ones do not leave others without work.
constexpr std::int64_t kTasksAThread = 4;

std::uint32_t* words(float* floats) { return reinterpret_cast<std::uint32_t*>(floats); }

void rows_list(std::size_t document, bool groups, std::int64_t rows, std::vector<RowsTask>& to) {
  for (std::int64_t row = 0; row < rows; row += kRowsTask) {
    to.push_back({document, groups, row, std::min(kRowsTask, rows - row)});
  }
}

}  // namespace

OperatorPlan::OperatorPlan(const OperatorSpec& spec)
    : layer(spec.layer),
      shape(spec.layer.shape),
      layout(spec.layer.settings),
      mla(shape.form == Form::mla),
      units(mla ? shape.heads : shape.kv_heads),
      heads_a_unit(shape.heads / units) {
  std::int64_t groups = 0;
  for (std::size_t i = 1; i < spec.starts.size(); ++i) {
    Document document;
    document.start = spec.starts[i - 1];
    document.length = spec.starts[i] - document.start;
    document.first_group = groups;
    document.groups = layout.groups(document.length);
    groups += document.groups;
    document.slot = slots;
    document.group_slot = slots + round_up(document.length, kPanel);
    slots = document.group_slot + round_up(document.groups, kPanel);
    rows_list(documents.size(), false, document.length, rows);
    rows_list(documents.size(), true, document.groups, rows);
    documents.push_back(document);
  }
  if (layer.settings.positions == Positions::entry) steps = rotation_steps(layer.rotation);
}

RowRotation OperatorPlan::rotation() const {
  if (steps.empty()) return {};
  return {layer.rotation.layout, steps.data(), static_cast<std::int64_t>(steps.size())};
}

std::int64_t OperatorPlan::units_at_once(std::int64_t tasks, int threads) const {
  return std::clamp<std::int64_t>(
      ceil_div(kTasksAThread * threads, std::max<std::int64_t>(1, tasks)), 1, units);
}

OperatorKeys::OperatorKeys(const OperatorPlan& plan, const AttendInputs& in, bool backward)
    : plan_(plan), in_(in), backward_(backward) {}

void OperatorKeys::carve(Carver& carver, std::int64_t units_at_once) {
  const AttentionShape& shape = plan_.shape;
  memory_.resize(static_cast<std::size_t>(units_at_once));
  for (Unit& unit : memory_) {
    const bool first = &unit == &memory_.front();
    unit.nope = carver.take<float>(plan_.slots * shape.d_nope);
    unit.nope_rows =
        carver.take<float>(backward_ ? plan_.slots * round_up(shape.d_nope, kPanel) : 0);
    unit.values = carver.take<float>(plan_.slots *
                                     (backward_ ? shape.d_value : round_up(shape.d_value, kPanel)));
    if (plan_.mla && !first) {
      unit.rope = memory_.front().rope;
      unit.rope_rows = memory_.front().rope_rows;
      unit.bias = memory_.front().bias;
      continue;
    }
    unit.rope = carver.take<float>(plan_.slots * shape.d_rope);
    unit.rope_rows =
        carver.take<float>(backward_ ? plan_.slots * round_up(shape.d_rope, kPanel) : 0);
    unit.bias = carver.take<float>(plan_.slots);
  }
}

std::int64_t OperatorKeys::slot(const RowsTask& of) const {
  const Document& document = plan_.documents[of.document];
  return of.groups ? document.group_slot : document.slot;
}

void OperatorKeys::pack(Context& context, std::int64_t first, std::int64_t count) {
  first_ = first;
  const auto tasks = static_cast<std::int64_t>(plan_.rows.size());
  context.state().pool.run(tasks * count, [&](std::int64_t task, int) {
    const std::int64_t unit_number = first + task / tasks;
    // What MLA's units share is packed with the first one.
    const bool shared = plan_.mla && unit_number > 0;
    pack_rows(plan_.rows[static_cast<std::size_t>(task % tasks)], unit_number, unit(unit_number),
              shared);
  });
}

void OperatorKeys::pack_rows(const RowsTask& task, std::int64_t unit_number, const Unit& to,
                             bool shared) const {
  const AttentionShape& shape = plan_.shape;
  const Document& document = plan_.documents[task.document];
  const HeadEntries& entries = task.groups ? in_.groups : in_.exact;
  const std::int64_t row = (task.groups ? document.first_group : document.start) + task.first;
  const std::int64_t base = slot(task);
  const std::int64_t capacity = round_up(task.groups ? document.groups : document.length, kPanel);
  const auto keys = [&](const ConstTensor& from, std::int64_t column, std::int64_t width,
                        float* panels) {
    pack_keys(from.row(row, column), from.dtype, from.stride[0], task.count, width, false,
              words(panels + (base + task.first) * width));
  };
  const auto values = [&](const ConstTensor& from, std::int64_t column, std::int64_t width,
                          float* panels) {
    pack_values(from.row(row, column), from.dtype, from.stride[0], task.count, width, false,
                task.first, capacity, words(panels + base * round_up(width, kPanel)));
  };
  if (shape.d_nope > 0) {
    keys(entries.k_nope, unit_number, shape.d_nope, to.nope);
    if (backward_) values(entries.k_nope, unit_number, shape.d_nope, to.nope_rows);
  }
  if (backward_) {
    keys(entries.value, unit_number, shape.d_value, to.values);
  } else {
    values(entries.value, unit_number, shape.d_value, to.values);
  }
  if (shared) return;
  const std::int64_t kv = plan_.mla ? 0 : unit_number;
  keys(entries.k_rope, kv, shape.d_rope, to.rope);
  if (backward_) values(entries.k_rope, kv, shape.d_rope, to.rope_rows);
  if (!task.groups || in_.bias == nullptr) return;
  float* bias = to.bias + base + task.first;
  for (std::int64_t j = 0; j < round_up(task.count, kPanel); ++j) {
    bias[j] = j < task.count ? in_.bias[(row + j) * shape.kv_heads + kv] : 0.0F;
  }
}

PackedKeys OperatorKeys::packed(std::int64_t number, const RowsTask& of) const {
  const Unit& from = unit(number);
  const std::int64_t base = slot(of);
  PackedKeys keys;
  keys.nope = words(from.nope + base * plan_.shape.d_nope);
  keys.rope = words(from.rope + base * plan_.shape.d_rope);
  keys.values = words(from.values + base * round_up(plan_.shape.d_value, kPanel));
  keys.count = of.count;
  return keys;
}

BackwardKeys OperatorKeys::backward_keys(std::int64_t number, const RowsTask& of) const {
  const Unit& from = unit(number);
  const std::int64_t base = slot(of);
  BackwardKeys keys;
  keys.nope = from.nope + base * plan_.shape.d_nope;
  keys.rope = from.rope + base * plan_.shape.d_rope;
  keys.values = from.values + base * plan_.shape.d_value;
  keys.nope_rows = from.nope_rows + base * round_up(plan_.shape.d_nope, kPanel);
  keys.rope_rows = from.rope_rows + base * round_up(plan_.shape.d_rope, kPanel);
  keys.count = of.count;
  return keys;
}

const float* OperatorKeys::bias(std::int64_t number, std::size_t document) const {
  if (in_.bias == nullptr) return nullptr;
  return unit(number).bias + plan_.documents[document].group_slot;
}

}  // namespace lca::cpu
