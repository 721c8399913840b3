#include "models/cuda/cuda_stages.h"

#include <algorithm>
#include <cmath>

#include "attention/rotate.h"
#include "core/cuda/profile_range.h"
#include "core/error.h"
#include "models/cuda/cuda_limits.h"
#include "models/cuda/cuda_memory.h"
#include "models/cuda/stage_spaces.h"

namespace lca::cuda {
namespace {

/// Captured steps and plans that are kept.
constexpr std::size_t kMostSteps = 128;
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

/// About the longest context that a session can have: its caches, and the work of a prompt, in what
/// it holds and what is free.
std::int64_t CudaStages::longest_fitting(const SequenceRun& run) const {
  const CacheStore& store = caches_of(run).store();
  const CudaPlan plan(config(), true);
  const auto needed = [&](std::int64_t length) {
    const CudaMemory memory = plan.memory({store.specs(), static_cast<GroupStorage>(store.type()),
                                           length, single_ ? 0 : std::min(rows_, kPromptChunk), 1});
    return memory.caches + memory.work();
  };
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  const std::size_t held =
      CacheStore::sequence_bytes(store.specs(), store.type(), run.first).total() + *bytes_ +
      model_.product_scratch.bytes();
  std::int64_t fits = run.first, exceeds = store.limits().longest + 1;
  while (exceeds - fits > 1) {
    const std::int64_t middle = fits + (exceeds - fits) / 2;
    (needed(middle) <= held + free ? fits : exceeds) = middle;
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
  grow(lane_->held, held_bytes(config(), padded_));
  DeviceCarver held(lane_->held.as<void>());
  const HeldSpace space(config(), padded_, held);
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
  std::size_t most =
      std::max(feed_forward_bytes(config(), model_.widths, padded_), head_bytes(config(), padded_));
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

}  // namespace lca::cuda
