#pragma once
/// A checkpoint on the CPU and on the GPU with the same weights, and the layer program run on both
/// at once: every stage starts from the CPU's residual stream.

#include <lca/session.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cuda/rounded_attention.h"
#include "cuda/rounded_model.h"
#include "cuda/support.h"
#include "engine/session_state.h"
#include "models/cpu/cpu_stages.h"
#include "models/cpu/experts.h"
#include "models/cuda/cuda_stages.h"
#include "support/golden_model.h"
#include "support/worst.h"

namespace lca::test {

/// `count` tokens of a model's vocabulary.
inline std::vector<std::int32_t> random_tokens(Random& random, const Model& model,
                                               std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.integer(0, model.info().vocabulary - 1)));
  }
  return tokens;
}

/// The stages of a model on the GPU.
inline cuda::CudaStages& cuda_stages(const Model& model, Context& context) {
  return static_cast<cuda::CudaStages&>(model.state().backend->stages(context));
}

/// max|Δ| / max(max|expected|, 1e-2) (mechanism §5).
inline double stage_error(const std::vector<float>& expected, const std::vector<float>& actual) {
  const double error = worst_difference(expected, actual) / std::max(largest(expected), 1e-2);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// The largest errors of each kind of stage, and how many rows chose other experts.
struct StageErrors {
  double embedding = 0, attention = 0, feed_forward = 0, logits = 0;
  /// Of attention: from the CPU in float32, where activations are not rounded, to the GPU, and to
  /// the CPU with activations in bf16.
  double attention_wide = 0, rounding = 0;
  std::int64_t rows_routed = 0;
  std::int64_t rows_elsewhere = 0;  ///< than float32
  std::int64_t rows_apart = 0;      ///< than float32 from normed rows in bf16, as the GPU has them
};

/// One model on both.
struct PairModels {
  explicit PairModels(const ModelPlace& place)
      : cpu(load_rounded(place)), gpu(load_on(place, "cuda")) {}

  std::shared_ptr<const Model> cpu, gpu;
};

class ModelPair {
 public:
  ModelPair(const PairModels& models, const Settings& settings) : models_(models) {
    settings_ = settings_per_layer(*models.cpu, {.settings = {settings}});
  }

  /// One run of tokens after those so far. With entry positions frequencies are those of
  /// `rope_length` in every step.
  void step(std::span<const std::int32_t> tokens, std::int64_t rope_length, StageErrors& errors) {
    if (host_ == nullptr) open(rope_length);
    for (const auto& caches : {host_.get(), device_.get()}) caches->step_begin(false);
    rounded_->begin();
    const std::int64_t first = host_->length();
    const SequenceRun cpu_run{host_.get(), tokens, first, rope_length};
    const SequenceRun gpu_run{device_.get(), tokens, first, rope_length};
    CpuStages cpu(context_, models_.cpu->state(), act_);
    cuda::CudaStages& gpu = cuda_stages(*models_.gpu, context_);
    gpu.set_graphs(false);
    const RowRange rows{0, std::ssize(tokens)};
    cpu.begin({&cpu_run, 1});
    gpu.begin({&gpu_run, 1});
    values_ = rows.count * models_.cpu->info().hidden;
    note(errors.embedding, residual(), residual(gpu));
    for (std::size_t layer = 0; layer < settings_.size(); ++layer) {
      std::vector<float> before = residual();
      send(before, gpu);
      for (Stages* stages : {static_cast<Stages*>(&cpu), static_cast<Stages*>(&gpu)}) {
        stages->entries(layer, rows);
        stages->attend(layer, rows);
      }
      const std::vector<float> rounded = rounded_->change(layer, cpu_run, before);
      const std::vector<float> wide = change(before, residual());
      const std::vector<float> got = change(before, residual(gpu));
      note(errors.attention, rounded, got);
      note(errors.attention_wide, wide, got);
      note(errors.rounding, wide, rounded);

      before = residual();
      send(before, gpu);
      cpu.feed_forward(layer, rows);
      if (!weights(layer).experts.empty()) force(gpu, layer, before, rows.count, errors);
      gpu.feed_forward(layer, rows);
      gpu.set_experts({});
      note(errors.feed_forward, change(before, residual()), change(before, residual(gpu)));
    }
    // A step of one token has its logits ready with the last layer.
    const std::int64_t width = models_.cpu->info().vocabulary;
    const float* const expected = cpu.logits({&rows, 1});
    if (rows.count > 1) send(residual(), gpu);
    const float* const got = gpu.logits({&rows, 1});
    note(errors.logits, {expected, expected + rows.count * width}, {got, got + rows.count * width});
    for (const auto& caches : {host_.get(), device_.get()}) caches->step_commit();
    rounded_->commit();
  }

 private:
  const DecoderLayer& weights(std::size_t layer) const {
    return models_.cpu->state().weights.layers[layer];
  }

  void open(std::int64_t rope_length) {
    const auto specs = [&](const Model& model) {
      std::vector<LayerSpec> made;
      for (const Settings& layer : settings_) {
        made.push_back(layer_spec(model, layer, rope_length));
      }
      return made;
    };
    host_ = models_.cpu->state().backend->caches_open(specs(*models_.cpu));
    rounded_ =
        std::make_unique<RoundedAttention>(context_, models_.cpu->state(), specs(*models_.cpu));
    device_ = models_.gpu->state().backend->caches_open(specs(*models_.gpu));
  }

  std::vector<float> residual() { return {act_.hidden.data(), act_.hidden.data() + values_}; }
  std::vector<float> residual(const cuda::CudaStages& gpu) const {
    std::vector<float> result(static_cast<std::size_t>(values_));
    cuda::check(cudaDeviceSynchronize(), "a stage");
    cuda::check(cudaMemcpy(result.data(), gpu.hidden(0), result.size() * sizeof(float),
                           cudaMemcpyDeviceToHost),
                "bringing the residual");
    return result;
  }
  static void send(const std::vector<float>& values, const cuda::CudaStages& gpu) {
    cuda::check(cudaDeviceSynchronize(), "a stage");
    cuda::check(cudaMemcpy(gpu.hidden(0), values.data(), values.size() * sizeof(float),
                           cudaMemcpyHostToDevice),
                "sending the residual");
    // The call may return before the copy has arrived, and the model's stream would not wait.
    cuda::check(cudaDeviceSynchronize(), "sending the residual");
  }
  static std::vector<float> change(const std::vector<float>& before, std::vector<float> after) {
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
  }
  static void note(double& worst, const std::vector<float>& expected,
                   const std::vector<float>& actual) {
    worst = std::max(worst, stage_error(expected, actual));
  }

  /// The CPU's experts for the GPU's rows; counts where the GPU would have chosen others.
  void force(cuda::CudaStages& gpu, std::size_t layer, const std::vector<float>& before,
             std::int64_t rows, StageErrors& errors) {
    const std::vector<int> choices = experts_of(act_.choices);
    const std::size_t each = choices.size() / static_cast<std::size_t>(rows);
    const DeviceArray<int> chosen(std::vector<int>(choices.size(), -1));
    // The free choice first; what it adds is overwritten.
    gpu.set_experts({nullptr, chosen.data()});
    gpu.feed_forward(layer, {0, rows});
    const std::vector<int> free = chosen.download();
    send(before, gpu);
    const std::vector<int> near = rounded_choices(layer, before, rows, each);
    const auto sorted = [&](const std::vector<int>& of, std::size_t row) {
      std::vector<int> some(of.begin() + static_cast<std::ptrdiff_t>(row * each),
                            of.begin() + static_cast<std::ptrdiff_t>((row + 1) * each));
      std::ranges::sort(some);
      return some;
    };
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      ++errors.rows_routed;
      errors.rows_elsewhere += sorted(free, row) != sorted(choices, row);
      errors.rows_apart += sorted(free, row) != sorted(near, row);
    }
    forced_ = DeviceArray<int>(choices);
    gpu.set_experts({forced_.data(), nullptr});
  }

  /// The experts of normed rows in bf16, chosen in float32.
  std::vector<int> rounded_choices(std::size_t layer, const std::vector<float>& before,
                                   std::int64_t rows, std::size_t each) {
    const ModelConfig& config = models_.cpu->state().config();
    std::vector<float> normed(before.size());
    rms_norm(context_, before.data(), config.hidden, rows, config.hidden,
             weights(layer).feed_forward_norm, config.norm_eps, normed.data(), config.hidden);
    normed = RoundedAttention::rounded(std::move(normed));
    std::vector<float> scores(static_cast<std::size_t>(rows * config.experts.count));
    linear(context_, weights(layer).router, ProductType::f32, normed.data(), rows, scores.data());
    std::vector<ExpertChoice> chosen(static_cast<std::size_t>(rows) * each);
    for (std::int64_t row = 0; row < rows; ++row) {
      experts_choose(config.experts, scores.data() + row * config.experts.count,
                     std::span(chosen).subspan(static_cast<std::size_t>(row) * each, each));
    }
    return experts_of(chosen);
  }
  static std::vector<int> experts_of(const std::vector<ExpertChoice>& choices) {
    std::vector<int> experts;
    for (const ExpertChoice& choice : choices) experts.push_back(static_cast<int>(choice.expert));
    return experts;
  }

  const PairModels& models_;
  std::vector<Settings> settings_;
  Context context_{2};
  Activations act_;
  std::unique_ptr<SequenceCaches> host_, device_;
  std::unique_ptr<RoundedAttention> rounded_;
  std::int64_t values_ = 0;  // of the residual stream of the step
  DeviceArray<int> forced_;
};

}  // namespace lca::test
