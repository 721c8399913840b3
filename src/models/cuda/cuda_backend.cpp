#include "models/cuda/cuda_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/rotate.h"
#include "core/context_state.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "models/cuda/cuda_limits.h"
#include "models/cuda/cuda_stages.h"
#include "models/cuda/random_weights.h"

namespace lca {
namespace {

using namespace cuda;

/// What a context has of a model on the GPU: a word on the memory that it holds there, and the
/// logits of its last step, which other contexts must not overwrite.
struct CudaHeld final : ContextAttachment {
  std::shared_ptr<const std::atomic<std::size_t>> held;
  PinnedMemory results;
  std::size_t bytes() const override { return *held; }
};

constexpr std::uint32_t kRandomSeed = 1;

class CudaBackend final : public ModelBackend {
 public:
  CudaBackend(const Model::State& state, const Device& device, Context& context, double skew,
              const std::function<void(double)>& progress)
      : model_(device, state.config(), state.rope,
               kernels_are_portable() ? Kernels::portable : Kernels::fast) {
    const ModelConfig& config = state.config();
    if (!state.weights.layers.back().experts.empty() && config.residual_scale != 1) {
      fail_incompatible("experts with a scaled residual do not run on the GPU; use the CPU");
    }
    const Queue queue = model_.stream.queue();
    model_.weights = state.checkpoint.kind() == Checkpoint::Kind::published
                         ? device_weights_random(config, kRandomSeed, skew, queue)
                         : device_weights(context, config, state.weights, queue, progress);
    groups_ = static_cast<GroupType>(state.groups);
    if (!state.rope.depends_on_length()) {
      const std::vector<std::uint64_t> steps =
          rotation_steps({config.rope.layout, state.rope.frequencies(1)});
      model_.rope_steps = Buffer(steps.size() * sizeof(std::uint64_t));
      Transfer(model_.stream)
          .upload(std::span<const std::uint64_t>(steps), model_.rope_steps.as<std::uint64_t>());
    }
    std::vector<DeviceStores::Weights> up;
    for (const DeviceLayer& layer : model_.weights.layers) up.push_back({layer.w_uk, layer.w_uv});
    model_.stores =
        std::make_unique<DeviceStores>(model_.stream.queue(), std::move(up), groups_, kStoreLimits,
                                       model_.product_space(), model_.kernels);
    stages_ = std::make_unique<CudaStages>(model_);
    model_.stream.wait();
  }

  std::unique_ptr<SequenceCaches> caches_open(std::span<const LayerSpec> layers) const override {
    return std::make_unique<DeviceCaches>(*model_.stores, layers);
  }
  std::unique_ptr<SequenceCaches> caches_load(std::vector<Cache> caches) const override {
    return std::make_unique<DeviceCaches>(*model_.stores, caches);
  }
  /// All contexts share one: steps take turns.
  Stages& stages(Context& context) const override {
    std::unique_ptr<ContextAttachment>& attachment = context.state().attachment;
    auto* told = dynamic_cast<CudaHeld*>(attachment.get());
    if (told == nullptr || told->held != stages_->bytes()) {
      auto made = std::make_unique<CudaHeld>();
      made->held = stages_->bytes();
      told = made.get();
      attachment = std::move(made);
    }
    stages_->set_results(told->results);
    return *stages_;
  }
  void trim(Context&) const override {
    const std::lock_guard turn(model_.stores->turn());
    stages_->trim();
  }
  std::size_t activation_bytes(std::int64_t rows) const override {
    return CudaStages::activation_bytes(model_, rows);
  }
  /// What is free, and what activations hold already.
  std::size_t memory_free() const override {
    const DeviceScope scope(model_.device);
    std::size_t free = 0, all = 0;
    check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
    return free + *stages_->bytes();
  }
  std::size_t cache_bytes(std::span<const LayerSpec> layers, std::int64_t length) const override {
    return CacheStore::sequence_bytes(layers, groups_, length).total();
  }
  std::size_t scratch_bytes(std::span<const LayerSpec> layers, std::int64_t length,
                            std::int64_t chunk, int) const override {
    std::size_t most = 0;
    for (const LayerSpec& layer : layers) {
      most =
          std::max(most, chunk_space_bytes(layer, cuda::chunk_rows_most(layer, length, chunk, 1)));
    }
    // The window that a chunk leaves lies beside the one it found.
    const std::size_t spare = CacheStore::sequence_bytes(layers, groups_, 1).total();
    return most + spare + Products::kScratchBytes;
  }
  std::int64_t chunk_rows() const override { return kPromptChunk; }
  void profile(bool on) const override {
    const std::lock_guard turn(model_.stores->turn());
    stages_->profile(on);
  }
  StepProfile profile_take() const override {
    const std::lock_guard turn(model_.stores->turn());
    return stages_->profile_take();
  }
  std::size_t weight_bytes() const override { return model_.weights.memory.bytes(); }

 private:
  CudaModel model_;
  GroupType groups_ = GroupType::bf16;
  std::unique_ptr<CudaStages> stages_;
};

}  // namespace

std::unique_ptr<ModelBackend> cuda_backend(const Model::State& model, int ordinal, Context& context,
                                           double skew,
                                           const std::function<void(double)>& progress) {
  const Device& device = Device::at(ordinal);
  const DeviceScope scope(device);
  return std::make_unique<CudaBackend>(model, device, context, skew, progress);
}

}  // namespace lca
