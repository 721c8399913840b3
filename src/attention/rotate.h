#pragma once
/// Rotating rows on to other positions (mechanism §10): a row that RoPE rotated at one position is
/// rotated by the difference to another.

#include <lca/shape.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "attention/layout.h"

namespace lca {

/// What one position adds to an angle, as a fraction of a turn times 2⁶⁴. A product with a
/// difference of positions loses whole turns by overflow, so that differences of any size keep
/// their angle.
inline std::uint64_t rotation_step(double frequency) {
  const double turns = frequency / (2 * std::numbers::pi);
  const double part = turns - std::floor(turns);
  const double scaled = std::ldexp(part, 64);
  return scaled < 0x1p64 ? static_cast<std::uint64_t>(scaled) : 0;
}

/// The steps of all pairs.
inline std::vector<std::uint64_t> rotation_steps(const Rotation& rotation) {
  std::vector<std::uint64_t> steps;
  steps.reserve(rotation.frequencies.size());
  for (const double frequency : rotation.frequencies) steps.push_back(rotation_step(frequency));
  return steps;
}

/// The angle of a difference of positions, −π … π.
inline double rotation_angle(std::uint64_t step, std::int64_t difference) {
  const auto part = static_cast<std::int64_t>(step * static_cast<std::uint64_t>(difference));
  return static_cast<double>(part) * (2 * std::numbers::pi / 0x1p64);
}

/// Channels of pair `pair` out of `pairs`.
struct RotationPair {
  std::int64_t first, second;
};
LCA_HOST_DEVICE constexpr RotationPair rotation_pair(RopeLayout layout, std::int64_t pair,
                                                     std::int64_t pairs) {
  if (layout == RopeLayout::halves) return {pair, pair + pairs};
  return {2 * pair, 2 * pair + 1};
}

/// Rotates one row in double precision and in place by a difference of positions.
inline void rotate_row(const Rotation& rotation, std::int64_t difference, double* row) {
  const auto pairs = static_cast<std::int64_t>(rotation.frequencies.size());
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double angle =
        static_cast<double>(difference) * rotation.frequencies[static_cast<std::size_t>(i)];
    const auto [first, second] = rotation_pair(rotation.layout, i, pairs);
    const double x = row[first];
    const double y = row[second];
    row[first] = x * std::cos(angle) - y * std::sin(angle);
    row[second] = y * std::cos(angle) + x * std::sin(angle);
  }
}

/// The rotation of models without scaling: base^(−2i/width), for layers without a model.
inline Rotation rotation_plain(std::int64_t width, double base = 10000) {
  Rotation rotation;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    rotation.frequencies.push_back(
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width)));
  }
  return rotation;
}

}  // namespace lca
