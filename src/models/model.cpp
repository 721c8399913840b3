#include <lca/model.h>

#include <utility>

#include "core/cuda/device_name.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "formats/model_path.h"
#include "models/arrange.h"
#include "models/cpu/cpu_backend.h"
#include "models/cuda/cuda_backend.h"
#include "models/model_state.h"
#include "models/weight_packing.h"
#include "models/weight_shapes.h"
#include "ops/matmul.h"

namespace lca {
namespace {

ModelInfo model_info(const Model::State& state, WeightPacking packing) {
  const Checkpoint& checkpoint = state.checkpoint;
  const ModelConfig& config = state.config();
  ModelInfo info;
  info.path = checkpoint.path().native();
  info.format = checkpoint.kind() == Checkpoint::Kind::gguf          ? "gguf"
                : checkpoint.kind() == Checkpoint::Kind::huggingface ? "huggingface"
                                                                     : "random";
  info.architecture = architecture_name(config.architecture);
  info.layers = config.layers;
  info.hidden = config.hidden;
  info.vocabulary = config.vocabulary;
  info.context = config.context;
  info.parameters = state.weights.parameters;
  info.weight_bytes = weight_bytes(checkpoint, packing);
  info.weights = packing;
  info.attention = config.attention;
  info.softmax_scale = config.softmax_scale();
  info.precision = state.product == ProductType::bf16 ? Precision::bf16 : Precision::f32;
  info.end_tokens = checkpoint.end_tokens();
  return info;
}

constexpr int kCpu = -1;

/// The GPU that `text` names, or kCpu; throws Error if it does not exist or cannot run models of
/// this precision.
int device_resolve(const std::string& text, Precision precision) {
  if (text == "cpu") return kCpu;
  if (text == "auto") {
    const bool usable =
        precision != Precision::f32 && cuda::device_count() > 0 && cuda::device_missing(0).empty();
    return usable ? 0 : kCpu;
  }
  if (text == "cuda" || text.starts_with("cuda:")) {
    if (precision == Precision::f32) {
      fail_incompatible("device {}: the GPU computes in bf16; use the CPU for f32",
                        text_printable(text));
    }
    return cuda::device_parse(text);
  }
  fail_input("device must be cpu, cuda, cuda:N or auto, not \"{}\"", text_printable(text));
}

}  // namespace

std::shared_ptr<const Model> Model::load(const ModelOptions& options) {
  return guarded([&] { return load_unguarded(options); });
}

std::shared_ptr<const Model> Model::load_unguarded(const ModelOptions& options) {
  const int gpu = device_resolve(options.device, options.precision);
  const bool random = !options.random.empty();
  if (random && gpu == kCpu) {
    fail_incompatible("random weights are made on a GPU; the CPU runs models from files");
  }
  if (random && !(options.random_skew > 0 && options.random_skew < 1e6)) {
    fail_input("the skew of random experts must be above 0, not {}", options.random_skew);
  }
  if (options.groups != GroupStorage::bf16 && gpu == kCpu) {
    fail_incompatible("representatives of 8 bits are for a GPU; the CPU stores them as they are");
  }
  if (options.cache != CacheStorage::plain && gpu != kCpu) {
    fail_incompatible(
        "a cache of 8 bits is for the CPU; on a GPU use representatives of 8 bits (--groups int8)");
  }
  auto state = std::make_unique<State>(random ? Checkpoint::published(options.random)
                                              : Checkpoint::open(options.path, options.access));
  state->access = options.access;
  state->groups = options.groups;
  const std::int64_t layers = state->config().layers;
  if (!options.adapter.empty()) {
    state->adapter = Adapter::open(options.adapter, layers, options.access);
  }
  Context context(options.threads);

  const bool narrow = gpu != kCpu || options.precision != Precision::f32;
  state->product = narrow ? ProductType::bf16 : ProductType::f32;
  state->cache_dtype = narrow ? DType::bf16 : DType::f32;
  // Two passes over the weights where they are arranged for decoding or copied, else one.
  const auto part = [&](double from, double share) -> std::function<void(double)> {
    if (!options.progress) return {};
    return [&options, from, share](double done) { options.progress(from + share * done); };
  };
  const double share = narrow ? 0.5 : 1;
  std::size_t adapter_bytes = 0;
  mapped_read(
      [&] {
        state->weights = random
                             ? weight_shapes(state->config())
                             : decoder_weights(context, state->checkpoint,
                                               state->adapter ? &*state->adapter : nullptr,
                                               state->cache_dtype, options.weights, part(0, share));
        if (gpu != kCpu) {
          state->backend =
              cuda_backend(*state, gpu, context, options.random_skew, part(share, 1 - share));
        } else {
          adapter_bytes = adapter_arrange(context, state->weights, state->product);
          if (narrow) {
            weights_arrange(context, state->weights, state->checkpoint, part(share, 1 - share));
          }
        }
      },
      [&] { state->require_intact(); });
  bool trained = false;
  if (state->adapter && !state->adapter->settings().empty()) {
    state->settings = state->adapter->settings();
    trained = true;
  } else if (!state->config().lca.empty()) {
    state->settings = state->config().lca;
    trained = true;
  } else {
    state->settings.assign(static_cast<std::size_t>(layers),
                           settings_preset(random ? "training" : "training-free"));
  }
  state->info = model_info(*state, options.weights);
  state->info.device = gpu == kCpu ? "cpu" : fmt::format("cuda:{}", gpu);
  state->info.trained = trained;
  state->info.groups = options.groups;
  state->info.cache = options.cache;
  if (state->adapter) state->info.adapter = path_require(options.adapter).native();
  state->info.adapter_bytes = adapter_bytes;
  if (gpu == kCpu) state->backend = cpu_backend(*state);
  if (const std::size_t bytes = state->backend->weight_bytes(); bytes > 0) {
    state->info.weight_bytes = bytes;
  }
  return std::shared_ptr<const Model>(new Model(std::move(state)));
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

const ModelInfo& Model::info() const { return state_->info; }
const std::vector<Settings>& Model::settings() const { return state_->settings; }
DType Model::cache_dtype() const { return state_->cache_dtype; }

Memory Model::memory() const {
  Memory memory;
  memory.weights = state_->info.weight_bytes + state_->info.adapter_bytes;
  return memory;
}

}  // namespace lca
