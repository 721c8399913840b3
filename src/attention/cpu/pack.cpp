// Lays keys and values out as the tile kernel reads them. The loops are plain: compiled once per
// instruction set, the compiler vectorises them, and together they are a few percent of a prefill.

#include "attention/cpu/tile.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/pack.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

inline std::uint32_t Bits(float value) { return std::bit_cast<std::uint32_t>(value); }
inline std::uint32_t Bits(std::uint16_t value) { return std::uint32_t{value} << 16; }
inline std::uint32_t Rounded(float value) { return bf16_from_f32(value); }
inline std::uint32_t Rounded(std::uint16_t value) { return value; }

/// A full panel of float32 keys, transposed four by four; `depth` is a multiple of 4.
HWY_INLINE void TransposePanel(const float* HWY_RESTRICT source, std::int64_t stride,
                               std::int64_t depth, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kPanel; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) to[k * kPanel + i] = source[i * stride + k];
  }
#else
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::FixedTag<float, 4> d;
  for (std::int64_t i = 0; i < kPanel; i += 4) {
    for (std::int64_t k = 0; k < depth; k += 4) {
      const float* row = source + i * stride + k;
      const auto r0 = hn::LoadU(d, row);
      const auto r1 = hn::LoadU(d, row + stride);
      const auto r2 = hn::LoadU(d, row + 2 * stride);
      const auto r3 = hn::LoadU(d, row + 3 * stride);
      const auto low02 = hn::InterleaveLower(d, r0, r2);
      const auto low13 = hn::InterleaveLower(d, r1, r3);
      const auto high02 = hn::InterleaveUpper(d, r0, r2);
      const auto high13 = hn::InterleaveUpper(d, r1, r3);
      float* out = to + k * kPanel + i;
      hn::StoreU(hn::InterleaveLower(d, low02, low13), d, out);
      hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, out + kPanel);
      hn::StoreU(hn::InterleaveLower(d, high02, high13), d, out + 2 * kPanel);
      hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, out + 3 * kPanel);
    }
  }
#endif
}

template <typename T>
void PackKeysOf(const T* source, std::int64_t stride, std::int64_t count, std::int64_t depth,
                bool bf16, std::uint32_t* to) {
  const std::int64_t words = bf16 ? ceil_div(depth, 2) : depth;
  for (std::int64_t panel = 0; panel < count; panel += kPanel) {
    const std::int64_t keys = std::min(kPanel, count - panel);
    if constexpr (std::is_same_v<T, float>) {
      if (!bf16 && keys == kPanel && depth % 4 == 0) {
        TransposePanel(source + panel * stride, stride, depth, reinterpret_cast<float*>(to));
        to += words * kPanel;
        continue;
      }
    }
    if (keys < kPanel) std::fill_n(to, words * kPanel, 0U);
    for (std::int64_t i = 0; i < keys; ++i) {
      const T* row = source + (panel + i) * stride;
      if (!bf16) {
        for (std::int64_t k = 0; k < depth; ++k) to[k * kPanel + i] = Bits(row[k]);
      } else {
        for (std::int64_t k = 0; k < depth / 2; ++k) {
          to[k * kPanel + i] = Rounded(row[2 * k]) | Rounded(row[2 * k + 1]) << 16;
        }
        if (depth % 2 != 0) to[(words - 1) * kPanel + i] = Rounded(row[depth - 1]);
      }
    }
    to += words * kPanel;
  }
}

void PackKeys(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
              std::int64_t depth, bool bf16, std::uint32_t* to) {
  if (dtype == DType::f32) {
    PackKeysOf(static_cast<const float*>(source), stride, count, depth, bf16, to);
  } else {
    PackKeysOf(static_cast<const std::uint16_t*>(source), stride, count, depth, bf16, to);
  }
}

template <typename T>
void PackValuesOf(const T* source, std::int64_t stride, std::int64_t count, std::int64_t columns,
                  bool bf16, std::int64_t first, std::int64_t capacity, std::uint32_t* to) {
  const std::int64_t end = round_up(first + count, kPanel);
  for (std::int64_t column = 0; column < columns; column += kPanel) {
    const std::int64_t width = std::min(kPanel, columns - column);
    if (!bf16) {
      for (std::int64_t key = first; key < end; ++key) {
        std::uint32_t* HWY_RESTRICT out = to + column * capacity + key * kPanel;
        if (key < first + count) {
          const T* HWY_RESTRICT row = source + (key - first) * stride + column;
          for (std::int64_t i = 0; i < width; ++i) out[i] = Bits(row[i]);
          std::fill(out + width, out + kPanel, 0U);
        } else {
          std::fill_n(out, kPanel, 0U);
        }
      }
      continue;
    }
    for (std::int64_t key = first; key < end; key += 2) {  // two keys share a word
      std::uint32_t* HWY_RESTRICT out = to + (column * capacity + key * kPanel) / 2;
      const T* HWY_RESTRICT row = source + (key - first) * stride + column;
      if (key + 1 < first + count) {
        const T* HWY_RESTRICT next = row + stride;
        for (std::int64_t i = 0; i < width; ++i) out[i] = Rounded(row[i]) | Rounded(next[i]) << 16;
      } else if (key < first + count) {
        for (std::int64_t i = 0; i < width; ++i) out[i] = Rounded(row[i]);
      } else {
        std::fill_n(out, width, 0U);
      }
      std::fill(out + width, out + kPanel, 0U);
    }
  }
}

void PackValues(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
                std::int64_t columns, bool bf16, std::int64_t first, std::int64_t capacity,
                std::uint32_t* to) {
  if (dtype == DType::f32) {
    PackValuesOf(static_cast<const float*>(source), stride, count, columns, bf16, first, capacity,
                 to);
  } else {
    PackValuesOf(static_cast<const std::uint16_t*>(source), stride, count, columns, bf16, first,
                 capacity, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(PackKeys);
HWY_EXPORT(PackValues);

void pack_keys(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
               std::int64_t depth, bool bf16, std::uint32_t* to) {
  HWY_DYNAMIC_DISPATCH(PackKeys)(source, dtype, stride, count, depth, bf16, to);
}

void pack_values(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
                 std::int64_t columns, bool bf16, std::int64_t first, std::int64_t capacity,
                 std::uint32_t* to) {
  HWY_DYNAMIC_DISPATCH(PackValues)
  (source, dtype, stride, count, columns, bf16, first, capacity, to);
}

}  // namespace lca::cpu
#endif
