#include "attention/reference/int8.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lca::reference {
namespace {

/// Values that share a scale. In float32 like every implementation, so that all round alike.
void round_block(double* values, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<float>(std::abs(values[i])));
  }
  if (largest < 1e-30F) {
    std::fill_n(values, count, 0.0);
    return;
  }
  // 17 significant bits: 7 less than a float32 has.
  const auto bits = std::bit_cast<std::uint32_t>(largest / 127.0F);
  const auto scale = std::bit_cast<float>((bits + 64U) / 128U * 128U);
  for (std::int64_t i = 0; i < count; ++i) {
    const float q = std::nearbyint(static_cast<float>(values[i]) * (1.0F / scale));
    values[i] = static_cast<double>(scale) * static_cast<double>(q);
  }
}

void round_rows(std::int64_t first, std::int64_t block, Array& rows) {
  for (std::int64_t i = first; i < rows.rows; ++i) {
    for (std::int64_t kv = 0; kv < rows.columns; ++kv) {
      for (std::int64_t at = 0; at < rows.width; at += block) {
        round_block(rows.at(i, kv) + at, std::min(block, rows.width - at));
      }
    }
  }
}

}  // namespace

void round_int8(const AttentionShape& shape, std::int64_t first, Array& semantic,
                Array& positional) {
  constexpr std::int64_t kLatentBlock = 128;
  const bool mla = shape.form == Form::mla;
  round_rows(first, mla ? kLatentBlock : semantic.width, semantic);
  if (!mla) round_rows(first, positional.width, positional);
}

}  // namespace lca::reference
