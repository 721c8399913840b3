// Decode steps of made-up sessions on the GPU.

#include <numeric>

#include "attention/cuda/cache/rows.h"
#include "attention/cuda/condense/condense.h"
#include "attention/cuda/decode/decode.h"
#include "bench/cuda/bench.h"
#include "bench/cuda/bench_inputs.h"
#include "bench/cuda/stopwatch.h"
#include "core/cuda/transfer.h"

namespace lca::cuda {
namespace {

/// Steps that sessions may go on while they are measured.
constexpr int kMostSteps = 256;

/// Enough sets of sessions that no exact token is still in the L2 cache when it is read again:
/// a cache that evicts what was read once keeps those longest, and in a model of many layers they
/// are evicted.
int sets_of_sessions(const BenchSetup& setup, std::int64_t length, int batch) {
  const Layout layout(setup.spec.settings);
  return sets_for(device_of(setup), 2.0 * batch *
                                        static_cast<double>((length - layout.dropped(length)) *
                                                            setup.spec.shape.entry_values()));
}

}  // namespace

double bench_cache_bytes(const BenchSetup& setup, std::int64_t length) {
  const Layout layout(setup.spec.settings);
  const AttentionShape& shape = setup.spec.shape;
  const auto type = static_cast<GroupType>(setup.options.groups);
  return static_cast<double>(layout.groups(length) *
                                 group_bytes(shape, type, setup.spec.settings.mass) +
                             (length - layout.dropped(length)) * shape.entry_values() * 2);
}

double bench_decode_bytes(const BenchSetup& setup, std::int64_t length, int batch) {
  const Settings& settings = setup.spec.settings;
  const AttentionShape& shape = setup.spec.shape;
  const std::int64_t longest = length + kMostSteps;
  const std::int64_t pages = pages_needed(settings, longest);
  const double session =
      static_cast<double>(
          exact_rows(settings, longest) * shape.entry_values() * 2 +
          pages * kPageRows *
              group_bytes(shape, static_cast<GroupType>(setup.options.groups), settings.mass)) +
      4.0 * static_cast<double>(std::min(settings.summary_queries, longest) * shape.kv_heads *
                                summary_width(shape, settings.head_reduce));
  return sets_of_sessions(setup, length, batch) * batch * session +
         2.0 * static_cast<double>(pages * kPageRows * shape.entry_values());
}

Timed bench_decode(const BenchSetup& setup, std::int64_t length, int batch) {
  const Settings& settings = setup.spec.settings;
  const AttentionShape& shape = setup.spec.shape;
  const Layout layout(settings);
  const int sets = sets_of_sessions(setup, length, batch);
  const int sessions = sets * batch;
  const std::int64_t longest = length + kMostSteps;
  const std::int64_t kv = shape.kv_heads;
  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  const Queue queue = stream.queue();
  Inputs inputs(stream);

  // Pages of all sessions in one pool, in no order.
  const std::int64_t pages_each = pages_needed(settings, longest);
  const auto carve = [&](DeviceCarver carver) {
    const GroupPool carved = pool_carve(carver, shape, static_cast<GroupType>(setup.options.groups),
                                        settings.mass, pages_each * kPageRows * sessions);
    return std::pair(carved, carver.used());
  };
  const Buffer memory(carve(DeviceCarver()).second);
  const GroupPool pool = carve(DeviceCarver(memory.as<void>())).first;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages_each * sessions));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t state = 1;
  for (std::size_t i = order.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  auto* pages = inputs.allocate<std::int32_t>(static_cast<std::int64_t>(order.size()));
  const Transfer transfer(stream);
  transfer.upload(std::span<const std::int32_t>(order), pages);

  // Sessions stand at different places in their groups.
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < sessions; ++i) {
    lengths.push_back(std::max<std::int64_t>(length - i % settings.group, 1));
  }
  const std::int64_t exact = exact_rows(settings, longest);
  const std::int64_t groups = layout.groups(longest);
  const bf16* group_semantic = inputs.random(groups * kv * shape.d_semantic());
  const bf16* group_positional = inputs.random(groups * kv * shape.d_positional());
  const float* group_bias = pool.bias == nullptr ? nullptr : inputs.random<float>(groups * kv);
  const ExactPool exact_pool{inputs.random(sessions * exact * kv * shape.d_semantic()),
                             inputs.random(sessions * exact * kv * shape.d_positional()),
                             sessions * exact};
  std::vector<SessionView> views;
  for (int i = 0; i < sessions; ++i) {
    SessionView view;
    view.semantic = exact_pool.semantic + i * exact * kv * shape.d_semantic();
    view.positional = exact_pool.positional + i * exact * kv * shape.d_positional();
    view.pages = pages + i * pages_each;
    view.summary = inputs.random<float>(std::min(settings.summary_queries, longest) * kv *
                                        summary_width(shape, settings.head_reduce));
    view.length = static_cast<std::int32_t>(lengths[static_cast<std::size_t>(i)]);
    view.ring = static_cast<int>(ring_rows(settings, longest));
    views.push_back(view);
    const std::int64_t held = layout.groups(lengths[static_cast<std::size_t>(i)]);
    if (held > 0) {
      groups_append(shape, pool, view.pages, 0, held, group_semantic, group_positional, group_bias,
                    queue);
    }
  }
  auto* views_device = inputs.allocate<SessionView>(sessions);
  transfer.upload(std::span<const SessionView>(views), views_device);

  const std::int64_t d_query =
      shape.form == Form::mla ? shape.d_latent + shape.d_rope : shape.d_rope;
  bf16* out = inputs.allocate(batch * shape.heads * shape.d_semantic());
  const RotationView rotation = inputs.rotation(setup.spec);
  std::vector<Decode> steps(static_cast<std::size_t>(sets));
  for (std::size_t set = 0; set < steps.size(); ++set) {
    Decode& step = steps[set];
    step.shape = shape;
    step.settings = settings;
    step.rotation = rotation;
    step.scale = static_cast<float>(setup.spec.softmax_scale());
    step.pool = pool;
    step.exact = exact_pool;
    step.sessions = views_device + set * static_cast<std::size_t>(batch);
    step.batch = batch;
    step.queries = inputs.random(batch * shape.heads * d_query);
    if (shape.form == Form::mla && settings.method == MethodKind::lca) {
      step.summary = inputs.random<float>(batch * summary_width(shape, settings.head_reduce));
    }
    step.semantic = inputs.random(batch * kv * shape.d_semantic());
    step.positional = inputs.random(batch * kv * shape.d_positional());
    step.out = out;
  }
  const DecodePlan plan = decode_plan(device, shape, settings, pool.type, lengths.data(), batch,
                                      longest, kernels_of(setup));
  const Buffer workspace(plan.workspace_bytes);
  transfer.fill(workspace.as<void>(), workspace.bytes(), 0);
  // Three steps of each session are taken before the replays that count.
  return time_graph(stream, sets, kMostSteps - 4, [&](int set) {
    decode(steps[static_cast<std::size_t>(set)], plan, workspace.as<void>(), kernels_of(setup),
           queue);
  });
}

}  // namespace lca::cuda
