#pragma once
/// How many rows and bytes a sequence's cache takes on the GPU.

#include <algorithm>
#include <cstdint>

#include "attention/cuda/views.h"
#include "core/cuda/memory.h"

namespace lca::cuda {

inline bool layer_condenses(const LayerSpec& spec) {
  return spec.settings.method == MethodKind::lca;
}

/// Rows after the sink: all that a method may hold when the next token arrives, and no more than a
/// sequence of `longest` tokens fills.
inline std::int64_t ring_rows(const Settings& settings, std::int64_t longest) {
  constexpr std::int64_t kUnit = 16;
  const auto rounded = [](std::int64_t rows) { return (rows + kUnit - 1) / kUnit * kUnit; };
  const std::int64_t held = settings.method == MethodKind::lca ? settings.window + settings.group
                            : settings.method == MethodKind::window ? settings.window + 1
                                                                    : longest;
  return std::min(rounded(held), rounded(longest));
}

/// Sink and ring.
inline std::int64_t exact_rows(const Settings& settings, std::int64_t longest) {
  return std::min(settings.sink, longest) + ring_rows(settings, longest);
}

/// Pages for all representatives of a sequence of `longest` tokens and one more.
inline std::int64_t pages_needed(const Settings& settings, std::int64_t longest) {
  return (Layout(settings).groups(longest) + 1 + kPageRows - 1) / kPageRows;
}

/// Bytes of one value of a page, and of one representative with its scales and bias.
inline std::int64_t value_bytes(GroupType type) { return type == GroupType::bf16 ? 2 : 1; }
inline std::int64_t group_bytes(const AttentionShape& shape, GroupType type, Mass mass) {
  const std::int64_t kv = shape.kv_heads;
  const std::int64_t bias = mass == Mass::score ? 4 * kv : 0;
  if (type == GroupType::bf16) return 2 * shape.entry_values() + bias;
  if (shape.form == Form::gqa) return shape.entry_values() + 8 * kv + bias;
  const std::int64_t blocks = (shape.d_latent + kScaleBlock - 1) / kScaleBlock;
  return shape.d_latent + 4 * blocks + 2 * shape.d_rope + bias;
}

/// A pool of `rows` rows.
inline GroupPool pool_carve(DeviceCarver& carver, const AttentionShape& shape, GroupType type,
                            Mass mass, std::int64_t rows) {
  const std::int64_t kv = shape.kv_heads;
  const bool mla = shape.form == Form::mla;
  const std::int64_t wide = value_bytes(type);
  GroupPool pool;
  pool.type = type;
  pool.semantic = carver.take<char>(rows * kv * shape.d_semantic() * wide);
  pool.positional = carver.take<char>(rows * kv * shape.d_positional() * (mla ? 2 : wide));
  if (type != GroupType::bf16) {
    const std::int64_t scales = mla ? (shape.d_latent + kScaleBlock - 1) / kScaleBlock : kv;
    pool.semantic_scale = carver.take<float>(rows * scales);
    if (!mla) pool.positional_scale = carver.take<float>(rows * kv);
  }
  if (mass == Mass::score) pool.bias = carver.take<float>(rows * kv);
  return pool;
}

}  // namespace lca::cuda
