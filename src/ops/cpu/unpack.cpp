// Storage types to plain numbers, block by block. The order of operations is that of ggml's
// reference (scale × quant, then ± minimum, each rounded to float32), so that results are equal to
// the bit; the build keeps the compiler from fusing them. Loops have fixed lengths and no branches:
// the compiler vectorises them, once for each instruction set.

#include "ops/packed.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/unpack.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

using Byte = std::uint8_t;

constexpr int kBlock = 32;       // values of a block of Q4_0 … Q8_0
constexpr int kSuper = 256;      // values of a K-block
constexpr int kScaleBytes = 12;  // Q4_K, Q5_K: eight 6-bit scales and eight 6-bit minimums

/// Exact, also where the processor flushes subnormal float32 to zero: those of binary16 are normal
/// numbers in float32.
inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t rest = half & 0x7fffu;
  const std::uint32_t normal = (rest << 13) + (112u << 23);
  const std::uint32_t special = (rest << 13) | 0x7f800000u;  // infinity, NaN
  const auto tiny =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(rest)) * 0x1p-24f);
  const std::uint32_t finite = rest < 0x0400u ? tiny : normal;
  return std::bit_cast<float>(sign | (rest >= 0x7c00u ? special : finite));
}

inline float half_at(const Byte* source) {
  std::uint16_t bits;
  std::memcpy(&bits, source, sizeof bits);
  return f16_to_f32(bits);
}

// --- plain numbers -------------------------------------------------------------------------------

void f16_unpack(const Byte* source, float* out, std::int64_t values) {
  for (std::int64_t i = 0; i < values; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, source + 2 * i, sizeof bits);
    out[i] = f16_to_f32(bits);
  }
}

void bf16_unpack(const Byte* source, float* out, std::int64_t values) {
  for (std::int64_t i = 0; i < values; ++i) {
    bf16_bits bits;
    std::memcpy(&bits, source + 2 * i, sizeof bits);
    out[i] = bf16_to_f32(bits);
  }
}

// --- blocks of 32 --------------------------------------------------------------------------------

/// Q4_0: scale, then 16 bytes; byte j holds value j (low) and value j + 16 (high), offset by 8.
void q4_0_block(const Byte* source, float* out) {
  const float scale = half_at(source);
  const Byte* quants = source + 2;
  for (int j = 0; j < kBlock / 2; ++j) {
    out[j] = scale * static_cast<float>((quants[j] & 15) - 8);
    out[j + kBlock / 2] = scale * static_cast<float>((quants[j] >> 4) - 8);
  }
}

/// Q4_1: scale, minimum, then as Q4_0 without the offset.
void q4_1_block(const Byte* source, float* out) {
  const float scale = half_at(source);
  const float minimum = half_at(source + 2);
  const Byte* quants = source + 4;
  for (int j = 0; j < kBlock / 2; ++j) {
    out[j] = scale * static_cast<float>(quants[j] & 15) + minimum;
    out[j + kBlock / 2] = scale * static_cast<float>(quants[j] >> 4) + minimum;
  }
}

/// The quants of Q5_0 and Q5_1: four bytes with the fifth bits, value by value, then 16 bytes with
/// the lower four as in Q4_0.
void fifth_bits_add(const Byte* source, std::array<int, kBlock>& out) {
  std::uint32_t high;
  std::memcpy(&high, source, sizeof high);
  const Byte* quants = source + 4;
  for (unsigned j = 0; j < kBlock / 2; ++j) {
    out[j] = (quants[j] & 15) | static_cast<int>((high >> j & 1u) << 4);
    out[j + kBlock / 2] = (quants[j] >> 4) | static_cast<int>((high >> (j + 16) & 1u) << 4);
  }
}

/// Q5_0: scale, quants offset by 16.
void q5_0_block(const Byte* source, float* out) {
  const float scale = half_at(source);
  std::array<int, kBlock> quants;
  fifth_bits_add(source + 2, quants);
  for (std::size_t j = 0; j < kBlock; ++j) out[j] = scale * static_cast<float>(quants[j] - 16);
}

/// Q5_1: scale, minimum, quants.
void q5_1_block(const Byte* source, float* out) {
  const float scale = half_at(source);
  const float minimum = half_at(source + 2);
  std::array<int, kBlock> quants;
  fifth_bits_add(source + 4, quants);
  for (std::size_t j = 0; j < kBlock; ++j) {
    out[j] = scale * static_cast<float>(quants[j]) + minimum;
  }
}

/// Q8_0: scale, 32 signed bytes.
void q8_0_block(const Byte* source, float* out) {
  const float scale = half_at(source);
  const Byte* quants = source + 2;
  for (int j = 0; j < kBlock; ++j) {
    out[j] = scale * static_cast<float>(static_cast<std::int8_t>(quants[j]));
  }
}

// --- blocks of 256 -------------------------------------------------------------------------------

struct ScaleMinimum {
  float scale;
  float minimum;
};

/// Scale and minimum of the eight runs of 32 in a Q4_K or Q5_K block. Bytes 0–3 and 4–7 hold those
/// of runs 0–3; their two upper bits and bytes 8–11 hold those of runs 4–7.
std::array<ScaleMinimum, 8> scales_unpack(const Byte* source) {
  const float scale = half_at(source);
  const float minimum = half_at(source + 2);
  const Byte* packed = source + 4;
  std::array<ScaleMinimum, 8> runs;
  for (std::size_t j = 0; j < 4; ++j) {
    const int s = packed[j], m = packed[j + 4], both = packed[j + 8];
    runs[j] = {scale * static_cast<float>(s & 63), minimum * static_cast<float>(m & 63)};
    runs[j + 4] = {scale * static_cast<float>((both & 15) | (s >> 6 << 4)),
                   minimum * static_cast<float>((both >> 4) | (m >> 6 << 4))};
  }
  return runs;
}

/// Q4_K: scale, minimum, the runs' own, then 32 bytes for each two runs: low and high halves.
void q4_k_block(const Byte* source, float* out) {
  const std::array<ScaleMinimum, 8> runs = scales_unpack(source);
  const Byte* quants = source + 4 + kScaleBytes;
  for (std::size_t pair = 0; pair < 4; ++pair, quants += kBlock, out += 2 * kBlock) {
    const ScaleMinimum low = runs[2 * pair], high = runs[2 * pair + 1];
    for (int j = 0; j < kBlock; ++j) {
      out[j] = low.scale * static_cast<float>(quants[j] & 15) - low.minimum;
      out[j + kBlock] = high.scale * static_cast<float>(quants[j] >> 4) - high.minimum;
    }
  }
}

/// Q5_K: as Q4_K with 32 bytes before the quants, bit r of which is the fifth bit in run r.
void q5_k_block(const Byte* source, float* out) {
  const std::array<ScaleMinimum, 8> runs = scales_unpack(source);
  const Byte* fifth = source + 4 + kScaleBytes;
  const Byte* quants = fifth + kBlock;
  for (std::size_t pair = 0; pair < 4; ++pair, quants += kBlock, out += 2 * kBlock) {
    const ScaleMinimum low = runs[2 * pair], high = runs[2 * pair + 1];
    for (int j = 0; j < kBlock; ++j) {
      const int bits = fifth[j] >> (2 * pair);
      const int a = (quants[j] & 15) | (bits & 1) << 4;
      const int b = (quants[j] >> 4) | (bits >> 1 & 1) << 4;
      out[j] = low.scale * static_cast<float>(a) - low.minimum;
      out[j + kBlock] = high.scale * static_cast<float>(b) - high.minimum;
    }
  }
}

/// Q6_K: 128 bytes of lower four bits, 64 bytes of upper two, 16 signed scales of 16 values each,
/// and last the scale of all. Each half of the block has four runs of 32: two in the low halves of
/// its 64 bytes, two in the high ones. Quants are offset by 32.
void q6_k_block(const Byte* source, float* out) {
  const Byte* lower = source;
  const Byte* upper = source + kSuper / 2;
  const Byte* scales = upper + kSuper / 4;
  const float scale = half_at(scales + kSuper / 16);
  for (int half = 0; half < 2; ++half, lower += 64, upper += 32) {
    for (int run = 0; run < 4; ++run, scales += 2, out += kBlock) {
      const Byte* low = lower + kBlock * (run & 1);
      const int low_shift = 4 * (run >> 1);
      for (int part = 0; part < 2; ++part) {
        const float own = scale * static_cast<float>(static_cast<std::int8_t>(scales[part]));
        for (int j = 16 * part; j < 16 * part + 16; ++j) {
          const int quant = (low[j] >> low_shift & 15) | (upper[j] >> (2 * run) & 3) << 4;
          out[j] = own * static_cast<float>(quant - 32);
        }
      }
    }
  }
}

template <void (*block)(const Byte*, float*)>
void blocks_unpack(PackedType type, const Byte* source, float* out, std::int64_t values) {
  const PackedTypeInfo& info = packed_type_info(type);
  for (std::int64_t done = 0; done < values; done += info.block_values) {
    block(source, out + done);
    source += info.block_bytes;
  }
}

void UnpackF32(PackedType type, const std::byte* source, float* out, std::int64_t values) {
  if (values <= 0) return;
  const auto* bytes = reinterpret_cast<const Byte*>(source);
  switch (type) {
    case PackedType::f32:
      std::memcpy(out, source, static_cast<std::size_t>(values) * sizeof(float));
      return;
    case PackedType::f16:
      return f16_unpack(bytes, out, values);
    case PackedType::bf16:
      return bf16_unpack(bytes, out, values);
    case PackedType::q4_0:
      return blocks_unpack<q4_0_block>(type, bytes, out, values);
    case PackedType::q4_1:
      return blocks_unpack<q4_1_block>(type, bytes, out, values);
    case PackedType::q5_0:
      return blocks_unpack<q5_0_block>(type, bytes, out, values);
    case PackedType::q5_1:
      return blocks_unpack<q5_1_block>(type, bytes, out, values);
    case PackedType::q8_0:
      return blocks_unpack<q8_0_block>(type, bytes, out, values);
    case PackedType::q4_k:
      return blocks_unpack<q4_k_block>(type, bytes, out, values);
    case PackedType::q5_k:
      return blocks_unpack<q5_k_block>(type, bytes, out, values);
    case PackedType::q6_k:
      return blocks_unpack<q6_k_block>(type, bytes, out, values);
  }
}

void UnpackBf16(PackedType type, const std::byte* source, bf16_bits* out, std::int64_t values) {
  if (values <= 0) return;
  if (type == PackedType::bf16) {
    std::memcpy(out, source, static_cast<std::size_t>(values) * sizeof(bf16_bits));
    return;
  }
  std::array<float, kSuper> buffer;  // whole blocks of every type
  for (std::int64_t done = 0; done < values; done += kSuper) {
    const std::int64_t now = std::min<std::int64_t>(kSuper, values - done);
    UnpackF32(type, source + packed_bytes(type, done), buffer.data(), now);
    for (std::int64_t i = 0; i < now; ++i) {
      out[done + i] = bf16_from_f32(buffer[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(UnpackF32);
HWY_EXPORT(UnpackBf16);

void unpack_f32(PackedType type, const std::byte* source, float* out, std::int64_t values) {
  HWY_DYNAMIC_DISPATCH(UnpackF32)(type, source, out, values);
}

void unpack_bf16(PackedType type, const std::byte* source, bf16_bits* out, std::int64_t values) {
  HWY_DYNAMIC_DISPATCH(UnpackBf16)(type, source, out, values);
}

}  // namespace lca
#endif
