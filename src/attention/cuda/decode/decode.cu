// The decode step's host side: which kernel, and how the work is cut over the GPU. The kernels are
// in decode_sm90.cu, decode_quantised_sm90.cu, decode_mla.cu and decode_gqa.cu (decode_fast.cuh),
// and decode_generic.cu.

#include "attention/cuda/decode/decode.h"

#include <lca/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "attention/cuda/decode/decode_group.cuh"
#include "attention/cuda/decode/decode_shapes.cuh"

namespace lca::cuda {
namespace decoding {
namespace {

/// Whether one block of each kernel for these widths fits the GPU's shared memory. Those for entry
/// positions need most.
template <typename R>
bool fits(const Device& device) {
  const std::size_t limit = device.shared_bytes;
  return Memory<R, false, true>::stages(limit) >= 2 && Memory<R, true, true>::stages(limit) >= 2;
}

template <typename R>
Shape fast_shape(const Device& device, const AttentionShape& shape) {
  if (!fits<R>(device)) return {};
  const auto sharing = shape.heads_per_kv();
  return {true, static_cast<int>(shape.kv_heads * ((sharing + R::kRows - 1) / R::kRows)), R::kRows};
}

template <typename R>
bool is_row(const AttentionShape& shape) {
  return (shape.form == Form::mla) == R::kMla && shape.d_semantic() == R::kSemantic &&
         shape.d_positional() == R::kPositional;
}

}  // namespace

Shape kernel_shape(const Device& device, const AttentionShape& shape, const Settings& settings) {
  Shape found;
  const bool condenses = settings.method == MethodKind::lca;
  if (!condenses || (settings.head_reduce != HeadReduce::max && settings.group <= kMostGroup)) {
    if (is_row<MlaWide>(shape)) found = fast_shape<MlaWide>(device, shape);
    if (is_row<MlaNarrow>(shape)) found = fast_shape<MlaNarrow>(device, shape);
    if (is_row<GqaWide>(shape)) found = fast_shape<GqaWide>(device, shape);
    if (is_row<GqaNarrow>(shape)) found = fast_shape<GqaNarrow>(device, shape);
  }
  if (!found.fast) found = {false, static_cast<int>(shape.heads), 1};
  return found;
}

namespace {

// What a block costs beside its entries, and a reduction over several partials, in entries that one
// multiprocessor would read in that time.
constexpr double kBlockCost = 96;
constexpr double kReduceCost = 16;
// Without clusters one block reduces everything: more partials than this never pay.
constexpr int kMostPartials = 24;
// Tokens for which a plan should stay good.
constexpr std::int64_t kPlanTokens = 256;

Visible seen_at(const Layout& layout, std::int64_t length, std::int64_t longest) {
  const std::int64_t n = std::max<std::int64_t>(1, std::min(length + kPlanTokens, longest));
  return layout.visible(n - 1);
}

/// Blocks that run at once in clusters of 2, 4 or 8.
int slots_of(const Device& device, const AttentionShape& shape, int cluster) {
  return shape.form == Form::mla ? slots_mla(device, shape, cluster)
                                 : slots_gqa(device, shape, cluster);
}

std::size_t counter_bytes(const DecodePlan& plan) {
  const auto counters = static_cast<std::size_t>(plan.batch) *
                        (1 + static_cast<std::size_t>(plan.jobs) * kMostClusterBlocks);
  return std::max(kCounterBytes, (counters * sizeof(int) + 255) / 256 * 256);
}

}  // namespace
}  // namespace decoding

DecodePlan decode_plan(const Device& gpu, const AttentionShape& shape, const Settings& settings,
                       GroupType type, const std::int64_t* lengths, int batch, std::int64_t longest,
                       Kernels kernels) {
  using namespace decoding;
  const Shape kernel = kernel_shape(gpu, shape, settings);
  const Layout layout(settings);
  const bool clusters = kernel.fast && kernels == Kernels::fast && gpu.major >= 9;

  if (batch == 0) return {};
  std::int64_t most = 1;
  const bool pages = clusters && stream_fits(gpu, shape);
  const bool quantised = type != GroupType::bf16 && settings.method == MethodKind::lca;
  // Whole tiles, some of them not full: after the representatives, at the ends of sink, ring and
  // window, and one for the representative of the step.
  const std::int64_t unit = pages ? kPageRows : 1;
  const auto units_at = [&](std::int64_t length) {
    const Visible seen = seen_at(layout, length, longest);
    const std::int64_t entries = std::max<std::int64_t>(1, seen.pairs());
    if (!pages) return entries;
    // Tiles of exact tokens are half as long beside quantised pages.
    const std::int64_t halves = quantised ? entries - seen.groups : 0;
    return (entries + halves + kPageRows - 1) / kPageRows + 3;
  };
  for (int i = 0; i < batch; ++i) most = std::max(most, units_at(lengths[i]));
  const double partial_entries =
      static_cast<double>(kernel.rows * shape.d_semantic() * 4) /
      static_cast<double>((shape.d_semantic() + shape.d_positional()) * 2);

  DecodePlan plan;
  plan.batch = batch;
  plan.jobs = kernel.jobs;
  double best = std::numeric_limits<double>::infinity();
  // Every size of clusters: large ones reduce cheaply, small ones leave no multiprocessor out.
  for (int cluster = 1; cluster <= (clusters ? kMostClusterBlocks : 1); cluster *= 2) {
    const int slots = cluster == 1 ? gpu.multiprocessors : slots_of(gpu, shape, cluster);
    if (slots == 0) break;
    const int most_blocks = cluster == 1 ? kMostPartials : 2 * gpu.multiprocessors;
    for (int blocks = cluster; blocks <= most_blocks; blocks += cluster) {
      const std::int64_t chunk = (most + blocks - 1) / blocks;
      std::int64_t running = 0;
      for (int i = 0; i < batch; ++i) {
        const std::int64_t used = (units_at(lengths[i]) + chunk - 1) / chunk;
        running += (used + cluster - 1) / cluster * cluster * kernel.jobs;
      }
      const auto waves = static_cast<double>((running + slots - 1) / slots);
      const int partials = blocks / cluster;
      const double reduce = partials == 1 ? 0 : kReduceCost + partials * partial_entries / cluster;
      const double cost = waves * (static_cast<double>(chunk * unit) + kBlockCost + reduce);
      if (cost < best) {
        best = cost;
        plan.blocks = blocks;
        plan.cluster = cluster;
        plan.chunk = static_cast<int>(chunk * unit);
      }
    }
  }

  // Where sessions may outgrow this by far, there are blocks that have nothing to do for now.
  const std::int64_t at_last = units_at(longest);
  if (at_last > most + most / 4) {
    const int spare = clusters ? 2 * gpu.multiprocessors / (batch * kernel.jobs) : kMostPartials;
    const std::int64_t wanted = (at_last * unit + plan.chunk - 1) / plan.chunk;
    const auto blocks = static_cast<int>(std::min<std::int64_t>(wanted, spare));
    plan.blocks = std::max(plan.blocks, (blocks + plan.cluster - 1) / plan.cluster * plan.cluster);
  }

  const std::int64_t width = shape.d_semantic() / plan.cluster + 2;
  const auto partial_floats =
      static_cast<std::size_t>(plan.batch) * static_cast<std::size_t>(plan.jobs) *
      static_cast<std::size_t>(plan.blocks) * static_cast<std::size_t>(kernel.rows * width);
  plan.workspace_bytes = counter_bytes(plan) + partial_floats * sizeof(float);
  return plan;
}

void decode(const Decode& step, const DecodePlan& plan, void* workspace, Kernels kernels,
            const Queue& queue) {
  using namespace decoding;
  if (step.batch == 0) return;
  const Shape kernel = kernel_shape(*queue.device, step.shape, step.settings);
  if (plan.batch != step.batch || plan.jobs != kernel.jobs) {
    throw Error(ErrorKind::bad_input, "a decode step of " + std::to_string(step.batch) +
                                          " sessions with a plan for " +
                                          std::to_string(plan.batch) + ", or for another shape");
  }
  if (plan.cluster > 1 && kernels == Kernels::portable) {
    throw Error(ErrorKind::bad_input,
                "a decode step of the portable kernels with a plan for the fast ones");
  }
  Args args;
  args.step = step;
  // A bias is stored for mass `score` alone; elsewhere the pointer is not read.
  const bool condenses = step.settings.method == MethodKind::lca;
  if (!condenses || step.settings.mass != Mass::score) args.step.pool.bias = nullptr;
  if (condenses && step.settings.mass == Mass::score && step.pool.bias == nullptr) {
    throw Error(ErrorKind::bad_input, "a decode step with mass score needs the pool's bias");
  }
  if (condenses && step.shape.form == Form::mla && step.summary == nullptr) {
    throw Error(ErrorKind::bad_input, "a decode step of MLA needs the summaries of its queries");
  }
  const RotationView& rotation = step.rotation;
  if (rotation.steps != nullptr &&
      (rotation.pairs < 1 || 2 * rotation.pairs > step.shape.d_positional())) {
    throw Error(ErrorKind::bad_input, "a decode step that rotates " +
                                          std::to_string(rotation.pairs) +
                                          " pairs of channels of too few");
  }
  args.layout = layout32(Layout(step.settings));
  if (condenses && step.settings.mass == Mass::count) {
    args.bias_all = static_cast<float>(std::log(static_cast<double>(step.settings.group)));
  }
  args.heads = static_cast<int>(step.shape.heads);
  args.kv_heads = static_cast<int>(step.shape.kv_heads);
  args.sharing = static_cast<int>(step.shape.heads_per_kv());
  args.reduce =
      step.settings.head_reduce == HeadReduce::mean ? 1.f / static_cast<float>(args.sharing) : 1.f;
  args.chunk = plan.chunk;
  args.blocks = plan.blocks;
  args.cluster = plan.cluster;
  args.jobs = plan.jobs;
  args.session_counts = static_cast<int*>(workspace);
  args.job_counts = args.session_counts + plan.batch;
  args.partials = reinterpret_cast<float*>(static_cast<char*>(workspace) + counter_bytes(plan));
  if (!kernel.fast) {
    launch_generic(args, queue);
  } else if (kernels == Kernels::fast && plan.chunk % kPageRows == 0 &&
             step.exact.semantic != nullptr && stream_fits(*queue.device, step.shape)) {
    condenses&& step.pool.type != GroupType::bf16 ? launch_stream_quantised(args, queue)
                                                  : launch_stream(args, queue);
  } else if (step.shape.form == Form::mla) {
    launch_mla(args, queue);
  } else {
    launch_gqa(args, queue);
  }
}

}  // namespace lca::cuda
