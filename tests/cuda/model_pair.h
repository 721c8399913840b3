#pragma once
/// A checkpoint on the CPU, in float32 and in bf16, and on the GPU, and the layer program run on
/// all at once: every stage starts from the residual stream of float32.

#include <lca/session.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cuda/support.h"
#include "engine/session_state.h"
#include "models/cpu/cpu_stages.h"
#include "models/cuda/cuda_stages.h"
#include "models/model_state.h"
#include "support/golden_model.h"
#include "support/worst.h"

namespace lca::test {

inline std::shared_ptr<const Model> load_on(const GoldenModel& golden, const std::string& device,
                                            Precision precision = Precision::bf16) {
  ModelOptions options;
  options.path = golden.path();
  options.adapter = golden.adapter();
  options.precision = precision;
  options.device = device;
  return Model::load(options);
}

/// max|Δ| / max(max|expected|, 1e-2) (mechanism §5).
inline double stage_error(const std::vector<float>& expected, const std::vector<float>& actual) {
  const double error = worst_difference(expected, actual) / std::max(largest(expected), 1e-2);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// The largest errors of one kind of stage against float32: the GPU's, and what rounding to bf16
/// costs on the CPU.
struct StageError {
  double gpu = 0, rounding = 0;
};

/// All kinds of stages, and how many rows would have chosen other experts on the GPU.
struct StageErrors {
  StageError embedding, attention, feed_forward, logits;
  std::int64_t rows_routed = 0, rows_elsewhere = 0;
};

class ModelPair {
 public:
  ModelPair(const GoldenModel& golden, const Settings& settings)
      : cpu_(load_on(golden, "cpu", Precision::f32)),
        rounded_(load_on(golden, "cpu")),
        gpu_(load_on(golden, "cuda")) {
    const SessionOptions options{.settings = {settings}};
    settings_ = settings_per_layer(*cpu_, options);
  }

  const Model& cpu() const { return *cpu_; }

  /// One run of tokens after those so far. With entry positions frequencies are those of
  /// `rope_length` in every step.
  void step(std::span<const std::int32_t> tokens, std::int64_t rope_length, StageErrors& errors) {
    if (host_ == nullptr) open(rope_length);
    for (const auto& caches : {host_.get(), rounded_host_.get(), device_.get()}) {
      caches->step_begin(false);
    }
    const auto first = host_->length();
    const SequenceRun cpu_run{host_.get(), tokens, first, rope_length};
    const SequenceRun rounded_run{rounded_host_.get(), tokens, first, rope_length};
    const SequenceRun gpu_run{device_.get(), tokens, first, rope_length};
    CpuStages cpu(context_, cpu_->state(), act_);
    CpuStages rounded(context_, rounded_->state(), rounded_act_);
    auto& gpu = static_cast<cuda::CudaStages&>(gpu_->state().backend->stages(context_));
    gpu.set_graphs(false);
    const RowRange rows{0, static_cast<std::int64_t>(tokens.size())};
    cpu.begin({&cpu_run, 1});
    rounded.begin({&rounded_run, 1});
    gpu.begin({&gpu_run, 1});
    const std::int64_t values = rows.count * cpu_->info().hidden;
    note(errors.embedding, residual(act_, values), residual(rounded_act_, values),
         residual(gpu, values));
    for (std::size_t layer = 0; layer < settings_.size(); ++layer) {
      const auto all = [&](StageError& error, const auto& stage) {
        const std::vector<float> before = residual(act_, values);
        std::ranges::copy(before, rounded_act_.hidden.data());
        send(before, gpu);
        stage();
        note(error, change(before, residual(act_, values)),
             change(before, residual(rounded_act_, values)), change(before, residual(gpu, values)));
      };
      all(errors.attention, [&] {
        for (Stages* stages : {static_cast<Stages*>(&cpu), static_cast<Stages*>(&rounded),
                               static_cast<Stages*>(&gpu)}) {
          stages->entries(layer, rows);
          stages->attend(layer, rows);
        }
      });
      all(errors.feed_forward, [&] {
        rounded.feed_forward(layer, rows);
        cpu.feed_forward(layer, rows);
        if (!cpu_->state().weights.layers[layer].experts.empty())
          force(gpu, layer, rows.count, errors);
        gpu.feed_forward(layer, rows);
        gpu.set_experts({});
      });
    }
    // A step of one token has its logits ready with the last layer.
    const std::int64_t width = cpu_->info().vocabulary;
    const float* const expected = cpu.logits({&rows, 1});
    std::vector<float> wanted(expected, expected + rows.count * width);
    std::ranges::copy(residual(act_, values), rounded_act_.hidden.data());
    if (rows.count > 1) send(residual(act_, values), gpu);
    const float* const near = rounded.logits({&rows, 1});
    const float* const got = gpu.logits({&rows, 1});
    note(errors.logits, wanted, std::vector<float>(near, near + rows.count * width),
         std::vector<float>(got, got + rows.count * width));
    for (const auto& caches : {host_.get(), rounded_host_.get(), device_.get()}) {
      caches->step_commit();
    }
  }

 private:
  void open(std::int64_t rope_length) {
    const auto caches = [&](const Model& model) {
      std::vector<LayerSpec> specs;
      for (const Settings& layer : settings_) {
        specs.push_back(layer_spec(model, layer, rope_length));
      }
      return model.state().backend->caches_open(specs);
    };
    host_ = caches(*cpu_);
    rounded_host_ = caches(*rounded_);
    device_ = caches(*gpu_);
  }

  static std::vector<float> residual(Activations& act, std::int64_t values) {
    return {act.hidden.data(), act.hidden.data() + values};
  }
  static std::vector<float> residual(const cuda::CudaStages& gpu, std::int64_t values) {
    std::vector<float> result(static_cast<std::size_t>(values));
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
  }
  static std::vector<float> change(const std::vector<float>& before, std::vector<float> after) {
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
  }
  static void note(StageError& error, const std::vector<float>& expected,
                   const std::vector<float>& rounded, const std::vector<float>& gpu) {
    error.rounding = std::max(error.rounding, stage_error(expected, rounded));
    error.gpu = std::max(error.gpu, stage_error(expected, gpu));
  }

  /// The CPU's experts for the GPU's rows; counts where the GPU would have chosen others.
  void force(cuda::CudaStages& gpu, std::size_t layer, std::int64_t rows, StageErrors& errors) {
    std::vector<int> choices;
    for (const ExpertChoice& choice : act_.choices) {
      choices.push_back(static_cast<int>(choice.expert));
    }
    const std::size_t each = choices.size() / static_cast<std::size_t>(rows);
    forced_ = DeviceArray<int>(choices);
    const DeviceArray<int> chosen(std::vector<int>(choices.size(), -1));
    // The free choice first; what it adds is overwritten.
    const std::int64_t values = rows * cpu_->info().hidden;
    const std::vector<float> before = residual(gpu, values);
    gpu.set_experts({nullptr, chosen.data()});
    gpu.feed_forward(layer, {0, rows});
    const std::vector<int> free = chosen.download();
    send(before, gpu);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      const auto sorted = [&](const std::vector<int>& of) {
        std::vector<int> some(of.begin() + static_cast<std::ptrdiff_t>(row * each),
                              of.begin() + static_cast<std::ptrdiff_t>((row + 1) * each));
        std::ranges::sort(some);
        return some;
      };
      ++errors.rows_routed;
      errors.rows_elsewhere += sorted(free) != sorted(choices);
    }
    gpu.set_experts({forced_.data(), nullptr});
  }

  std::shared_ptr<const Model> cpu_, rounded_, gpu_;
  std::vector<Settings> settings_;
  Context context_{2};
  Activations act_, rounded_act_;
  std::unique_ptr<SequenceCaches> host_, rounded_host_, device_;
  DeviceArray<int> forced_;
};

}  // namespace lca::test
