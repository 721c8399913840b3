#pragma once
/// The stages of a step on the GPU. Prompts and mixed steps are enqueued stage
/// by stage; a step of single tokens is captured the second time it is seen and
/// replayed from then on, with one copy to the GPU before it and one back.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda/pinned.h"
#include "models/cuda/cuda_model.h"
#include "models/cuda/stage_clock.h"
#include "models/cuda/step_table.h"
#include "models/stages.h"
#include "ops/cuda/rows.h"

namespace lca::cuda {

/// A captured step.
class StepGraph {
 public:
  StepGraph() = default;
  ~StepGraph() { clear(); }
  StepGraph(StepGraph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  StepGraph& operator=(StepGraph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }

  bool ready() const { return exec_ != nullptr; }
  /// Takes over what was captured on `stream`.
  void capture_end(cudaStream_t stream);
  void launch(cudaStream_t stream) const;
  void clear();

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class CudaStages final : public Stages {
 public:
  explicit CudaStages(CudaModel& model);
  ~CudaStages() override;

  void begin(std::span<const SequenceRun> runs) override;
  void entries(std::size_t layer, RowRange rows) override;
  void attend(std::size_t layer, RowRange rows) override;
  void feed_forward(std::size_t layer, RowRange rows) override;
  const float* logits(std::span<const RowRange> ranges) override;
  void picks(std::span<const RowRange> ranges, std::span<std::int32_t> out) override;
  std::int64_t vocabulary() const override { return model_.config.vocabulary; }

  /// Device memory of activations, kept up to date; it may be read while a step runs.
  std::shared_ptr<const std::atomic<std::size_t>> bytes() const { return bytes_; }
  /// Frees what long prompts left.
  void trim();
  /// Activations of a step of `rows` tokens, without what attention needs for
  /// itself.
  static std::size_t activation_bytes(const CudaModel& model, std::int64_t rows);

  /// Where the logits of the next step go on the host.
  void set_results(PinnedMemory& memory) { results_ = &memory; }

  /// The residual stream of the step's rows, for tests: [rows][hidden] in
  /// device memory.
  float* hidden(std::int64_t row) const { return hidden_ + row * model_.config.hidden; }
  /// Experts to pass instead of choosing, and where those chosen go; for tests.
  struct ExpertsTap {
    const int* forced = nullptr;
    int* chosen = nullptr;
  };
  void set_experts(const ExpertsTap& tap) { tap_ = tap; }
  /// Whether steps of single tokens are captured; for tests.
  void set_graphs(bool on) { graphs_on_ = on; }
  /// For tests of captured steps: work that is enqueued before a step's first kernel, and captured
  /// with it, given the step's table on the GPU; the likeliest tokens there; the captured step once
  /// more, on the model's stream, without anything on the host.
  using StepWriter = std::function<void(const StepArrays& table, const Queue& queue)>;
  void set_step_writer(StepWriter writer) { step_writer_ = std::move(writer); }
  const std::int32_t* picks_on_device() const { return picks_; }
  const float* logits_on_device() const { return logits_; }
  void step_replay() const;

  /// Times the parts of steps, which are not captured meanwhile.
  void profile(bool on);
  StepProfile profile_take();

 private:
  /// Memory of prompts, or of steps of single tokens: apart, so that the
  /// addresses of captured steps stay.
  struct Lane {
    Buffer table, held, work, views;
    bool has(const Buffer& buffer) const {
      return &buffer == &table || &buffer == &held || &buffer == &work || &buffer == &views;
    }
    std::size_t bytes() const {
      return table.bytes() + held.bytes() + work.bytes() + views.bytes();
    }
  };
  /// Runs that one attention call takes: those of one store, of one token or of
  /// several.
  struct Group {
    CacheStore* store = nullptr;
    bool single = false;
    std::vector<std::size_t> runs;
    // Of one token:
    int batch = 0;                    // with padding
    std::int64_t first_session = 0;   // in the table
    SessionView* views = nullptr;     // [layers][batch]
    std::map<int, DecodePlan> plans;  // by kind of layer
    StepSpace step;                   // of the layer at work
    // Of several:
    ChunkPlan chunk;
    ChunkSpace space;
  };
  /// Which captured step: store, batch, the longest and the mean length in
  /// steps of a quarter octave.
  using GraphKey = std::tuple<std::uint64_t, int, int, int>;
  struct KnownStep {
    std::map<int, DecodePlan> plans;
    StepGraph graph;
    bool seen = false;
  };
  enum class Mode { eager, capture, replay };

  const ModelConfig& config() const { return model_.config; }
  const AttentionShape& shape() const { return model_.config.attention; }
  const DeviceLayer& weights(std::size_t layer) const { return model_.weights.layers[layer]; }
  bool last_layer(std::size_t layer) const { return layer + 1 == model_.weights.layers.size(); }

  // cuda_stages.cpp
  std::int64_t longest_fitting(const SequenceRun& run) const;
  template <typename Work>
  void with_memory(const Work& work) const;
  void groups_make();
  void table_write();
  KnownStep& known_step(const Group& group);
  void decode_memory();
  void step_start();
  void capture_abandon() noexcept;
  void grow(Buffer& buffer, std::size_t bytes);
  void bytes_count();

  // cuda_feed_forward.cpp
  void multiply(const Product& call);
  void product(const DeviceLinear& layer, const bf16* x, std::int64_t rows, void* out, bool wide,
               bool residual = false);
  void product_part(const DeviceLinear& layer, std::int64_t first, std::int64_t count,
                    const bf16* x, std::int64_t rows, float* out, std::int64_t stride);
  bf16* norm(const float* weight, RowRange rows);
  void head(const std::int32_t* from, std::int64_t rows);
  void prompt_head(std::span<const RowRange> ranges);

  // cuda_attention.cpp
  struct Projected {
    const float* first = nullptr;    // [rows][first.out]: GQA q, k, v; MLA q or q_a, kv_a
    const float* queries = nullptr;  // MLA with compressed queries: [rows][H·d_score]
  };
  struct Places {  // where attention reads queries and entries; null: not
                   // written
    bf16 *nope = nullptr, *rope = nullptr, *semantic = nullptr, *positional = nullptr;
    std::int64_t query_row = 0, entry_row = 0;
  };
  bool waits(std::size_t layer) const;
  std::size_t spaces_prepare(std::size_t layer, RowRange rows, void* memory);
  Projected project(std::size_t layer, RowRange rows, bool queries, bool entries);
  void place(std::size_t layer, const Projected& from, RowRange rows, RowRange part,
             const Places& to, const std::int32_t* source = nullptr);
  const bf16* attended_rows(RowRange rows);
  void up_projections_turn();
  LayerView view(const CacheStore& store, std::size_t layer) const;
  void output(std::size_t layer, const bf16* attended, RowRange rows);
  void waiting_entries(std::size_t layer, RowRange rows);
  const bf16* waiting_attend(std::size_t layer, RowRange rows);
  ChunkSpace waiting_space(std::size_t layer, const ChunkPlan& chunk, std::int64_t rows);

  CudaModel& model_;
  Lane prompt_, decode_;
  Lane* lane_ = nullptr;
  Buffer kernel_space_;  // of decode kernels; its counters are zero between calls
  Buffer prompt_rows_;   // entries of a prompt whose groups wait
  PinnedMemory table_host_;
  PinnedMemory* results_ = nullptr;
  Event table_copied_;
  Stream capture_stream_;
  std::map<GraphKey, KnownStep> known_;
  Buffer turned_;  // MLA: w_uk of all layers as steps of few rows read it

  // The step at work.
  std::span<const SequenceRun> runs_;
  std::int64_t rows_ = 0;    // tokens
  std::int64_t padded_ = 0;  // rows of the residual: padding included
  bool single_ = false;      // all runs are of one token
  Mode mode_ = Mode::eager;
  Queue queue_;  // where stages enqueue: the model's stream, or the capture's
  bool capturing_ = false;
  bool graphs_on_ = true;
  StageClock clock_;
  Buffer chosen_;  // while profiling: the experts of the last rows, [layers][rows][per token]
  std::int64_t chosen_rows_ = 0;
  ExpertsTap tap_;
  StepWriter step_writer_;
  KnownStep* step_ = nullptr;
  std::vector<Group> groups_;
  StepArrays table_;  // on the GPU
  float* hidden_ = nullptr;
  RopeTurn* turns_ = nullptr;
  bf16* attended_ = nullptr;
  float* logits_ = nullptr;  // of the last head
  std::int32_t* picks_ = nullptr;
  PromptPlan waiting_plan_;
  PromptRows waiting_rows_;
  std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace lca::cuda
