#pragma once
/// Memory that the stages of a step need, laid out from a model's sizes alone: the same code plans,
/// counts and hands out pieces.

#include <cstddef>
#include <cstdint>

#include "core/cuda/memory.h"
#include "formats/model_config.h"
#include "models/cuda/device_weights.h"
#include "ops/cuda/rows.h"

namespace lca::cuda {

/// Memory of long prompts that is kept for the next one.
inline constexpr std::size_t kKeptBytes = std::size_t{512} << 20;

/// Steps of single tokens are captured for so many rows; those beyond the batch are padding.
inline int batch_rows(std::size_t count) {
  const auto batch = static_cast<int>(count);
  const int unit = batch <= 4 ? 1 : batch <= 32 ? 4 : batch <= 64 ? 8 : batch <= 256 ? 16 : 32;
  return (batch + unit - 1) / unit * unit;
}

/// How wide the rows are that stages write.
struct StageWidths {
  explicit StageWidths(const ModelConfig& config)
      : has_experts(config.experts.count > 0), experts(experts_shape(config)) {
    const AttentionShape& shape = config.attention;
    const std::int64_t queries = shape.heads * shape.d_score();
    first = shape.form == Form::gqa ? queries + shape.kv_heads * (shape.d_rope + shape.d_value)
                                    : (config.query_latent > 0 ? config.query_latent : queries) +
                                          shape.d_latent + shape.d_rope;
    if (!has_experts || config.experts.dense_layers > 0) feed_forward = config.feed_forward;
    if (has_experts && experts.shared == 0) {
      feed_forward = std::max(feed_forward, config.experts.shared * config.experts.width);
    }
  }

  std::int64_t first = 0;         ///< outputs of a layer's first product
  std::int64_t feed_forward = 0;  ///< of layers without experts, or of shared ones that run alone
  bool has_experts = false;
  ExpertsShape experts;
};

/// What stays for the whole step.
struct HeldSpace {
  float* hidden = nullptr;
  RopeTurn* turns = nullptr;

  HeldSpace(const ModelConfig& config, std::int64_t rows, DeviceCarver& carver) {
    hidden = carver.take<float>(rows * config.hidden);
    turns = carver.take<RopeTurn>(rows * (config.rope.width / 2));
  }
};

/// What projecting `rows` rows needs.
struct ProjectionSpace {
  bf16* normed = nullptr;
  float* first = nullptr;
  bf16* query_latent = nullptr;
  float* queries = nullptr;
  bf16* attended = nullptr;

  ProjectionSpace(const ModelConfig& config, const StageWidths& widths, std::int64_t rows,
                  DeviceCarver& carver) {
    const AttentionShape& shape = config.attention;
    normed = carver.take<bf16>(rows * config.hidden);
    first = carver.take<float>(rows * widths.first);
    query_latent = carver.take<bf16>(rows * config.query_latent);
    queries =
        carver.take<float>(config.query_latent > 0 ? rows * shape.heads * shape.d_score() : 0);
    attended = carver.take<bf16>(rows * shape.heads * shape.d_value);
  }
};

struct FeedForwardSpace {
  bf16* normed = nullptr;
  float* gate_up = nullptr;  ///< rounded once, after SwiGLU
  bf16* inner = nullptr;
  void* experts = nullptr;

  FeedForwardSpace(const ModelConfig& config, const StageWidths& widths, std::int64_t rows,
                   DeviceCarver& carver) {
    normed = carver.take<bf16>(rows * config.hidden);
    gate_up = carver.take<float>(rows * 2 * widths.feed_forward);
    inner = carver.take<bf16>(rows * widths.feed_forward);
    if (!widths.has_experts) return;
    experts = carver.take<char>(static_cast<std::int64_t>(experts_workspace(widths.experts, rows)));
  }
};

struct HeadSpace {
  std::int32_t* from = nullptr;
  bf16* normed = nullptr;
  float* logits = nullptr;
  std::uint64_t* parts = nullptr;
  std::int32_t* picks = nullptr;

  HeadSpace(const ModelConfig& config, std::int64_t rows, DeviceCarver& carver) {
    from = carver.take<std::int32_t>(rows);
    normed = carver.take<bf16>(rows * config.hidden);
    logits = carver.take<float>(rows * config.vocabulary);
    parts = carver.take<std::uint64_t>(rows * kArgmaxParts);
    picks = carver.take<std::int32_t>(rows);
  }
};

/// Bytes of each of them.
inline std::size_t held_bytes(const ModelConfig& config, std::int64_t rows) {
  return carved_bytes([&](DeviceCarver& carver) { HeldSpace(config, rows, carver); });
}
inline std::size_t projected_bytes(const ModelConfig& config, const StageWidths& widths,
                                   std::int64_t rows) {
  return carved_bytes([&](DeviceCarver& carver) { ProjectionSpace(config, widths, rows, carver); });
}
inline std::size_t feed_forward_bytes(const ModelConfig& config, const StageWidths& widths,
                                      std::int64_t rows) {
  return carved_bytes(
      [&](DeviceCarver& carver) { FeedForwardSpace(config, widths, rows, carver); });
}
inline std::size_t head_bytes(const ModelConfig& config, std::int64_t rows) {
  return carved_bytes([&](DeviceCarver& carver) { HeadSpace(config, rows, carver); });
}

}  // namespace lca::cuda
