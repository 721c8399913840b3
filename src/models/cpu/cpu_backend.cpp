#include "models/cpu/cpu_backend.h"

#include <algorithm>
#include <optional>

#include "core/context_state.h"
#include "models/cpu/cpu_stages.h"

namespace lca {
namespace {

/// What a context holds for models on the CPU.
struct CpuScratch final : ContextAttachment {
  Activations activations;
  std::optional<CpuStages> stages;

  std::size_t bytes() const override { return activations.bytes(); }
};

CpuScratch& scratch_of(Context& context) {
  std::unique_ptr<ContextAttachment>& held = context.state().attachment;
  auto* scratch = dynamic_cast<CpuScratch*>(held.get());
  if (scratch == nullptr) {
    held = std::make_unique<CpuScratch>();
    scratch = static_cast<CpuScratch*>(held.get());
  }
  return *scratch;
}

class CpuBackend final : public ModelBackend {
 public:
  explicit CpuBackend(const Model::State& model) : model_(model) {}

  std::unique_ptr<SequenceCaches> caches_open(std::span<const LayerSpec> layers) const override {
    return std::make_unique<HostCaches>(layers);
  }
  std::unique_ptr<SequenceCaches> caches_load(std::vector<Cache> caches) const override {
    return std::make_unique<HostCaches>(std::move(caches));
  }
  Stages& stages(Context& context) const override {
    CpuScratch& scratch = scratch_of(context);
    return scratch.stages.emplace(context, model_, scratch.activations);
  }
  void trim(Context& context) const override { scratch_of(context).activations = {}; }
  std::size_t activation_bytes(std::int64_t rows) const override;
  std::size_t cache_bytes(std::span<const LayerSpec> layers, std::int64_t length) const override {
    std::size_t total = 0;
    for (const LayerSpec& layer : layers) total += lca::cache_bytes(layer, length);
    return total;
  }
  std::size_t scratch_bytes(std::span<const LayerSpec> layers, std::int64_t length,
                            std::int64_t chunk, int threads) const override {
    std::size_t most = 0;
    for (const LayerSpec& layer : layers) {
      most = std::max(most, attention_workspace_bytes(layer, length, chunk, threads));
    }
    return most;
  }
  /// Long enough for products to run at full rate, short enough to stay in cache and to keep the
  /// feed-forward's activations small. An expert sees few of the rows and is unpacked for each
  /// chunk: there a longer one reads a prompt faster (DeepSeek-V2-Lite: 14 %).
  std::int64_t chunk_rows() const override {
    return model_.config().experts.count > 0 ? 2048 : 1024;
  }

 private:
  const Model::State& model_;
};

std::size_t CpuBackend::activation_bytes(std::int64_t rows) const {
  const ModelConfig& config = model_.config();
  const AttentionShape& shape = config.attention;
  const bool narrow = model_.cache_dtype == DType::bf16;
  const std::int64_t queries = shape.heads * shape.d_score();
  std::int64_t values = 3 * config.hidden + config.query_latent + config.rope.width;
  values +=
      queries + shape.entry_values() + (narrow ? (queries + shape.entry_values()) / 2 + 3 : 0);
  values += shape.heads * shape.d_value;
  std::int64_t inner = config.feed_forward;
  if (config.experts.count > 0) {
    inner = std::max(inner, config.experts.shared * config.experts.width);
    inner = std::max(inner, config.experts.width);
    values += config.experts.count + 2 * config.hidden;
  }
  values += 2 * inner;
  return static_cast<std::size_t>(values * rows) * sizeof(float);
}

}  // namespace

std::unique_ptr<ModelBackend> cpu_backend(const Model::State& model) {
  return std::make_unique<CpuBackend>(model);
}

std::size_t Activations::bytes() const {
  std::size_t total = 0;
  for (const FloatBuffer* buffer :
       {&hidden, &normed, &query_latent, &queries, &keys, &values, &rounded_queries, &rounded_keys,
        &rounded_values, &attended, &branch, &gate, &up, &router, &gathered, &expert, &cos, &sin,
        &logits}) {
    total += buffer->bytes();
  }
  return total;
}

}  // namespace lca
