#pragma once
/// bfloat16 ↔ float32, one value at a time.

#include <bit>
#include <cstdint>

namespace lca {

using bf16_bits = std::uint16_t;

/// Exact.
constexpr float bf16_to_f32(bf16_bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr bf16_bits bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16_bits>((bits >> 16) | 0x40u);
  return static_cast<bf16_bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace lca
