// Which kernels run a mixture of experts, in which order, and what memory they share.

#include "ops/cuda/experts.h"

#include <algorithm>
#include <cstdint>

#include "core/cuda/memory.h"
#include "core/error.h"
#include "ops/cuda/experts_kernels.h"

namespace lca::cuda {
namespace {

/// Rows up to which weights are the large operand.
constexpr std::int64_t kStreamRows = 512;

/// Pieces of the workspace for a slice of `rows` rows.
struct Pieces {
  float* logits = nullptr;
  int* chosen = nullptr;
  float* weights = nullptr;
  Sorted sorted;
  int* hits = nullptr;  // of few rows
  float* hit_weights = nullptr;
  bf16* act = nullptr;
  bf16* moved = nullptr;  // sorted rows of x first, then what the experts gave

  Pieces(const ExpertsShape& shape, std::int64_t rows, DeviceCarver& carver) {
    const std::int64_t visits = rows * shape.visits();
    const std::int64_t act_rows =
        std::max(visits, std::min<std::int64_t>(visits, shape.experts()) * std::int64_t{kFewRows});
    logits = carver.take<float>(rows * shape.route.experts);
    chosen = carver.take<int>(rows * shape.route.per_token);
    weights = carver.take<float>(rows * shape.route.per_token);
    sorted.begin = carver.take<int>(shape.experts() + 1);
    sorted.place = carver.take<int>(visits);
    sorted.source = carver.take<int>(visits);
    hits = carver.take<int>(shape.experts() + 1);
    hit_weights = carver.take<float>(std::int64_t{shape.experts()} * kFewRows);
    act = carver.take<bf16>(act_rows * shape.stored_width());
    moved = carver.take<bf16>(visits * shape.hidden);
  }
};

void shape_check(const ExpertsShape& shape) {
  const RouteRule& rule = shape.route;
  const auto wrong = [&] {
    if (shape.hidden < 1 || shape.width < 1 || shape.shared < 0) return true;
    if (rule.experts < 1 || rule.experts > kMostExperts) return true;
    if (rule.per_token < 1 || rule.per_token > rule.experts) return true;
    if (!rule.group_limited) return false;
    return rule.groups < 1 || rule.groups > rule.experts || rule.experts % rule.groups != 0 ||
           rule.top_groups < 1 || rule.top_groups > rule.groups ||
           rule.top_groups * (rule.experts / rule.groups) < rule.per_token;
  };
  if (wrong()) {
    fail_incompatible(
        "a mixture of {} experts ({} shared, {} per token, {} of {} groups) of width {} in {} "
        "channels cannot run on the GPU; at most {} experts, groups of equal size",
        rule.experts, shape.shared, rule.per_token, rule.top_groups, rule.groups, shape.width,
        shape.hidden, kMostExperts);
  }
}

Grouped first_product(const ExpertsShape& shape, const ExpertsWeights& weights,
                      const Pieces& pieces, std::int64_t rows) {
  Grouped product;
  product.w = weights.gate_up;
  product.begin = pieces.sorted.begin;
  product.out = pieces.act;
  product.experts = shape.experts();
  product.columns = 2 * shape.stored_width();
  product.inner = shape.hidden;
  product.sorted_rows = rows * shape.visits();
  product.rows_most = rows;
  product.glu = true;
  return product;
}

Grouped second_product(const ExpertsShape& shape, const ExpertsWeights& weights,
                       const Pieces& pieces, std::int64_t rows) {
  Grouped product;
  product.x = pieces.act;
  product.w = weights.down;
  product.begin = pieces.sorted.begin;
  product.out = pieces.moved;
  product.experts = shape.experts();
  product.columns = shape.hidden;
  product.inner = shape.stored_width();
  product.sorted_rows = rows * shape.visits();
  product.rows_most = rows;
  return product;
}

/// `rows` rows of a call from row `first` on.
void slice_run(const ExpertsShape& shape, const ExpertsWeights& weights, const ExpertsCall& call,
               std::int64_t first, std::int64_t rows, ExpertsPath path, const Pieces& pieces,
               const Queue& queue) {
  const int per_token = shape.route.per_token;
  const bf16* const x = call.x + first * shape.hidden;
  float* const residual = call.residual + first * shape.hidden;
  int* const chosen = call.chosen == nullptr ? pieces.chosen : call.chosen + first * per_token;
  Route route;
  route.x = x;
  route.router = weights.router;
  route.bias = weights.router_bias;
  route.forced = call.forced == nullptr ? nullptr : call.forced + first * per_token;
  route.rows = static_cast<int>(rows);
  route.hidden = shape.hidden;
  route.logits = pieces.logits;
  route.chosen = chosen;
  route.weights = pieces.weights;

  if (path == ExpertsPath::few) {
    Few few;
    few.route = route;
    few.act = pieces.act;
    few.hits = pieces.hits;
    few.weights = pieces.hit_weights;
    few.residual = residual;
    few_run(shape, weights, few, queue);
    return;
  }
  route_choose(shape.route, route, queue);
  route_sort(shape.route, shape.shared, chosen, static_cast<int>(rows), pieces.sorted, queue);
  Grouped gate_up = first_product(shape, weights, pieces, rows);
  const Grouped down = second_product(shape, weights, pieces, rows);
  if (path == ExpertsPath::portable) {
    gate_up.x = x;
    gate_up.source = pieces.sorted.source;
    grouped_portable(gate_up, queue);
    grouped_portable(down, queue);
  } else {
    gate_up.x = pieces.moved;
    route_gather(x, pieces.sorted.source, rows * per_token, shape.hidden, pieces.moved, queue);
    const GroupedRows shared{x, rows, shape.route.experts};
    const auto multiply = path == ExpertsPath::stream ? grouped_stream_sm90 : grouped_sm90;
    multiply(gate_up, shared, queue);
    multiply(down, {}, queue);
  }
  Combine combine;
  combine.y = pieces.moved;
  combine.place = pieces.sorted.place;
  combine.weights = pieces.weights;
  combine.residual = residual;
  combine.rows = static_cast<int>(rows);
  combine.hidden = shape.hidden;
  combine.per_token = per_token;
  combine.shared = shape.shared;
  route_combine(combine, queue);
}

}  // namespace

std::size_t experts_workspace(const ExpertsShape& shape, std::int64_t rows) {
  shape_check(shape);
  DeviceCarver carver;
  const Pieces counted(shape, std::min(rows, kExpertRowsAtOnce), carver);
  return carver.used();
}

ExpertsPath experts_path(const ExpertsShape& shape, std::int64_t rows, Kernels kernels,
                         const Device& device) {
  if (kernels == Kernels::portable) return ExpertsPath::portable;
  if (rows <= kFewRows && device.hopper() && few_fits(shape)) return ExpertsPath::few;
  if (!device.hopper() || !grouped_has_fast(shape)) return ExpertsPath::portable;
  return rows <= kStreamRows ? ExpertsPath::stream : ExpertsPath::grouped;
}

void experts_run(const ExpertsShape& shape, const ExpertsWeights& weights, const ExpertsCall& call,
                 void* workspace, Kernels kernels, const Queue& queue) {
  shape_check(shape);
  if (call.rows < 0) fail_input("a mixture of experts over {} rows", call.rows);
  for (std::int64_t first = 0; first < call.rows; first += kExpertRowsAtOnce) {
    const std::int64_t rows = std::min(call.rows - first, kExpertRowsAtOnce);
    DeviceCarver carver(workspace);
    const Pieces pieces(shape, std::min(call.rows, kExpertRowsAtOnce), carver);
    slice_run(shape, weights, call, first, rows,
              experts_path(shape, call.rows, kernels, *queue.device), pieces, queue);
  }
}

}  // namespace lca::cuda
