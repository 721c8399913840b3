#include "models/cuda/cuda_stages.h"

#include <algorithm>
#include <cmath>

#include "attention/rotate.h"
#include "core/cuda/profile_range.h"
#include "core/error.h"
#include "ops/cuda/thin.h"

namespace lca::cuda {
namespace {

/// Captured steps and plans that are kept.
constexpr std::size_t kMostSteps = 128;
/// Memory of long prompts that is kept for the next one.
constexpr std::size_t kKeptBytes = std::size_t{512} << 20;

/// Steps are captured for so many rows; those beyond the batch are padding.
int batch_rows(std::size_t count) {
  const auto batch = static_cast<int>(count);
  const int unit = batch <= 4 ? 1 : batch <= 32 ? 4 : batch <= 64 ? 8 : batch <= 256 ? 16 : 32;
  return (batch + unit - 1) / unit * unit;
}

/// Lengths in steps of a quarter octave, and the longest of a step.
constexpr double kLengthSteps = 4;
constexpr std::int64_t kShortest = 512;
int length_bucket(double length) {
  return static_cast<int>(
      std::ceil(std::log2(std::max(length, static_cast<double>(kShortest))) * kLengthSteps));
}
std::int64_t bucket_longest(int bucket) {
  return static_cast<std::int64_t>(std::ceil(std::exp2(bucket / kLengthSteps))) + 1;
}

std::int64_t length_of(const SequenceRun& run) {
  return static_cast<std::int64_t>(run.tokens.size());
}

DeviceCaches& caches_of(const SequenceRun& run) { return static_cast<DeviceCaches&>(*run.caches); }

struct FeedForwardSpace {
  bf16* normed = nullptr;
  float* gate_up = nullptr;  // rounded once, after SwiGLU
  bf16* inner = nullptr;
  void* experts = nullptr;

  FeedForwardSpace(const CudaModel& model, std::int64_t rows, DeviceCarver& carver) {
    std::int64_t width = 0;
    bool has_experts = false;
    for (const DeviceLayer& layer : model.weights.layers) {
      width = std::max(width, layer.feed_forward.down.in);
      has_experts = has_experts || layer.has_experts();
    }
    normed = carver.take<bf16>(rows * model.config.hidden);
    gate_up = carver.take<float>(rows * 2 * width);
    inner = carver.take<bf16>(rows * width);
    if (!has_experts) return;
    experts = carver.take<char>(
        static_cast<std::int64_t>(experts_workspace(model.weights.experts, rows)));
  }
};

struct HeadSpace {
  std::int32_t* from = nullptr;
  bf16* normed = nullptr;
  float* logits = nullptr;
  std::uint64_t* parts = nullptr;
  std::int32_t* picks = nullptr;

  HeadSpace(const ModelConfig& config, std::int64_t rows, DeviceCarver& carver) {
    from = carver.take<std::int32_t>(rows);
    normed = carver.take<bf16>(rows * config.hidden);
    logits = carver.take<float>(rows * config.vocabulary);
    parts = carver.take<std::uint64_t>(rows * kArgmaxParts);
    picks = carver.take<std::int32_t>(rows);
  }
};

struct HeldSpace {
  float* hidden = nullptr;
  RopeTurn* turns = nullptr;

  HeldSpace(const CudaModel& model, std::int64_t rows, DeviceCarver& carver) {
    hidden = carver.take<float>(rows * model.config.hidden);
    turns = carver.take<RopeTurn>(rows * model.rope_pairs());
  }
};

std::size_t held_bytes(const CudaModel& model, std::int64_t rows) {
  DeviceCarver carver;
  HeldSpace(model, rows, carver);
  return carver.used();
}

}  // namespace

void StepGraph::capture_end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "capturing a step");
  clear();
  const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "making a graph of a step");
}

void StepGraph::launch(cudaStream_t stream) const {
  check(cudaGraphLaunch(exec_, stream), "starting a step");
}

void StepGraph::clear() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  exec_ = nullptr;
}

CudaStages::CudaStages(CudaModel& model) : model_(model), capture_stream_(model.device) {
  up_projections_turn();
}

CudaStages::~CudaStages() { capture_abandon(); }

/// Ends a capture that a step left behind when it was cancelled: nothing of it
/// has run.
void CudaStages::capture_abandon() noexcept {
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(capture_stream_, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void CudaStages::bytes_count() {
  *bytes_ = prompt_.bytes() + decode_.bytes() + kernel_space_.bytes() + prompt_rows_.bytes();
}

void CudaStages::trim() {
  const DeviceScope scope(model_.device);
  if (prompt_.held.bytes() + prompt_rows_.bytes() <= kKeptBytes) return;
  model_.stream.wait();
  prompt_.held = Buffer();
  prompt_rows_ = Buffer();
  bytes_count();
}

/// About the longest context that a session can have: its caches and what is free.
std::int64_t CudaStages::longest_fitting(const SequenceRun& run) const {
  const CacheStore& store = caches_of(run).store();
  const auto bytes = [&](std::int64_t length) {
    return CacheStore::sequence_bytes(store.specs(), store.type(), length).total();
  };
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  const std::size_t budget = bytes(run.first) + free;
  std::int64_t fits = run.first, exceeds = store.limits().longest + 1;
  while (exceeds - fits > 1) {
    const std::int64_t middle = fits + (exceeds - fits) / 2;
    (bytes(middle) <= budget ? fits : exceeds) = middle;
  }
  return fits;
}

/// Where memory runs out, the Error also says how long the session can be.
template <typename Work>
void CudaStages::with_memory(const Work& work) const {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory || runs_.size() != 1) throw;
    fail_memory("{}; about {} tokens of this session fit now", error.what(),
                longest_fitting(runs_[0]));
  }
}

/// At least so many bytes. Captured steps hold the addresses of what they use.
void CudaStages::grow(Buffer& buffer, std::size_t bytes) {
  if (bytes <= buffer.bytes()) return;
  if (capturing_) fail_internal("a captured step needs memory that was not planned");
  if (&buffer == &kernel_space_ || decode_.has(buffer)) {
    for (auto& [key, known] : known_) known.graph.clear();
  }
  with_memory([&] {
    memory_require(static_cast<double>(bytes) - static_cast<double>(buffer.bytes()),
                   fmt::format("a step of {} tokens", rows_));
    buffer.require(bytes);
  });
  bytes_count();
  // Padding rows are computed from what is there: let it be numbers.
  Transfer(model_.stream).fill(buffer.as<void>(), buffer.bytes(), 0);
}

void CudaStages::begin(std::span<const SequenceRun> runs) {
  const DeviceScope scope(model_.device);
  const ProfileRange range("lca begin");
  capture_abandon();
  runs_ = runs;
  rows_ = 0;
  single_ = true;
  mode_ = Mode::eager;
  queue_ = model_.stream.queue();
  step_ = nullptr;
  for (const SequenceRun& run : runs) {
    rows_ += length_of(run);
    single_ = single_ && run.tokens.size() == 1;
  }
  lane_ = single_ ? &decode_ : &prompt_;
  if (known_.size() > kMostSteps) known_.clear();
  with_memory([&] {
    for (const SequenceRun& run : runs) caches_of(run).sequence().prepare(length_of(run));
  });
  groups_make();
  grow(lane_->held, held_bytes(model_, padded_));
  DeviceCarver held(lane_->held.as<void>());
  const HeldSpace space(model_, padded_, held);
  hidden_ = space.hidden;
  turns_ = space.turns;
  if (single_) decode_memory();
  table_write();
  if (single_ && groups_.size() == 1 && graphs_on_ && !clock_.on()) {
    step_ = &known_step(groups_[0]);
    mode_ = step_->graph.ready() ? Mode::replay : step_->seen ? Mode::capture : Mode::eager;
    step_->seen = true;
  }
  if (mode_ == Mode::capture) {
    check(cudaStreamBeginCapture(capture_stream_, cudaStreamCaptureModeRelaxed),
          "capturing a step");
    capturing_ = true;
    queue_ = capture_stream_.queue();
  }
  if (mode_ != Mode::replay) step_start();
}

/// Runs by store, and by whether they are of one token.
void CudaStages::groups_make() {
  groups_.clear();
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    CacheStore& store = caches_of(runs_[i]).store();
    const bool single = runs_[i].tokens.size() == 1;
    auto group = std::ranges::find_if(groups_, [&](const Group& other) {
      return other.store == &store && other.single == single;
    });
    if (group == groups_.end()) {
      Group& made = groups_.emplace_back();
      made.store = &store;
      made.single = single;
      group = groups_.end() - 1;
    }
    group->runs.push_back(i);
  }
  std::int64_t sessions = 0;
  std::size_t views = 0;
  std::size_t kernels = 0;
  const bool alone = single_ && groups_.size() == 1;
  for (Group& group : groups_) {
    if (!group.single) continue;
    group.batch = alone ? batch_rows(group.runs.size()) : static_cast<int>(group.runs.size());
    group.first_session = sessions;
    sessions += group.batch;
    group.plans = known_step(group).plans;
    for (const auto& [kind, plan] : group.plans) kernels = std::max(kernels, plan.workspace_bytes);
    views += static_cast<std::size_t>(group.batch * group.store->layers()) * sizeof(SessionView);
  }
  padded_ = alone ? groups_[0].batch : rows_;
  grow(kernel_space_, kernels);
  grow(lane_->views, views);
  auto* at = lane_->views.as<SessionView>();
  for (Group& group : groups_) {
    if (!group.single) continue;
    group.views = at;
    at += group.batch * group.store->layers();
  }
}

/// What is known of steps like this one.
CudaStages::KnownStep& CudaStages::known_step(const Group& group) {
  std::vector<std::int64_t> lengths;
  double sum = 0;
  std::int64_t longest = 0;
  for (const std::size_t run : group.runs) {
    lengths.push_back(runs_[run].first);
    longest = std::max(longest, lengths.back() + 1);
    sum += static_cast<double>(lengths.back());
  }
  const int most = length_bucket(static_cast<double>(longest));
  const int mean = length_bucket(sum / static_cast<double>(lengths.size()));
  KnownStep& known = known_[{group.store->id(), group.batch, most, mean}];
  if (!known.plans.empty()) return known;
  lengths.resize(static_cast<std::size_t>(group.batch), lengths.back());
  for (int layer = 0; layer < group.store->layers(); ++layer) {
    const int kind = group.store->kind(layer);
    if (known.plans.contains(kind)) continue;
    const LayerSpec& spec = group.store->spec(kind);
    known.plans[kind] =
        decode_plan(model_.device, spec.shape, spec.settings, group.store->type(), lengths.data(),
                    group.batch, bucket_longest(most), model_.kernels);
  }
  return known;
}

/// All memory of a step of single tokens, before anything is captured.
void CudaStages::decode_memory() {
  std::size_t most = std::max(feed_forward_bytes(padded_), head_bytes(padded_));
  for (int layer = 0; layer < groups_[0].store->layers(); ++layer) {
    const bool first = std::ranges::any_of(
        groups_, [&](const Group& group) { return group.store->kind(layer) == layer; });
    if (!first) continue;
    most = std::max(most, spaces_prepare(static_cast<std::size_t>(layer), {0, rows_}, nullptr));
  }
  grow(lane_->work, most);
  DeviceCarver carver(lane_->work.as<void>());
  const HeadSpace head(config(), padded_, carver);
  logits_ = head.logits;
  picks_ = head.picks;
}

void CudaStages::table_write() {
  const bool own_steps = model_.rope.depends_on_length();
  std::int64_t sessions = 0;
  for (const Group& group : groups_) sessions += group.batch;
  const auto steps = own_steps ? static_cast<std::int64_t>(runs_.size()) * model_.rope_pairs() : 0;
  const std::size_t bytes = StepArrays(DeviceCarver(), padded_, sessions, steps).bytes;
  grow(lane_->table, bytes);
  table_copied_.wait();  // the step before may still be read
  void* const memory = table_host_.require(bytes);
  const StepArrays host(DeviceCarver(memory), padded_, sessions, steps);
  table_ = StepArrays(DeviceCarver(lane_->table.as<void>()), padded_, sessions, steps);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const SequenceRun& run = runs_[i];
    for (std::int64_t k = 0; k < length_of(run); ++k, ++row) {
      host.tokens[row] = run.tokens[static_cast<std::size_t>(k)];
      host.positions[row] = static_cast<std::int32_t>(run.first + k);
      host.rope[row] = own_steps ? static_cast<std::int32_t>(i) : 0;
    }
    if (!own_steps) continue;
    const std::vector<std::uint64_t> turns =
        rotation_steps({config().rope.layout, model_.rope.frequencies(run.rope_length)});
    std::ranges::copy(turns, host.steps + static_cast<std::int64_t>(i) * model_.rope_pairs());
  }
  for (; row < padded_; ++row) host.tokens[row] = host.positions[row] = host.rope[row] = 0;
  for (const Group& group : groups_) {
    if (!group.single) continue;
    std::int64_t at = group.first_session;
    std::int64_t run_row = 0;
    std::size_t run = 0;
    for (const std::size_t index : group.runs) {
      for (; run < index; ++run) run_row += length_of(runs_[run]);
      host.sessions[at] = caches_of(runs_[index]).sequence().step_row();
      host.single[at++] = static_cast<std::int32_t>(run_row);
    }
    for (; at < group.first_session + group.batch; ++at) {
      host.sessions[at] = StepRow{};
      host.single[at] = 0;
    }
  }
  check(cudaMemcpyAsync(lane_->table.as<void>(), memory, bytes, cudaMemcpyHostToDevice,
                        model_.stream),
        "copying a step to the GPU");
  table_copied_.record(model_.stream);
}

/// What all layers read: sessions, embeddings, angles.
void CudaStages::step_start() {
  clock_.mark({}, queue_);
  if (step_writer_) step_writer_(table_, queue_);
  for (const Group& group : groups_) {
    if (!group.single) continue;
    group.store->views_gather(table_.sessions + group.first_session, group.batch, group.views,
                              queue_);
  }
  rows_embed(model_.weights.embedding, table_.tokens, padded_, config().hidden,
             static_cast<float>(config().embedding_scale), hidden_, queue_);
  const bool own_steps = model_.rope.depends_on_length();
  RopeTurns job;
  job.steps = own_steps ? table_.steps : model_.rope_steps.as<std::uint64_t>();
  job.tables = own_steps ? table_.rope : nullptr;
  job.positions = table_.positions;
  job.rows = padded_;
  job.pairs = static_cast<int>(model_.rope_pairs());
  job.factor = static_cast<float>(model_.rope.multiplier(1));
  job.turns = turns_;
  rope_turns(job, queue_);
  clock_.mark("embedding", queue_);
}

void CudaStages::step_replay() const {
  const DeviceScope scope(model_.device);
  if (step_ == nullptr || !step_->graph.ready()) fail_internal("no step is captured");
  step_->graph.launch(model_.stream);
}

void CudaStages::profile(bool on) {
  clock_.set(on);
  clock_.take();
}

StepProfile CudaStages::profile_take() {
  const DeviceScope scope(model_.device);
  StepProfile profile;
  profile.parts = clock_.take();
  const ExpertsShape& shape = model_.weights.experts;
  const std::int64_t visits = chosen_rows_ * shape.route.per_token;
  if (visits == 0) return profile;
  std::vector<int> chosen(static_cast<std::size_t>(visits));
  std::int64_t layers = 0;
  for (std::size_t layer = 0; layer < model_.weights.layers.size(); ++layer) {
    if (!weights(layer).has_experts()) continue;
    Transfer(model_.stream)
        .download(chosen_.as<int>() + static_cast<std::int64_t>(layer) * visits, visits,
                  chosen.data());
    std::vector<std::int64_t> rows(static_cast<std::size_t>(shape.route.experts));
    for (const int expert : chosen) ++rows[static_cast<std::size_t>(expert)];
    profile.experts_hit += static_cast<double>(
        std::ranges::count_if(rows, [](std::int64_t count) { return count > 0; }));
    profile.expert_largest += static_cast<double>(std::ranges::max(rows)) *
                              static_cast<double>(shape.route.experts) /
                              static_cast<double>(visits);
    ++layers;
  }
  profile.experts_hit /= static_cast<double>(layers);
  profile.expert_largest /= static_cast<double>(layers);
  return profile;
}

void CudaStages::product_part(const DeviceLinear& layer, std::int64_t first, std::int64_t count,
                              const bf16* x, std::int64_t rows, float* out, std::int64_t stride) {
  Product call;
  call.a = x;
  call.b = layer.weight + first * layer.in;
  call.c = out;
  call.c_float = true;
  call.rows = rows;
  call.columns = count;
  call.inner = call.a_stride = call.b_stride = layer.in;
  call.c_stride = stride;
  multiply(call);
}

/// With few rows the weights are what takes time: kernels that only stream them.
void CudaStages::multiply(const Product& call) {
  if (call.rows <= kThinRows && call.alpha == 1) {
    Thin thin;
    thin.x = call.a;
    thin.w = call.b;
    thin.y = call.c;
    thin.rows = static_cast<int>(call.rows);
    thin.columns = static_cast<int>(call.columns);
    thin.inner = static_cast<int>(call.inner);
    thin.x_stride = call.a_stride;
    thin.w_stride = call.b_stride;
    thin.y_stride = call.c_stride;
    thin.y_float = call.c_float;
    thin.accumulate = call.accumulate;
    if (thin_fits(thin)) {
      thin_multiply(thin, queue_);
      return;
    }
  }
  model_.product_space().multiply(call, queue_);
}

/// out = x · Wᵀ in bf16, or in float32 where `wide`; with `residual` it is
/// added there, scaled as the model does.
void CudaStages::product(const DeviceLinear& layer, const bf16* x, std::int64_t rows, void* out,
                         bool wide, bool residual) {
  Product call;
  call.a = x;
  call.b = layer.weight;
  call.c = out;
  call.c_float = wide;
  call.rows = rows;
  call.columns = call.c_stride = layer.out;
  call.inner = call.a_stride = call.b_stride = layer.in;
  if (residual) {
    call.accumulate = true;
    call.alpha = static_cast<float>(config().residual_scale);
  }
  multiply(call);
}

/// Normed rows of the residual at the beginning of the work memory, where all
/// stages have them.
bf16* CudaStages::norm(const float* weight, RowRange rows) {
  RowsNorm job;
  job.x = hidden(rows.first);
  job.x_stride = job.width = config().hidden;
  job.weight = weight;
  job.eps = config().norm_eps;
  job.rows = rows.count;
  job.out = lane_->work.as<bf16>();
  rows_norm(job, queue_);
  return job.out;
}

std::size_t CudaStages::feed_forward_bytes(std::int64_t rows) const {
  DeviceCarver carver;
  FeedForwardSpace(model_, rows, carver);
  return carver.used();
}

std::size_t CudaStages::head_bytes(std::int64_t rows) const {
  DeviceCarver carver;
  HeadSpace(config(), rows, carver);
  return carver.used();
}

void CudaStages::feed_forward(std::size_t index, RowRange asked) {
  const DeviceScope scope(model_.device);
  const ProfileRange range("lca feed forward");
  if (mode_ != Mode::replay) {
    const RowRange rows = single_ ? RowRange{0, padded_} : asked;
    const DeviceLayer& layer = weights(index);
    grow(lane_->work, feed_forward_bytes(rows.count));
    DeviceCarver carver(lane_->work.as<void>());
    const FeedForwardSpace space(model_, rows.count, carver);
    norm(layer.feed_forward_norm, rows);
    if (layer.has_experts()) {
      ExpertsCall call;
      call.x = space.normed;
      call.residual = hidden(rows.first);
      call.rows = rows.count;
      call.forced = tap_.forced;
      call.chosen = tap_.chosen;
      if (clock_.on()) {
        const auto layers = static_cast<std::int64_t>(model_.weights.layers.size());
        const std::int64_t each = rows.count * model_.weights.experts.route.per_token;
        grow(chosen_, static_cast<std::size_t>(layers * each) * sizeof(int));
        call.chosen = chosen_.as<int>() + static_cast<std::int64_t>(index) * each;
        chosen_rows_ = rows.count;
      }
      experts_run(model_.weights.experts, layer.experts, call, space.experts, model_.kernels,
                  queue_);
    }
    const DeviceFeedForward& dense = layer.feed_forward;
    if (!dense.down.empty()) {
      product(dense.gate_up, space.normed, rows.count, space.gate_up, true);
      rows_swiglu(space.gate_up, dense.gate_up.bias, rows.count, dense.down.in, space.inner,
                  queue_);
      product(dense.down, space.inner, rows.count, hidden(rows.first), true, true);
      if (dense.down.bias != nullptr) {
        rows_add_bias(dense.down.bias, static_cast<float>(config().residual_scale), rows.count,
                      config().hidden, hidden(rows.first), queue_);
      }
    }
  }
  clock_.mark(weights(index).has_experts() ? "experts" : "feed-forward", queue_);
  if (!single_ || !last_layer(index)) return;
  if (mode_ != Mode::replay) {
    DeviceCarver carver(lane_->work.as<void>());
    const HeadSpace space(config(), padded_, carver);
    head(nullptr, padded_);
    rows_argmax(space.logits, padded_, config().vocabulary, space.parts, space.picks, queue_);
    clock_.mark("head", queue_);
  }
  if (mode_ == Mode::capture) {
    capturing_ = false;
    step_->graph.capture_end(capture_stream_);
  }
  if (mode_ != Mode::eager) step_->graph.launch(model_.stream);
}

/// Final norm and logits of rows `from` (null: the first rows) at the head's
/// place in the work memory.
void CudaStages::head(const std::int32_t* from, std::int64_t rows) {
  DeviceCarver carver(lane_->work.as<void>());
  const HeadSpace space(config(), rows, carver);
  RowsNorm job;
  job.x = hidden_;
  job.x_stride = job.width = config().hidden;
  job.from = from;
  job.weight = model_.weights.norm;
  job.eps = config().norm_eps;
  job.factor = static_cast<float>(1 / config().logit_divisor);
  job.rows = rows;
  job.out = space.normed;
  rows_norm(job, queue_);
  product(model_.weights.head, space.normed, rows, space.logits, true);
  logits_ = space.logits;
  picks_ = space.picks;
}

/// Logits of some rows of a prompt.
void CudaStages::prompt_head(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  grow(lane_->work, head_bytes(rows));
  DeviceCarver carver(lane_->work.as<void>());
  const HeadSpace space(config(), rows, carver);
  table_copied_.wait();
  auto* const host = static_cast<std::int32_t*>(
      table_host_.require(static_cast<std::size_t>(rows) * sizeof(std::int32_t)));
  std::int64_t at = 0;
  for (const RowRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) {
      host[at++] = static_cast<std::int32_t>(range.first + i);
    }
  }
  check(cudaMemcpyAsync(space.from, host, static_cast<std::size_t>(rows) * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice, model_.stream),
        "copying a step to the GPU");
  table_copied_.record(model_.stream);
  clock_.mark({}, queue_);
  head(space.from, rows);
  clock_.mark("head", queue_);
}

const float* CudaStages::logits(std::span<const RowRange> ranges) {
  const DeviceScope scope(model_.device);
  const ProfileRange mark("lca logits");
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  const std::int64_t width = config().vocabulary;
  auto* const host = static_cast<float*>(
      results_->require(static_cast<std::size_t>(rows * width) * sizeof(float)));
  const auto bring = [&](std::int64_t from, std::int64_t count, float* to) {
    check(cudaMemcpyAsync(to, logits_ + from * width,
                          static_cast<std::size_t>(count * width) * sizeof(float),
                          cudaMemcpyDeviceToHost, model_.stream),
          "copying logits from the GPU");
  };
  if (single_) {
    float* to = host;
    for (const RowRange& range : ranges) {
      bring(range.first, range.count, to);
      to += range.count * width;
    }
  } else {
    prompt_head(ranges);
    bring(0, rows, host);
  }
  model_.stream.wait();
  return host;
}

void CudaStages::picks(std::span<const RowRange> ranges, std::span<std::int32_t> out) {
  const DeviceScope scope(model_.device);
  const ProfileRange mark("lca picks");
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  const std::int64_t count = single_ ? padded_ : rows;
  if (!single_) {
    prompt_head(ranges);
    DeviceCarver carver(lane_->work.as<void>());
    const HeadSpace space(config(), rows, carver);
    rows_argmax(space.logits, rows, config().vocabulary, space.parts, space.picks, queue_);
  }
  const auto bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
  auto* const host = static_cast<std::int32_t*>(results_->require(bytes));
  check(cudaMemcpyAsync(host, picks_, bytes, cudaMemcpyDeviceToHost, model_.stream),
        "copying tokens from the GPU");
  model_.stream.wait();
  auto to = out.begin();
  std::int64_t at = 0;
  for (const RowRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i, ++at) {
      *to++ = host[single_ ? range.first + i : at];
    }
  }
}

std::size_t CudaStages::activation_bytes(const CudaModel& model, std::int64_t rows) {
  DeviceCarver feed_forward;
  FeedForwardSpace(model, rows, feed_forward);
  return held_bytes(model, rows) + StepArrays(DeviceCarver(), rows, 0, 0).bytes +
         std::max(feed_forward.used(), projected_bytes(model, rows));
}

}  // namespace lca::cuda
