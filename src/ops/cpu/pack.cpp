// Plain numbers to Q8_0 and Q4_0. The order of operations is that of ggml's reference, each rounded
// to float32, so that bytes are equal; the build keeps the compiler from fusing them. Loops have
// fixed lengths and no branches: the compiler vectorises them, once for each instruction set.

#include "ops/pack.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/pack.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/context_state.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

using Byte = std::uint8_t;

constexpr int kBlock = 32;
constexpr std::uint32_t kInfinity32 = 0x7f800000u;
constexpr std::uint16_t kInfinity16 = 0x7c00u;

/// To the nearest, ties to even; beyond the largest it is an infinity. Not for NaN.
inline std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size >= 0x47800000u) return static_cast<std::uint16_t>(sign | kInfinity16);  // 2¹⁶
  if (size < 0x38800000u) {  // 2⁻¹⁴: multiples of 2⁻²⁴, which adding 2²³ rounds to
    const float rounded = (std::bit_cast<float>(size) * 0x1p24f + 0x1p23f) - 0x1p23f;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(rounded));
  }
  const std::uint32_t nearest = size + 0xfffu + (size >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | (nearest - 0x38000000u) >> 13);
}

/// The largest magnitude of a block, as bits: they order like the numbers, infinity and NaN last.
inline std::uint32_t largest_bits(const float* block) {
  std::uint32_t largest = 0;
  for (int j = 0; j < kBlock; ++j) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(block[j]) & 0x7fffffffu);
  }
  return largest;
}

/// 1 / scale; 0 where the scale is so small that all quants may as well be.
inline float inverse(float scale) {
  const float result = 1.0F / scale;
  return std::isfinite(result) ? result : 0.0F;
}

/// Q8_0: scale, then 32 signed bytes, rounded to the nearest, halves away from zero.
inline void q8_0_pack(const float* block, std::uint32_t largest, Byte* out) {
  const float scale = std::bit_cast<float>(largest) / 127.0F;
  const float factor = inverse(scale);
  const std::uint16_t half = f16_from_f32(scale);
  std::memcpy(out, &half, sizeof half);
  std::array<std::int8_t, kBlock> quants;
  for (std::size_t j = 0; j < kBlock; ++j) {
    const float value = block[j] * factor;
    const int whole = static_cast<int>(value);
    const float rest = value - static_cast<float>(whole);
    quants[j] = static_cast<std::int8_t>(whole + (rest >= 0.5F ? 1 : 0) - (rest <= -0.5F ? 1 : 0));
  }
  std::memcpy(out + sizeof half, quants.data(), quants.size());
}

/// Q4_0: scale, then 16 bytes; byte j holds value j (low) and value j + 16 (high), offset by 8. The
/// value of largest magnitude becomes −8, so its sign is the scale's with the other sign.
inline void q4_0_pack(const float* block, std::uint32_t largest, Byte* out) {
  float extreme = 0;
  for (int j = 0; j < kBlock; ++j) {
    if ((std::bit_cast<std::uint32_t>(block[j]) & 0x7fffffffu) != largest) continue;
    extreme = block[j];
    break;
  }
  const float scale = extreme / -8.0F;
  const float factor = inverse(scale);
  const std::uint16_t half = f16_from_f32(scale);
  std::memcpy(out, &half, sizeof half);
  std::array<int, kBlock> quants;
  for (std::size_t j = 0; j < kBlock; ++j) {
    quants[j] = std::min(15, static_cast<int>(block[j] * factor + 8.5F));
  }
  for (std::size_t j = 0; j < kBlock / 2; ++j) {
    out[2 + j] = static_cast<Byte>(quants[j] | quants[j + kBlock / 2] << 4);
  }
}

PackResult PackF32(PackedType type, const float* source, std::byte* out, std::int64_t values) {
  const std::size_t block_bytes = packed_type_info(type).block_bytes;
  PackResult result = PackResult::packed;
  for (std::int64_t done = 0; done < values; done += kBlock, out += block_bytes) {
    const float* block = source + done;
    const std::uint32_t largest = largest_bits(block);
    auto* bytes = reinterpret_cast<Byte*>(out);
    if (largest >= kInfinity32) {
      result = PackResult::not_finite;
      std::memset(bytes, 0, block_bytes);
      continue;
    }
    type == PackedType::q8_0 ? q8_0_pack(block, largest, bytes) : q4_0_pack(block, largest, bytes);
    std::uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    if ((half & kInfinity16) == kInfinity16) {
      if (result == PackResult::packed) result = PackResult::too_large;
      std::memset(bytes, 0, block_bytes);
    }
  }
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(PackF32);

PackResult pack_f32(PackedType type, const float* source, std::byte* out, std::int64_t values) {
  return HWY_DYNAMIC_DISPATCH(PackF32)(type, source, out, values);
}

PackResult pack_matrix(Context& context, const PackedMatrix& source, PackedType type,
                       std::byte* out) {
  constexpr std::int64_t kTaskValues = 1 << 16;
  const std::int64_t columns = source.columns;
  const std::int64_t task_rows =
      std::max<std::int64_t>(1, kTaskValues / std::max<std::int64_t>(columns, 1));
  const std::int64_t tasks = (source.rows + task_rows - 1) / task_rows;
  const std::size_t row_bytes = packed_bytes(type, columns);
  std::vector<std::vector<float>> wide(static_cast<std::size_t>(context.threads()));
  std::atomic<bool> not_finite = false;
  std::atomic<bool> too_large = false;
  context.state().pool.run(tasks, [&](std::int64_t task, int worker) {
    std::vector<float>& row = wide[static_cast<std::size_t>(worker)];
    row.resize(static_cast<std::size_t>(columns));
    const std::int64_t first = task * task_rows;
    for (std::int64_t r = first; r < std::min(first + task_rows, source.rows); ++r) {
      unpack_f32(source.type, source.row(r), row.data(), columns);
      const PackResult result =
          pack_f32(type, row.data(), out + static_cast<std::size_t>(r) * row_bytes, columns);
      if (result == PackResult::not_finite) not_finite = true;
      if (result == PackResult::too_large) too_large = true;
    }
  });
  if (not_finite) return PackResult::not_finite;
  return too_large ? PackResult::too_large : PackResult::packed;
}

}  // namespace lca
#endif
