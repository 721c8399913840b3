// Checks a backward pass, plans it and picks its kernels.

#include "attention/cuda/backward/backward.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/cuda/backward/backward_plan.h"
#include "core/cuda/memory.h"
#include "core/cuda/tensor_map.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

constexpr int kWidestBackward = 256;
constexpr int kTileQueries = 128;  // of the queries kernel

void backward_check(const PrefillBackward& problem, std::span<const PrefillRun> runs) {
  const Prefill& forward = problem.forward;
  const int score = forward.q_nope.width + forward.q_rope.width;
  const int value = forward.exact.value.width;
  if (score < 1 || score > kWidestBackward || value < 1 || value > kWidestBackward) {
    fail_input(
        "gradients of attention with score width {} and value width {}: the GPU's kernels take 1 "
        "to {}; use the CPU",
        score, value, kWidestBackward);
  }
  if (forward.out == nullptr || forward.lse == nullptr || problem.dout.data == nullptr ||
      problem.dout.width != value) {
    fail_input("backward: out, lse and the gradient of out are needed");
  }
  if (forward.heads < 1 || forward.kv_heads < 1 ||
      (forward.form == Form::gqa && forward.heads % forward.kv_heads != 0)) {
    fail_input("backward: {} heads over {} KV heads", forward.heads, forward.kv_heads);
  }
  const auto fits = [&](const KeyRows& keys) {
    return keys.nope.width == forward.q_nope.width && keys.rope.width == forward.q_rope.width &&
           keys.value.width == value;
  };
  std::int64_t tokens = 0;
  bool groups = false;
  for (const PrefillRun& run : runs) {
    if (run.query_first != 0 || run.exact_gone != 0) {
      fail_input("backward: a run must be a whole document");
    }
    if (run.query_count > kLongestLayout32) {
      fail_input("a document of {} tokens is too long for the GPU; it takes {}", run.query_count,
                 kLongestLayout32);
    }
    tokens += run.query_count;
    groups = groups || forward.layout.groups(run.query_count) > 0;
  }
  if (!fits(forward.exact) || (groups && !fits(forward.groups))) {
    fail_input("backward: keys are not as wide as queries");
  }
  const RotationView& rotation = forward.rotation;
  if (rotation.steps != nullptr &&
      (rotation.pairs < 1 || 2 * rotation.pairs > forward.q_rope.width)) {
    fail_input("backward: {} pairs of channels to rotate in {}", rotation.pairs,
               forward.q_rope.width);
  }
  if ((tokens / 64 + static_cast<std::int64_t>(runs.size()) * 4) * forward.heads > INT32_MAX) {
    fail_input("backward: {} queries in {} runs are too many for one call", tokens, runs.size());
  }
}

bool grad_fits(const GradRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 8 == 0 &&
         rows.head_stride % 8 == 0;
}

std::int64_t blocks_of(std::int64_t rows, int block) { return (rows + block - 1) / block; }

/// Slices of items of `units` tiles each, at most. Items are handed out heaviest first: as long as
/// one takes less than a multiprocessor's share they pack well.
int slices_for(double units, double all_units) {
  constexpr double kMultiprocessors = 132;
  constexpr double kLongest = 0.8, kWanted = 0.4;  // of a share
  constexpr double kMost = 8, kLeastUnits = 8;     // slices, and tiles that are worth one
  const double share = all_units / kMultiprocessors;
  if (units <= kLongest * share) return 1;
  const double most = std::clamp(units / kLeastUnits, 1.0, kMost);
  return static_cast<int>(std::min(std::ceil(units / (kWanted * share)), most));
}

/// About how many pairs of a query and something it sees a document of n tokens has.
double pairs_estimate(const Layout& layout, std::int64_t n) {
  const std::int64_t sink = std::min(layout.sink, n);
  const auto tokens = static_cast<double>(n - sink);
  const auto reach = std::min(static_cast<double>(layout.token_queries(sink, n).size()), tokens);
  const auto groups = static_cast<double>(layout.groups(n));
  const auto first = static_cast<double>(n - layout.group_exit(0));  // queries of the first one
  return static_cast<double>(sink * n) + reach * (tokens - reach / 2) +
         groups * (first - static_cast<double>(layout.group) * (groups - 1) / 2);
}

bool any(const KeyGrads& grads) {
  return grads.nope.data != nullptr || grads.rope.data != nullptr || grads.value.data != nullptr;
}

}  // namespace

bool backward_has_fast(const PrefillBackward& problem) {
  const Prefill& forward = problem.forward;
  for (const HeadRows* rows : {&forward.q_nope, &forward.q_rope, &forward.exact.nope,
                               &forward.exact.rope, &forward.exact.value, &forward.groups.nope,
                               &forward.groups.rope, &forward.groups.value, &problem.dout}) {
    if (!tensor_map_fits(*rows)) return false;
  }
  for (const GradRows* rows :
       {&problem.q_nope, &problem.q_rope, &problem.exact.nope, &problem.exact.rope,
        &problem.exact.value, &problem.groups.nope, &problem.groups.rope, &problem.groups.value}) {
    if (!grad_fits(*rows)) return false;
  }
  const int nope = forward.q_nope.width, rope = forward.q_rope.width;
  const int value = forward.exact.value.width;
  if (forward.rotation.steps != nullptr && 2 * forward.rotation.pairs != rope) return false;
  if (forward.form == Form::gqa) return rope == value && (rope == 64 || rope == 128);
  return nope == 128 && rope == kRopePartial && value == 128;
}

BackwardPlan backward_plan(const PrefillBackward& problem, std::span<const PrefillRun> runs) {
  const Layout& layout = problem.forward.layout;
  const std::int64_t heads = problem.forward.heads;
  const std::int64_t kv_heads = key_heads(problem.forward);
  BackwardPlan plan;
  for (const PrefillRun& run : runs) {
    if (run.query_count == 0) continue;
    const std::int64_t groups = layout.groups(run.query_count);
    const std::int64_t sink = std::min(layout.sink, run.query_count);
    BackwardRun work{};
    work.query_row = run.query_row;
    work.exact_row = run.exact_row;
    work.group_row = run.group_row;
    work.count = static_cast<std::int32_t>(run.query_count);
    work.groups = static_cast<std::int32_t>(groups);
    work.tiles = static_cast<std::int32_t>(blocks_of(run.query_count, kTileQueries));
    work.sink_blocks = static_cast<std::int32_t>(blocks_of(sink, kKeyBlock));
    work.group_blocks = static_cast<std::int32_t>(blocks_of(groups, kKeyBlock));
    work.local_blocks = static_cast<std::int32_t>(blocks_of(run.query_count - sink, kKeyBlock));
    plan.runs.push_back(work);
  }
  // The longest first: what is left at the end is short.
  std::stable_sort(plan.runs.begin(), plan.runs.end(),
                   [](const BackwardRun& a, const BackwardRun& b) { return a.count > b.count; });
  double pairs = 0, far_units = 0, local_units = 0;
  constexpr double kUnit = 64;  // queries
  for (const BackwardRun& run : plan.runs) {
    const std::int64_t sink = std::min<std::int64_t>(layout.sink, run.count);
    const auto shared = static_cast<double>(heads / kv_heads);
    pairs += pairs_estimate(layout, run.count);
    if (sink + run.groups > 0) far_units = std::max(far_units, shared * run.count / kUnit);
    const Range first = layout.token_queries(sink, run.count);
    local_units =
        std::max(local_units, shared * static_cast<double>(first.size() + kKeyBlock) / kUnit);
  }
  const double units = pairs * static_cast<double>(heads) / (kKeyBlock * kUnit);
  plan.far.count = slices_for(far_units, units);
  plan.local.count = slices_for(local_units, units);
  for (BackwardRun& run : plan.runs) {
    const std::int64_t sink = std::min<std::int64_t>(layout.sink, run.count);
    run.first_far_row = plan.far.rows;
    run.first_local_row = plan.local.rows;
    plan.far.rows += sink + run.groups;
    plan.local.rows += run.count - sink;
    run.stat_row = plan.stat_rows;
    run.key_first = plan.keys;
    run.first_tile_item = static_cast<std::int32_t>(plan.tile_items);
    run.first_far_item = static_cast<std::int32_t>(plan.far_items);
    run.first_local_item = static_cast<std::int32_t>(plan.local_items);
    plan.stat_rows += blocks_of(run.count, kStatAlign) * kStatAlign;
    plan.keys += run.count + run.groups;
    plan.groups += run.groups;
    plan.tile_items += run.tiles * heads;
    plan.far_items += (run.sink_blocks + run.group_blocks) * kv_heads * plan.far.count;
    plan.local_items += run.local_blocks * kv_heads * plan.local.count;
  }
  return plan;
}

BackwardSpace backward_carve(const PrefillBackward& problem, const BackwardPlan& plan, bool fast,
                             void* memory) {
  const Prefill& forward = problem.forward;
  const std::int64_t heads = forward.heads;
  DeviceCarver carver(memory);
  BackwardSpace space;
  space.counters = carver.take<int>(2);
  space.runs = carver.take<BackwardRun>(static_cast<std::int64_t>(plan.runs.size()));
  space.lse = carver.take<float>(heads * plan.stat_rows);
  space.delta = carver.take<float>(heads * plan.stat_rows);
  if (forward.rotation.steps != nullptr) {
    space.far = carver.take<bf16>(forward.query_rows * heads * forward.q_rope.width);
  }
  if (fast && forward.form == Form::mla) {
    space.rope_partials = carver.take<float>(heads * plan.keys * kRopePartial);
    space.bias_partials = carver.take<float>(heads * plan.keys);
  }
  space.far_slices = plan.far;
  space.local_slices = plan.local;
  for (KeySlices* slices : {&space.far_slices, &space.local_slices}) {
    if (!fast || slices->count == 1) continue;
    const std::int64_t width =
        forward.q_nope.width + forward.q_rope.width + forward.exact.value.width + kSlicePad;
    slices->partials =
        carver.take<float>(slices->count * slices->rows * key_heads(forward) * width);
  }
  space.bytes = carver.used();
  return space;
}

std::size_t backward_workspace_bytes(const PrefillBackward& problem,
                                     std::span<const PrefillRun> runs, Kernels kernels) {
  const bool fast = kernels == Kernels::fast && backward_has_fast(problem);
  return backward_carve(problem, backward_plan(problem, runs), fast, nullptr).bytes;
}

void backward(const PrefillBackward& problem, std::span<const PrefillRun> runs, void* workspace,
              Kernels kernels, const Queue& queue) {
  backward_check(problem, runs);
  const bool fast =
      kernels == Kernels::fast && queue.device->hopper() && backward_has_fast(problem);
  const BackwardPlan plan = backward_plan(problem, runs);
  if (plan.runs.empty()) return;
  const BackwardSpace space = backward_carve(problem, plan, fast, workspace);
  backward_prepare(problem, plan, space, queue);
  if (!fast) {
    backward_portable(problem, plan, space, queue);
    return;
  }
  if (problem.q_nope.data != nullptr || problem.q_rope.data != nullptr) {
    backward_queries_sm90(problem, plan, space, queue);
  }
  if (any(problem.exact) || any(problem.groups) || problem.dbias != nullptr) {
    backward_keys_sm90(problem, plan, space, queue);
    backward_slices_sum(problem, plan, space, queue);
    if (problem.forward.form == Form::mla) backward_heads_sum(problem, plan, space, queue);
  }
}

}  // namespace lca::cuda
