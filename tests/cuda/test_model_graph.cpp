// Captured decode steps whose inputs (where sequences are, their lengths, pages, tokens, positions)
// are all written on the GPU by the kernel just before the step, many steps without the host:
// nothing may be read earlier, and nothing may be kept from the step that was captured.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "cuda/model_pair.h"
#include "cuda/step_inputs.h"
#include "models/decoder.h"

namespace lca::test {
namespace {

constexpr std::size_t kSequences = 5;
constexpr std::size_t kPadded = 8;  // rows that such a step is captured with
constexpr std::size_t kSteps = 40;

/// Sequences of one model that step together.
class Steppers {
 public:
  Steppers(const Model& model, cuda::CudaStages& stages) : model_(model), stages_(stages) {}

  void open(const Settings& settings) {
    std::vector<LayerSpec> specs;
    for (std::int64_t i = 0; i < model_.info().layers; ++i) {
      specs.push_back(layer_spec(model_, settings, 1));
    }
    caches_.push_back(model_.state().backend->caches_open(specs));
  }
  Steppers fork() const {
    Steppers other(model_, stages_);
    for (const auto& caches : caches_) other.caches_.push_back(caches->fork());
    return other;
  }
  cuda::DeviceCaches& at(std::size_t i) { return static_cast<cuda::DeviceCaches&>(*caches_[i]); }

  /// One step, tokens of sequence `only` or one token of each; enqueues alone.
  void enqueue(const std::vector<std::int32_t>& tokens, std::ptrdiff_t only = -1) {
    runs_.clear();
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      if (only >= 0 && i != static_cast<std::size_t>(only)) continue;
      caches_[i]->step_begin(false);
      const std::span<const std::int32_t> all(tokens);
      runs_.push_back({caches_[i].get(), only < 0 ? all.subspan(i, 1) : all, caches_[i]->length(),
                       std::int64_t{1}});
    }
    decoder_step(stages_, static_cast<std::size_t>(model_.info().layers), runs_, {});
    for (const SequenceRun& run : runs_) run.caches->step_commit();
  }
  std::vector<std::int32_t> picks() {
    std::vector<RowRange> ranges;
    std::int64_t row = 0;
    for (const SequenceRun& run : runs_) ranges.push_back({(row += std::ssize(run.tokens)) - 1, 1});
    std::vector<std::int32_t> out(ranges.size());
    stages_.picks(ranges, out);
    return out;
  }

 private:
  const Model& model_;
  cuda::CudaStages& stages_;
  std::vector<std::unique_ptr<SequenceCaches>> caches_;
  std::vector<SequenceRun> runs_;
};

std::vector<float> rows_download(const float* from, std::size_t values) {
  std::vector<float> rows(values);
  cuda::check(cudaDeviceSynchronize(), "steps");
  cuda::check(cudaMemcpy(rows.data(), from, values * sizeof(float), cudaMemcpyDeviceToHost),
              "logits");
  return rows;
}

class CudaStepGraph : public ::testing::TestWithParam<std::string> {};

void expect_steps_alike(const std::string& name, const Settings& settings, GroupStorage groups) {
  const auto model = load_on(GoldenModel(name), "cuda", Precision::bf16, groups);
  Context context(1);
  cuda::CudaStages& stages = cuda_stages(*model, context);
  Random random(51);
  Steppers sequences(*model, stages);
  // Short, long, and about to need another page of representatives.
  const std::int64_t lengths[kSequences] = {3, 60, 240, 250, 263};
  std::vector<std::int32_t> firsts;
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences.open(settings);
    sequences.enqueue(random_tokens(random, *model, lengths[i]), static_cast<std::ptrdiff_t>(i));
    firsts.push_back(sequences.picks()[0]);
  }

  // Step by step, nothing captured, the host in between.
  stages.set_graphs(false);
  std::vector<std::vector<std::int32_t>> expected = {firsts};
  const auto values = kSequences * static_cast<std::size_t>(model->info().vocabulary);
  std::vector<float> last;
  {
    Steppers eager = sequences.fork();
    for (std::size_t step = 0; step < kSteps; ++step) {
      eager.enqueue(expected.back());
      expected.push_back(eager.picks());
    }
    last = rows_download(stages.logits_on_device(), values);
  }

  // All on the GPU. Pages for all steps beforehand: the host does not look after these sequences.
  stages.set_graphs(true);
  cuda::CacheStore& store = sequences.at(0).store();
  const bool condenses = store.pages_for(300) > 0;
  const std::int64_t pages = condenses ? store.pages_for(lengths[4] + kSteps) : 0;
  ASSERT_TRUE(!condenses || pages > 1) << "no sequence gets another page";
  std::vector<StepSequence> rows(kPadded, {0, 0, -1, 0});
  std::vector<std::int32_t> entries(kPadded * static_cast<std::size_t>(pages)), taken_pages;
  for (std::size_t i = 0; i < kSequences; ++i) {
    const cuda::HeldCache held = sequences.at(i).sequence().held();
    const std::int64_t end = held.length + static_cast<std::int64_t>(kSteps);
    store.window_require(held.place.window, end);
    store.dense_require(held.place.slot, end);
    rows[i] = {held.place.slot, held.place.window, static_cast<std::int32_t>(held.length),
               firsts[i]};
    std::vector<std::int32_t> listed = held.pages->entries();
    while (std::ssize(listed) < pages) {
      taken_pages.push_back(store.page_take());
      listed.push_back(store.table_entry(taken_pages.back()));
    }
    std::ranges::copy(listed, entries.begin() + static_cast<std::ptrdiff_t>(i) * pages);
  }
  const DeviceArray<StepSequence> rows_there(rows);
  const DeviceArray<std::int32_t> entries_there(entries), step_there({0}),
      taken(std::vector<std::int32_t>((kSteps + 1) * kPadded, -1));
  StepInputs inputs;
  inputs.sequences = rows_there.data();
  inputs.rows = kPadded;
  inputs.entries = entries_there.data();
  inputs.tables = condenses ? const_cast<std::int32_t*>(store.layer(0).pages) : nullptr;
  inputs.pages = static_cast<int>(pages);
  inputs.pages_each = store.layer(0).pages_each;
  inputs.step = step_there.data();
  inputs.taken = taken.data();
  cuda::StepArrays table;
  std::vector<cudaStream_t> streams;
  stages.set_step_writer([&](const cuda::StepArrays& to, const cuda::Queue& queue) {
    inputs.picks = stages.picks_on_device();
    table = to;
    streams.push_back(queue.stream);
    step_inputs_write(inputs, to, queue.stream);
  });
  // The first step is enqueued, the second captured; what the host copies there is overwritten.
  const std::vector<std::int32_t> wrong(kSequences, 1);
  for (int i = 0; i < 2; ++i) {
    sequences.enqueue(wrong);
    step_inputs_spoil(inputs, table, streams[0]);
  }
  ASSERT_EQ(streams.size(), 2u);
  ASSERT_NE(streams[0], streams[1]) << "the second step was not captured";
  for (std::size_t step = 2; step < kSteps; ++step) {
    stages.step_replay();
    step_inputs_spoil(inputs, table, streams[0]);
  }
  const std::vector<float> logits = rows_download(stages.logits_on_device(), values);
  const std::vector<std::int32_t> given = taken.download();
  std::set<std::int32_t> distinct;
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < kSequences; ++i) {
      ASSERT_EQ(given[step * kPadded + i], expected[step][i])
          << "step " << step << " of sequence " << i;
      distinct.insert(given[step * kPadded + i]);
    }
  }
  EXPECT_GT(distinct.size(), 2u) << "the texts say nothing";
  EXPECT_EQ(std::memcmp(logits.data(), last.data(), values * sizeof(float)), 0)
      << "logits of the last step";
  std::printf("%-20s %zu steps of %zu sequences, %zu tokens, %lld pages each\n", name.c_str(),
              kSteps, kSequences, distinct.size(), static_cast<long long>(pages));
  stages.set_step_writer({});
  for (const std::int32_t page : taken_pages) store.page_drop(page);
}

Settings graph_settings(MethodKind method) {
  Settings settings;
  settings.method = method;
  settings.group = 4;
  settings.window = 8;
  settings.sink = 2;
  settings.summary_queries = 4;
  return settings;
}

TEST_P(CudaStepGraph, ReadsInputsThatTheKernelBeforeWrote) {
  LCA_NEEDS_GPU();
  for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    expect_steps_alike(GetParam(), graph_settings(method), GroupStorage::bf16);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaStepGraph, ReadsInputsThatTheKernelBeforeWroteWithRepresentativesOf8Bits) {
  LCA_NEEDS_GPU();
  expect_steps_alike(GetParam(), graph_settings(MethodKind::lca), GroupStorage::fp8);
}

INSTANTIATE_TEST_SUITE_P(All, CudaStepGraph,
                         ::testing::Values("calm_llama", "calm_minicpm3", "calm_deepseek_v2"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace lca::test
