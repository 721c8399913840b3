#include "models/cuda/cuda_memory.h"

#include <algorithm>
#include <vector>

#include "attention/cuda/calls.h"
#include "attention/settings_kind.h"
#include "models/cuda/cuda_limits.h"
#include "models/cuda/stage_spaces.h"
#include "models/cuda/step_table.h"
#include "models/weight_shapes.h"
#include "ops/cuda/product.h"

namespace lca {
namespace {

using namespace cuda;

/// What the driver was seen to hold beside our memory on an H200: context, kernels, cuBLASLt's.
constexpr std::size_t kDriverBytes = std::size_t{544} << 20;

/// Blocks that write partial results in a decode step, about: two for each multiprocessor.
constexpr std::int64_t kDecodeBlocks = 264;

/// A decode step's kernel space, about: its plan depends on the GPU.
DecodePlan step_plan(const AttentionShape& shape, int batch) {
  constexpr std::size_t kCounters = std::size_t{1} << 20;
  constexpr std::int64_t kCluster = 4, kRows = 16;
  DecodePlan plan;
  plan.batch = batch;
  const std::int64_t blocks = std::max<std::int64_t>(kDecodeBlocks, 2 * batch);
  const std::int64_t floats =
      blocks * std::min(shape.heads, kRows) * (shape.d_semantic() / kCluster + 2);
  plan.workspace_bytes = kCounters + static_cast<std::size_t>(floats) * sizeof(float);
  return plan;
}

/// Layers that differ.
std::vector<LayerSpec> layer_kinds(std::span<const LayerSpec> layers) {
  std::vector<LayerSpec> kinds;
  for (const LayerSpec& layer : layers) {
    if (std::ranges::find(kinds, layer) == kinds.end()) kinds.push_back(layer);
  }
  return kinds;
}

struct PromptBytes {
  std::size_t work = 0;  // of the layer that needs most
  std::size_t held = 0;  // until the end of the prompt
  std::size_t rows = 0;  // entries of a prompt whose groups wait
};

/// A prompt of `length` tokens in an empty session.
PromptBytes prompt_bytes(const ModelConfig& config, const StageWidths& widths,
                         std::span<const LayerSpec> kinds, std::int64_t length,
                         std::int64_t chunk) {
  chunk = std::min(chunk, length);
  const bool whole = std::ranges::any_of(
      kinds, [](const LayerSpec& layer) { return summary_waits(layer.settings); });
  const std::int64_t step = whole ? length : chunk;
  PromptBytes bytes;
  bytes.held = held_bytes(config, step) + StepArrays(DeviceCarver(), step, 0, 0).bytes;
  bytes.work = std::max(feed_forward_bytes(config, widths, chunk), head_bytes(config, 1));
  const ChunkRequest all{{}, {}, 0, length, 0};
  // The last whole chunk has most before it, or the last one.
  const std::int64_t last = (length - 1) / chunk * chunk;
  for (const std::int64_t first : {std::max<std::int64_t>(0, last - chunk), last}) {
    const std::int64_t count = std::min(chunk, length - first);
    const std::size_t projected = projected_bytes(config, widths, count);
    for (const LayerSpec& layer : kinds) {
      ChunkRows rows = chunk_rows(layer, first, first + count, first);
      if (summary_waits(layer.settings)) {
        const PromptPlan plan = prompt_plan(layer, all);
        rows = prompt_chunk_rows(layer, plan, first, count);
        bytes.rows = std::max(bytes.rows, prompt_rows_bytes(layer, plan));
      }
      bytes.work = std::max(bytes.work, projected + chunk_space_bytes(layer, rows));
    }
  }
  return bytes;
}

/// A step of one token of each session.
std::size_t decode_bytes(const ModelConfig& config, const StageWidths& widths,
                         std::span<const LayerSpec> layers, std::span<const LayerSpec> kinds,
                         std::int64_t sessions) {
  const int batch = batch_rows(static_cast<std::size_t>(sessions));
  const DecodePlan plan = step_plan(config.attention, batch);
  std::size_t work = std::max(feed_forward_bytes(config, widths, batch), head_bytes(config, batch));
  for (const LayerSpec& layer : kinds) {
    work = std::max(work,
                    projected_bytes(config, widths, batch) + step_space_bytes(layer, plan, false));
  }
  return work + plan.workspace_bytes + held_bytes(config, batch) +
         StepArrays(DeviceCarver(), batch, batch, 0).bytes +
         static_cast<std::size_t>(batch) * layers.size() * sizeof(SessionView);
}

}  // namespace

CudaPlan::CudaPlan(const ModelConfig& config, bool random) : config_(config) {
  weights_ = device_weight_bytes(config, weight_shapes(config));
  const AttentionShape& shape = config.attention;
  if (shape.form == Form::mla) {  // up-projections once more, as steps of few rows read them
    weights_ +=
        static_cast<std::size_t>(config.layers * shape.heads * shape.d_nope * shape.d_latent) *
        sizeof(bf16);
  }
  if (!random && config.experts.count > 0) loading_ = expert_staging_bytes(config);
}

CudaMemory CudaPlan::memory(const CudaSessions& sessions) const {
  const auto type = static_cast<GroupType>(sessions.groups);
  store_specs_check(sessions.layers, kStoreLimits);
  const StageWidths widths(config_);
  const std::vector<LayerSpec> kinds = layer_kinds(sessions.layers);
  const std::int64_t chunk = sessions.chunk > 0 ? sessions.chunk : kPromptChunk;
  const std::int64_t length = std::max<std::int64_t>(sessions.length, 1);
  CudaMemory memory;
  memory.weights = weights_;
  memory.loading = loading_;
  memory.products = Products::kScratchBytes;
  memory.driver = kDriverBytes;
  // A chunk leaves its window beside the one it found; the first finds an empty one.
  StoreUse use{.sequences = sessions.count, .length = length, .spare_windows = 1};
  use.spare_tokens = length > chunk ? length : 1;
  memory.caches = store_backed(sessions.layers, type, kStoreLimits, use).total() +
                  sessions.layers.size() * sizeof(LayerCache);
  const PromptBytes prompt = prompt_bytes(config_, widths, kinds, length, chunk);
  memory.prompt = prompt.work + prompt.held + prompt.rows;
  memory.kept = prompt.held + prompt.rows > kKeptBytes ? prompt.work : memory.prompt;
  memory.decode = decode_bytes(config_, widths, sessions.layers, kinds, sessions.count);
  return memory;
}

std::int64_t CudaPlan::longest() { return kStoreLimits.longest; }

std::size_t cuda_memory_free(int ordinal) {
  const Device& device = Device::at(ordinal);
  const DeviceScope scope(device);
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  return free;
}

}  // namespace lca
