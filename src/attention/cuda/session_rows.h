#pragma once
/// How much room a session needs on the GPU.

#include <algorithm>
#include <cstdint>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Rows after the sink: all that a method may hold when the next token arrives, and no more than a
/// session of `longest` tokens fills.
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

/// Pages for all representatives of a session of `longest` tokens and one more.
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

/// The memory behind a pool of `rows` rows.
struct PoolMemory {
  Buffer semantic, positional, semantic_scale, positional_scale, bias;

  /// `room(buffer, bytes)` makes a buffer that large and returns its memory.
  template <typename Room>
  GroupPool make(const AttentionShape& shape, GroupType type, Mass mass, std::int64_t rows,
                 const Room& room) {
    const std::int64_t kv = shape.kv_heads;
    const bool mla = shape.form == Form::mla;
    const std::int64_t wide = value_bytes(type);
    GroupPool pool;
    pool.type = type;
    pool.semantic = room(semantic, rows * kv * shape.d_semantic() * wide);
    pool.positional = room(positional, rows * kv * shape.d_positional() * (mla ? 2 : wide));
    if (type != GroupType::bf16) {
      const std::int64_t scales = mla ? (shape.d_latent + kScaleBlock - 1) / kScaleBlock : kv;
      pool.semantic_scale = static_cast<float*>(room(semantic_scale, rows * scales * 4));
      if (!mla) pool.positional_scale = static_cast<float*>(room(positional_scale, rows * kv * 4));
    }
    if (mass == Mass::score) pool.bias = static_cast<float*>(room(bias, rows * kv * 4));
    return pool;
  }
};

}  // namespace lca::cuda
