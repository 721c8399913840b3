#pragma once
/// The stages of a step on the CPU: operators, methods and caches in host memory.

#include <cstdint>
#include <span>
#include <vector>

#include "models/cpu/activations.h"
#include "models/cpu/host_caches.h"
#include "models/model_state.h"
#include "models/stages.h"
#include "ops/linear.h"

namespace lca {

class CpuStages final : public Stages {
 public:
  CpuStages(Context& context, const Model::State& model, Activations& activations)
      : context_(context), model_(model), act_(activations) {}

  void begin(std::span<const SequenceRun> runs) override;
  void entries(std::size_t layer, RowRange rows) override;
  void attend(std::size_t layer, RowRange rows) override;
  void feed_forward(std::size_t layer, RowRange rows) override;
  const float* logits(std::span<const RowRange> ranges) override;
  std::int64_t vocabulary() const override { return config().vocabulary; }

 private:
  const ModelConfig& config() const { return model_.config(); }
  const AttentionShape& shape() const { return model_.config().attention; }
  const DecoderLayer& weights(std::size_t layer) const { return model_.weights.layers[layer]; }
  float* hidden(std::int64_t row) { return act_.hidden.data() + row * config().hidden; }
  Cache& cache(std::size_t run, std::size_t layer) const {
    return static_cast<HostCaches*>(runs_[run].caches)->layer(layer);
  }
  /// Whether the layer condenses only at the end of the prompt: then the step is the whole prompt
  /// of a single run.
  bool waits(std::size_t layer) const;

  void product(const Linear& layer, const float* x, std::span<const std::int64_t> runs,
               float* out) const;
  /// Lengths of the runs inside `rows`: all runs, or a piece of the only run.
  std::span<const std::int64_t> runs_of(RowRange rows);
  const float* norm(const float* weight, const float* x, std::int64_t rows);
  void rotate(float* x, std::int64_t rows, std::int64_t heads, std::int64_t stride,
              std::int64_t head_stride, std::int64_t first_row);
  LinearCall first_query_call(const DecoderLayer& layer, std::int64_t rows);
  Queries finish_queries(const DecoderLayer& layer, RowRange rows,
                         std::span<const std::int64_t> runs);
  Queries project_queries(const DecoderLayer& layer, const float* normed, RowRange rows);
  Entries project_entries(const DecoderLayer& layer, const float* normed, RowRange rows,
                          bool queries_too);
  /// Fills `act_.parts` with the queries and cache entries of each run's rows.
  void parts_fill(std::size_t layer, RowRange rows, const Queries& queries, const Entries* entries,
                  float* out);
  /// Calls body(method, parts, positions) for each stretch of consecutive parts with equal
  /// settings.
  template <typename Body>
  void for_like_parts(const Body& body);

  Context& context_;
  const Model::State& model_;
  Activations& act_;
  std::span<const SequenceRun> runs_;
  std::int64_t rows_ = 0;
  Queries queries_;             // of the rows of the last call of `entries`
  bool queries_ready_ = false;  // `attend` can use queries_ as they are
};

}  // namespace lca
