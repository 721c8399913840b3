// Made-up layers on the GPU, and how long its kernels take on them.

#include "bench/cuda/bench.h"

#include "attention/cuda/backward/backward.h"
#include "attention/cuda/cache/rows.h"
#include "attention/cuda/condense/condense.h"
#include "attention/cuda/prefill/prefill.h"
#include "bench/cuda/bench_inputs.h"
#include "bench/cuda/stopwatch.h"
#include "core/error.h"
#include "ops/cuda/product.h"

namespace lca::cuda {
namespace {

/// Keys and values of `rows` rows, as heads see them.
KeyRows random_keys(Inputs& inputs, const AttentionShape& shape, std::int64_t rows) {
  KeyRows keys;
  keys.rows = rows;
  const std::int64_t kv = shape.kv_heads;
  if (shape.form == Form::mla) {
    keys.nope =
        head_rows(inputs.random(rows * shape.heads * shape.d_nope), shape.heads, shape.d_nope);
    keys.rope = {inputs.random(rows * shape.d_rope), shape.d_rope, 0,
                 static_cast<int>(shape.d_rope)};
    keys.value =
        head_rows(inputs.random(rows * shape.heads * shape.d_value), shape.heads, shape.d_value);
  } else {
    keys.rope = head_rows(inputs.random(rows * kv * shape.d_rope), kv, shape.d_rope);
    keys.value = head_rows(inputs.random(rows * kv * shape.d_value), kv, shape.d_value);
  }
  return keys;
}

double key_bytes(const AttentionShape& shape) {
  const std::int64_t values = shape.form == Form::mla
                                  ? shape.heads * (shape.d_nope + shape.d_value) + shape.d_rope
                                  : shape.entry_values();
  return 2.0 * static_cast<double>(values);
}

float bias_of(const Settings& settings) {
  return settings.mass == Mass::count ? std::log(static_cast<float>(settings.group)) : 0.0f;
}

/// Queries [rows][H][d_score], no-position part first.
QueryRows random_queries(Inputs& inputs, const AttentionShape& shape, std::int64_t rows) {
  const std::int64_t width = shape.d_score();
  const bf16* data = inputs.random(rows * shape.heads * width);
  QueryRows queries;
  queries.rows = rows;
  if (shape.form == Form::mla) {
    queries.nope = {data, shape.heads * width, width, static_cast<int>(shape.d_nope)};
  }
  queries.rope = {data + shape.d_nope, shape.heads * width, width, static_cast<int>(shape.d_rope)};
  return queries;
}

double query_bytes(const AttentionShape& shape, std::int64_t rows) {
  return 2.0 * static_cast<double>(rows * shape.heads * shape.d_score());
}

/// Sizes of what lies between queries and representatives, for one group.
struct MeanSizes {
  std::int64_t nope, rope, summary;  // values

  MeanSizes(const AttentionShape& shape, HeadReduce reduce) {
    summary = shape.kv_heads * summary_width(shape, reduce);
    nope = shape.form == Form::mla ? 2 * shape.heads * shape.d_nope : 0;
    rope = shape.form == Form::gqa     ? summary
           : reduce == HeadReduce::max ? shape.heads * shape.d_rope
                                       : shape.d_rope;
  }
  double bytes(std::int64_t groups) const {
    return static_cast<double>(groups) *
           (2.0 * static_cast<double>(nope) + 4.0 * static_cast<double>(rope));
  }
};

std::int64_t groups_at(const BenchSetup& setup, std::int64_t length) {
  return Layout(setup.spec.settings).groups(length);
}

/// Attention of `documents` packed documents; its lse is not wanted.
Prefill random_prefill(Inputs& inputs, const BenchSetup& setup, std::int64_t length,
                       int documents) {
  const AttentionShape& shape = setup.spec.shape;
  const std::int64_t rows = length * documents;
  const std::int64_t groups = groups_at(setup, length) * documents;
  const QueryRows queries = random_queries(inputs, shape, rows);
  Prefill problem;
  problem.heads = static_cast<int>(shape.heads);
  problem.kv_heads = static_cast<int>(shape.kv_heads);
  problem.form = shape.form;
  problem.layout = Layout(setup.spec.settings);
  problem.rotation = inputs.rotation(setup.spec);
  problem.scale = static_cast<float>(setup.spec.softmax_scale());
  problem.q_nope = queries.nope;
  problem.q_rope = queries.rope;
  problem.query_rows = rows;
  problem.exact = random_keys(inputs, shape, rows);
  problem.groups = random_keys(inputs, shape, groups);
  if (setup.spec.settings.mass == Mass::score) {
    problem.bias = inputs.random<float>(groups * shape.kv_heads);
  }
  problem.bias_all = bias_of(setup.spec.settings);
  problem.out = inputs.allocate(rows * shape.heads * shape.d_value);
  return problem;
}

/// What one set of inputs of condensing takes.
double condense_set_bytes(const BenchSetup& setup, std::int64_t length, CondenseWork work) {
  const AttentionShape& shape = setup.spec.shape;
  const std::int64_t groups = groups_at(setup, length);
  double bytes =
      2.0 * static_cast<double>(groups * setup.spec.settings.group * shape.entry_values());
  if (work == CondenseWork::streaming) bytes += query_bytes(shape, length);
  if (work == CondenseWork::streaming_means) {
    bytes += MeanSizes(shape, setup.spec.settings.head_reduce).bytes(groups);
  }
  return bytes;
}

}  // namespace

BenchDevice bench_device(int ordinal) {
  const Device& one = Device::at(ordinal);
  return {one.name, one.multiprocessors, static_cast<double>(one.memory),
          static_cast<double>(one.cache)};
}

void bench_memory_check(double bytes, const std::string& what) { memory_require(bytes, what); }

// --- prefill -----------------------------------------------------------------------------------

double bench_prefill_bytes(const BenchSetup& setup, std::int64_t length) {
  const AttentionShape& shape = setup.spec.shape;
  return query_bytes(shape, length) +
         2.0 * static_cast<double>(length * shape.heads * shape.d_value) +
         static_cast<double>(length + groups_at(setup, length)) * key_bytes(shape);
}

Timed bench_prefill(const BenchSetup& setup, std::int64_t length) {
  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  Inputs inputs(stream);
  const Prefill problem = random_prefill(inputs, setup, length, 1);
  const PrefillRun run{0, 0, length, 0, 0, 0};
  const Buffer workspace(std::max<std::size_t>(prefill_workspace_bytes(1), 1));
  return time_calls(stream, [&] {
    prefill(problem, {&run, 1}, workspace.as<void>(), kernels_of(setup), stream.queue());
  });
}

// --- gradients ---------------------------------------------------------------------------------

double bench_backward_bytes(const BenchSetup& setup, std::int64_t length, int documents) {
  // Tensors, their gradients, and float32 sums of MLA's RoPE keys for each head.
  const AttentionShape& shape = setup.spec.shape;
  const double sums = 4.0 * static_cast<double>((length + groups_at(setup, length)) * shape.heads *
                                                (shape.d_rope + shape.d_value));
  return documents * (2 * bench_prefill_bytes(setup, length) + sums);
}

TimedBackward bench_backward(const BenchSetup& setup, std::int64_t length, int documents) {
  const AttentionShape& shape = setup.spec.shape;
  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  Inputs inputs(stream);
  PrefillBackward problem;
  Prefill& forward = problem.forward;
  forward = random_prefill(inputs, setup, length, documents);
  const std::int64_t rows = length * documents;
  forward.lse = inputs.allocate<float>(rows * shape.heads);
  problem.dout =
      head_rows(inputs.random(rows * shape.heads * shape.d_value), shape.heads, shape.d_value);
  const auto gradient = [&](const HeadRows& of, std::int64_t count) -> GradRows {
    if (of.width == 0) return {};
    return {inputs.allocate(count * of.row_stride), of.row_stride, of.head_stride};
  };
  const std::int64_t width = shape.d_score();  // q is one tensor, and so is its gradient
  bf16* const dq = inputs.allocate(rows * shape.heads * width);
  if (forward.q_nope.width > 0) problem.q_nope = {dq, shape.heads * width, width};
  problem.q_rope = {dq + forward.q_nope.width, shape.heads * width, width};
  problem.exact = {gradient(forward.exact.nope, rows), gradient(forward.exact.rope, rows),
                   gradient(forward.exact.value, rows)};
  const std::int64_t groups = forward.groups.rows;
  problem.groups = {gradient(forward.groups.nope, groups), gradient(forward.groups.rope, groups),
                    gradient(forward.groups.value, groups)};
  if (forward.bias != nullptr) problem.dbias = inputs.allocate<float>(groups * shape.kv_heads);

  std::vector<PrefillRun> runs;
  for (std::int64_t d = 0; d < documents; ++d) {
    runs.push_back({d * length, 0, length, d * length, 0, d * groups_at(setup, length)});
  }
  const Kernels kernels = kernels_of(setup);
  const Buffer space(prefill_workspace_bytes(runs.size()));
  const Buffer scratch(backward_workspace_bytes(problem, runs, kernels));
  TimedBackward timed;
  timed.scratch = static_cast<double>(scratch.bytes());
  timed.forward = time_calls(
      stream, [&] { prefill(forward, runs, space.as<void>(), kernels, stream.queue()); });
  timed.backward = time_calls(
      stream, [&] { backward(problem, runs, scratch.as<void>(), kernels, stream.queue()); });
  return timed;
}

// --- condensing --------------------------------------------------------------------------------

double bench_condense_traffic(const BenchSetup& setup, std::int64_t length, CondenseWork work) {
  const std::int64_t groups = groups_at(setup, length);
  return condense_set_bytes(setup, length, work) +
         static_cast<double>(groups) *
             static_cast<double>(
                 group_bytes(setup.spec.shape, GroupType::bf16, setup.spec.settings.mass));
}

double bench_condense_bytes(const BenchSetup& setup, std::int64_t length, CondenseWork work) {
  const std::int64_t groups = groups_at(setup, length);
  const MeanSizes sizes(setup.spec.shape, setup.spec.settings.head_reduce);
  const double set = condense_set_bytes(setup, length, work);
  return sets_for(device_of(setup), set) * set + sizes.bytes(groups) +
         4.0 * static_cast<double>(groups * (sizes.summary + setup.spec.shape.entry_values()));
}

Timed bench_condense(const BenchSetup& setup, std::int64_t length, CondenseWork work) {
  const AttentionShape& shape = setup.spec.shape;
  const Settings& settings = setup.spec.settings;
  const HeadReduce reduce = settings.head_reduce;
  const Layout layout(settings);
  const std::int64_t groups = layout.groups(length);
  if (groups < 1) fail_input("nothing is condensed at {} tokens", length);
  const bool mla = shape.form == Form::mla;
  const bool one = work == CondenseWork::prompt;
  const std::int64_t means_count = one ? 1 : groups;
  const MeanSizes sizes(shape, reduce);
  const int sets = sets_for(device_of(setup), condense_set_bytes(setup, length, work));

  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  Inputs inputs(stream);
  const Queue queue = stream.queue();
  BenchProducts products(device);
  const bf16* w_uk = mla ? inputs.weights(shape.heads * shape.d_nope, shape.d_latent) : nullptr;
  const auto means_make = [&] {
    QueryMeans means;
    if (mla) means.nope = inputs.random(means_count * sizes.nope, 0.25f);
    means.rope = inputs.random<float>(means_count * sizes.rope, 0.25f);
    return means;
  };
  std::vector<Condense> jobs(static_cast<std::size_t>(sets));
  std::vector<QueryRows> queries(jobs.size());
  std::vector<QueryMeans> means(jobs.size(), means_make());
  float* summary = inputs.allocate<float>(means_count * sizes.summary);
  bf16* out_semantic = inputs.allocate(groups * shape.kv_heads * shape.d_semantic());
  bf16* out_positional = inputs.allocate(groups * shape.kv_heads * shape.d_positional());
  float* out_bias =
      settings.mass == Mass::score ? inputs.allocate<float>(groups * shape.kv_heads) : nullptr;
  const std::int64_t rows = groups * settings.group * shape.kv_heads;
  const RotationView rotation = inputs.rotation(setup.spec);
  for (std::size_t set = 0; set < jobs.size(); ++set) {
    if (work == CondenseWork::streaming) queries[set] = random_queries(inputs, shape, length);
    if (work == CondenseWork::streaming_means && set > 0) means[set] = means_make();
    Condense& job = jobs[set];
    job.shape = shape;
    job.settings = settings;
    job.scale = static_cast<float>(setup.spec.softmax_scale());
    job.semantic =
        head_rows(inputs.random(rows * shape.d_semantic()), shape.kv_heads, shape.d_semantic());
    job.positional =
        head_rows(inputs.random(rows * shape.d_positional()), shape.kv_heads, shape.d_positional());
    job.summary = mla ? summary : means[set].rope;
    job.one_summary = one;
    job.count = groups;
    job.rotation = rotation;
    job.out_semantic = out_rows(out_semantic, shape.kv_heads, shape.d_semantic());
    job.out_positional = out_rows(out_positional, shape.kv_heads, shape.d_positional());
    job.out_bias = out_bias;
  }
  return time_graph(stream, sets, 200, [&](int index) {
    const auto set = static_cast<std::size_t>(index);
    const bool fused = work == CondenseWork::streaming && mla &&
                       query_summary_pays(device, groups) &&
                       query_summary_fits(device, shape, reduce, &layout, queries[set], 0, w_uk);
    if (fused) {
      query_summary(shape, layout, queries[set], 0, groups, w_uk, summary, queue);
    } else {
      if (work == CondenseWork::streaming) {
        query_means(shape, reduce, layout, 0, queries[set], 0, groups, means[set], queue);
      }
      if (mla)
        summary_absorb(shape, reduce, means[set], means_count, w_uk, summary, products.space(),
                       queue);
    }
    condense(jobs[set], queue);
  });
}

Timed bench_rebuild(const BenchSetup& setup, std::int64_t rows) {
  const AttentionShape& shape = setup.spec.shape;
  if (shape.form != Form::mla || rows < 1) fail_input("there are no keys to rebuild");
  const Device& device = device_of(setup);
  const DeviceScope scope(device);
  const Stream stream(device);
  Inputs inputs(stream);
  BenchProducts products(device);
  const std::int64_t columns[] = {shape.heads * shape.d_nope, shape.heads * shape.d_value};
  const bf16* weights[] = {inputs.weights(columns[0], shape.d_latent),
                           inputs.weights(columns[1], shape.d_latent)};
  bf16* out[] = {inputs.allocate(rows * columns[0]), inputs.allocate(rows * columns[1])};
  const int sets = sets_for(device_of(setup), 2.0 * static_cast<double>(rows * shape.d_latent));
  std::vector<const bf16*> latents;
  for (int set = 0; set < sets; ++set) latents.push_back(inputs.random(rows * shape.d_latent));
  return time_graph(stream, sets, 200, [&](int set) {
    for (int half = 0; half < 2; ++half) {
      Product up;
      up.a = latents[static_cast<std::size_t>(set)];
      up.b = weights[half];
      up.c = out[half];
      up.rows = rows;
      up.inner = up.a_stride = up.b_stride = shape.d_latent;
      up.columns = up.c_stride = columns[half];
      products.space().multiply(up, stream);
    }
  });
}

}  // namespace lca::cuda
