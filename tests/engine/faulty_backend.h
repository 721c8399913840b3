#pragma once
/// A device that fails on demand: steps are checked by the test before they run.

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "models/model_state.h"

namespace lca::test {

/// Called with the runs of every step; what it throws, the step throws.
using StepCheck = std::function<void(std::span<const SequenceRun>)>;

class FaultyStages final : public Stages {
 public:
  FaultyStages(Stages& inner, const StepCheck& check) : inner_(inner), check_(check) {}
  void begin(std::span<const SequenceRun> runs) override {
    if (check_) check_(runs);
    inner_.begin(runs);
  }
  void entries(std::size_t layer, RowRange rows) override { inner_.entries(layer, rows); }
  void attend(std::size_t layer, RowRange rows) override { inner_.attend(layer, rows); }
  void feed_forward(std::size_t layer, RowRange rows) override { inner_.feed_forward(layer, rows); }
  const float* logits(std::span<const RowRange> ranges) override { return inner_.logits(ranges); }
  std::int64_t vocabulary() const override { return inner_.vocabulary(); }

 private:
  Stages& inner_;
  const StepCheck& check_;
};

class FaultyBackend final : public ModelBackend {
 public:
  explicit FaultyBackend(std::unique_ptr<ModelBackend> inner) : inner_(std::move(inner)) {}

  /// Puts one into a model that nobody else uses.
  static FaultyBackend& install(const Model& model) {
    auto& held = const_cast<Model::State&>(model.state()).backend;
    auto faulty = std::make_unique<FaultyBackend>(std::move(held));
    FaultyBackend& made = *faulty;
    held = std::move(faulty);
    return made;
  }

  StepCheck check;

  std::unique_ptr<SequenceCaches> caches_open(std::span<const LayerSpec> layers) const override {
    return inner_->caches_open(layers);
  }
  std::unique_ptr<SequenceCaches> caches_load(std::vector<Cache> caches) const override {
    return inner_->caches_load(std::move(caches));
  }
  Stages& stages(Context& context) const override {
    stages_ = std::make_unique<FaultyStages>(inner_->stages(context), check);
    return *stages_;
  }
  void trim(Context& context) const override { inner_->trim(context); }
  std::size_t activation_bytes(std::int64_t rows) const override {
    return inner_->activation_bytes(rows);
  }
  std::size_t cache_bytes(std::span<const LayerSpec> layers, std::int64_t length) const override {
    return inner_->cache_bytes(layers, length);
  }
  std::size_t scratch_bytes(std::span<const LayerSpec> layers, std::int64_t length,
                            std::int64_t chunk, int threads) const override {
    return inner_->scratch_bytes(layers, length, chunk, threads);
  }
  std::int64_t chunk_rows() const override { return inner_->chunk_rows(); }

 private:
  std::unique_ptr<ModelBackend> inner_;
  mutable std::unique_ptr<FaultyStages> stages_;
};

}  // namespace lca::test
