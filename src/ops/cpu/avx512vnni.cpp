// Packed weights times 15-bit activations on AVX-512 VNNI. Every block of 32 weights is brought to
// one form, w = a·q + b with q in 0 … 255, so that one kernel serves all types:
//
//   Σ w·x = s · (a · Σ q·x̂ + b · Σ x̂)     x = s·x̂, x̂ = 128·high + low; Σ x̂ made once per row of x
//
// Q6_K has a scale for each 16 weights: a and b are then per half block. One instruction multiplies
// 32 pairs and adds them four by four; a block takes two, for the high and the low part. Bound by
// memory: 4 to 8.5 bits a weight, read once.

#include "ops/packed_dot.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace lca {
namespace vnni {
namespace {

using Byte = std::uint8_t;

inline float half_at(const Byte* from) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return _cvtsh_ss(bits);
}

/// 32 weights: quants, and a and b of both halves.
struct Block {
  __m256i q;
  float a0, a1, b0, b1;
};

/// 16 bytes of two nibbles each: the low ones, then the high ones.
inline __m256i nibbles(const Byte* from) {
  const __m256i both =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i shift = _mm256_set_m128i(_mm_set1_epi16(4), _mm_setzero_si128());
  return _mm256_and_si256(_mm256_srlv_epi16(both, shift), _mm256_set1_epi8(15));
}

/// 16 where the bit is set, by value.
inline __m256i sixteens(const Byte* bits) {
  std::uint32_t mask;
  __builtin_memcpy(&mask, bits, sizeof mask);
  return _mm256_maskz_set1_epi8(mask, 16);
}

/// The activations of one block.
struct BlockValues {
  __m256i high, low;

  BlockValues(const QuantisedRows& x, std::int64_t block)
      : high(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.high + block * 32))),
        low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.low + block * 32))) {}

  /// Σ q·x̂, four by four.
  __m256 dot(__m256i q) const {
    const __m256i upper = _mm256_dpbusd_epi32(_mm256_setzero_si256(), q, high);
    return _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(_mm256_slli_epi32(upper, 7), q, low));
  }
};

struct Q4_0 {
  static constexpr int kValues = 32, kBytes = 18;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    return {nibbles(from + 2), scale, scale, -8 * scale, -8 * scale};
  }
};

struct Q4_1 {
  static constexpr int kValues = 32, kBytes = 20;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    return {nibbles(from + 4), scale, scale, minimum, minimum};
  }
};

struct Q5_0 {
  static constexpr int kValues = 32, kBytes = 22;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    return {_mm256_or_si256(nibbles(from + 6), sixteens(from + 2)), scale, scale, -16 * scale,
            -16 * scale};
  }
};

struct Q5_1 {
  static constexpr int kValues = 32, kBytes = 24;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    return {_mm256_or_si256(nibbles(from + 8), sixteens(from + 4)), scale, scale, minimum, minimum};
  }
};

struct Q8_0 {
  static constexpr int kValues = 32, kBytes = 34;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2));
    return {_mm256_xor_si256(q, _mm256_set1_epi8(-128)), scale, scale, -128 * scale, -128 * scale};
  }
};

/// The scale and minimum of run `run` of a Q4_K or Q5_K block.
inline void run_scales(const Byte* from, int run, float& a, float& b) {
  const Byte* packed = from + 4;
  int scale, minimum;
  if (run < 4) {
    scale = packed[run] & 63;
    minimum = packed[run + 4] & 63;
  } else {
    scale = (packed[run + 4] & 15) | (packed[run - 4] >> 6 << 4);
    minimum = (packed[run + 4] >> 4) | (packed[run] >> 6 << 4);
  }
  a = half_at(from) * static_cast<float>(scale);
  b = -half_at(from + 2) * static_cast<float>(minimum);
}

/// 32 bytes of two nibbles each: run 2p has the low ones, run 2p + 1 the high ones.
inline __m256i run_nibbles(const Byte* quants, int run) {
  const __m256i both =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quants + 32 * (run / 2)));
  return _mm256_and_si256(run % 2 == 0 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
}

struct Q4_K {
  static constexpr int kValues = 256, kBytes = 144;
  static Block load(const Byte* from, int run) {
    float a, b;
    run_scales(from, run, a, b);
    return {run_nibbles(from + 16, run), a, a, b, b};
  }
};

struct Q5_K {
  static constexpr int kValues = 256, kBytes = 176;
  static Block load(const Byte* from, int run) {
    float a, b;
    run_scales(from, run, a, b);
    const __m256i fifth = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16));
    const __mmask32 set =
        _mm256_test_epi8_mask(fifth, _mm256_set1_epi8(static_cast<char>(1 << run)));
    return {_mm256_or_si256(run_nibbles(from + 48, run), _mm256_maskz_set1_epi8(set, 16)), a, a, b,
            b};
  }
};

struct Q6_K {
  static constexpr int kValues = 256, kBytes = 210;
  static Block load(const Byte* from, int run) {
    // Four runs in each half block: two in the low nibbles of 64 bytes, two in the high ones.
    const int half = run / 4, part = run % 4;
    const Byte* lower = from + 64 * half + 32 * (part & 1);
    const Byte* upper = from + 128 + 32 * half;
    __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lower));
    if (part >= 2) low = _mm256_srli_epi16(low, 4);
    const __m256i high = _mm256_srl_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper)), _mm_cvtsi32_si128(2 * part));
    const __m256i q =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                        _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4));
    const auto* scales = reinterpret_cast<const std::int8_t*>(from + 192) + 2 * run;
    const float scale = half_at(from + 208);
    const float a0 = scale * static_cast<float>(scales[0]);
    const float a1 = scale * static_cast<float>(scales[1]);
    return {q, a0, a1, -32 * a0, -32 * a1};
  }
};

inline float sum_of(__m256 lanes) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Rows of activations that share one reading of the weights.
template <typename Type, int kRows>
inline void dots(const Byte* weights, std::int64_t blocks, const QuantisedRows& x, std::int64_t row,
                 float* out, std::int64_t stride) {
  __m256 sum[kRows];
  float offset[kRows];
  for (int m = 0; m < kRows; ++m) {
    sum[m] = _mm256_setzero_ps();
    offset[m] = 0;
  }
  constexpr int kRuns = Type::kValues / 32;
  for (std::int64_t block = 0; block < blocks; block += kRuns, weights += Type::kBytes) {
#pragma GCC unroll 8
    for (int run = 0; run < kRuns; ++run) {
      const Block w = Type::load(weights, run);
      const __m256 a = _mm256_set_m128(_mm_set1_ps(w.a1), _mm_set1_ps(w.a0));
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const std::int64_t at = (row + m) * x.blocks + block + run;
        const __m256 scale = _mm256_mul_ps(a, _mm256_set1_ps(x.scales[at]));
        sum[m] = _mm256_fmadd_ps(BlockValues(x, at).dot(w.q), scale, sum[m]);
        offset[m] += w.b0 * x.sums[2 * at] + w.b1 * x.sums[2 * at + 1];
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    out[(row + m) * stride] = sum_of(sum[m]) + offset[m];
  }
}

/// How a strip holds its weights (strips.cpp): w = a·q + b.
template <bool kMinimums, bool kFifth, bool kBytes, int kOffset>
struct Strip {
  static constexpr int kHeaderBytes = kMinimums ? 64 : 32;
  static constexpr int kQuantsAt = kHeaderBytes + (kFifth ? 64 : 0);
  static constexpr int kBlockBytes = kQuantsAt + (kBytes ? 512 : 256);
  static constexpr int kGroups = 8;  // of four columns

  static __m512 scales(const Byte* headers) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(headers)));
  }
  static __m512 offsets(const Byte* headers, __m512 a) {
    if constexpr (kMinimums) return scales(headers + 32);
    return _mm512_mul_ps(a, _mm512_set1_ps(-kOffset));
  }
  /// Four columns of sixteen rows.
  static __m512i quants(const Byte* block, int group) {
    if constexpr (kBytes) return _mm512_loadu_si512(block + kQuantsAt + 64 * group);
    __m512i q = _mm512_loadu_si512(block + kQuantsAt + 64 * (group % 4));
    if (group >= 4) q = _mm512_srli_epi16(q, 4);
    q = _mm512_and_si512(q, _mm512_set1_epi8(15));
    if constexpr (kFifth) {
      std::uint64_t set;
      __builtin_memcpy(&set, block + kHeaderBytes + 8 * group, sizeof set);
      q = _mm512_or_si512(q, _mm512_maskz_set1_epi8(set, 16));
    }
    return q;
  }
};

/// Four consecutive values, in every lane.
inline __m512i four_values(const std::int8_t* from) {
  int word;
  __builtin_memcpy(&word, from, sizeof word);
  return _mm512_set1_epi32(word);
}

/// One strip with kRows rows of activations.
template <typename Type, int kRows>
inline void strip_dots(const Byte* strip, std::int64_t blocks, const QuantisedRows& x,
                       std::int64_t row, __mmask16 kept, float* out, std::int64_t stride) {
  __m512 sum[kRows];
  for (int m = 0; m < kRows; ++m) sum[m] = _mm512_setzero_ps();
  for (std::int64_t block = 0; block < blocks; ++block, strip += Type::kBlockBytes) {
    __m512i high[kRows], low[kRows];
    for (int m = 0; m < kRows; ++m) high[m] = low[m] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int group = 0; group < Type::kGroups; ++group) {
      const __m512i q = Type::quants(strip, group);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const std::int64_t at = ((row + m) * x.blocks + block) * 32 + 4 * group;
        high[m] = _mm512_dpbusd_epi32(high[m], q, four_values(x.high + at));
        low[m] = _mm512_dpbusd_epi32(low[m], q, four_values(x.low + at));
      }
    }
    const __m512 a = Type::scales(strip);
    const __m512 b = Type::offsets(strip, a);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const std::int64_t at = (row + m) * x.blocks + block;
      const __m512 dot =
          _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[m], 7), low[m]));
      const __m512 total = _mm512_set1_ps(x.sums[2 * at] + x.sums[2 * at + 1]);
      sum[m] = _mm512_fmadd_ps(b, total, sum[m]);
      sum[m] = _mm512_fmadd_ps(dot, _mm512_mul_ps(a, _mm512_set1_ps(x.scales[at])), sum[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    _mm512_mask_storeu_ps(out + (row + m) * stride, kept, sum[m]);
  }
}

template <typename Type>
void strips_of(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
               std::int64_t rows, float* out, std::int64_t stride) {
  const std::int64_t blocks = w.columns / 32;
  const std::int64_t bytes = (blocks * Type::kBlockBytes + 63) / 64 * 64;
  const auto* strip = reinterpret_cast<const Byte*>(w.data) + first / 16 * bytes;
  for (std::int64_t n = first; n < end; n += 16, strip += bytes) {
    const auto kept = static_cast<__mmask16>(end - n >= 16 ? 0xffff : (1 << (end - n)) - 1);
    std::int64_t m = 0;
    for (; m + 4 <= rows; m += 4) strip_dots<Type, 4>(strip, blocks, x, m, kept, out + n, stride);
    if (m + 2 <= rows) {
      strip_dots<Type, 2>(strip, blocks, x, m, kept, out + n, stride);
      m += 2;
    }
    if (m < rows) strip_dots<Type, 1>(strip, blocks, x, m, kept, out + n, stride);
  }
}

template <typename Type>
void rows_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
              std::int64_t rows, float* out, std::int64_t stride) {
  const std::int64_t blocks = w.columns / 32;
  const std::int64_t row_bytes = w.columns / Type::kValues * Type::kBytes;
  const auto* weights = reinterpret_cast<const Byte*>(w.data) + first * row_bytes;
  for (std::int64_t n = first; n < end; ++n, weights += row_bytes) {
    std::int64_t m = 0;
    for (; m + 4 <= rows; m += 4) dots<Type, 4>(weights, blocks, x, m, out + n, stride);
    if (m + 2 <= rows) {
      dots<Type, 2>(weights, blocks, x, m, out + n, stride);
      m += 2;
    }
    if (m < rows) dots<Type, 1>(weights, blocks, x, m, out + n, stride);
  }
}

}  // namespace

void packed_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride) {
  switch (w.type) {
    case PackedType::q4_0:
      return rows_dot<Q4_0>(w, first, end, x, rows, out, stride);
    case PackedType::q4_1:
      return rows_dot<Q4_1>(w, first, end, x, rows, out, stride);
    case PackedType::q5_0:
      return rows_dot<Q5_0>(w, first, end, x, rows, out, stride);
    case PackedType::q5_1:
      return rows_dot<Q5_1>(w, first, end, x, rows, out, stride);
    case PackedType::q8_0:
      return rows_dot<Q8_0>(w, first, end, x, rows, out, stride);
    case PackedType::q4_k:
      return rows_dot<Q4_K>(w, first, end, x, rows, out, stride);
    case PackedType::q5_k:
      return rows_dot<Q5_K>(w, first, end, x, rows, out, stride);
    case PackedType::q6_k:
      return rows_dot<Q6_K>(w, first, end, x, rows, out, stride);
    default:
      return;
  }
}

void strips_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride) {
  switch (w.type) {
    case PackedType::q4_0:
      return strips_of<Strip<false, false, false, 8>>(w, first, end, x, rows, out, stride);
    case PackedType::q4_1:
      return strips_of<Strip<true, false, false, 0>>(w, first, end, x, rows, out, stride);
    case PackedType::q5_0:
      return strips_of<Strip<false, true, false, 16>>(w, first, end, x, rows, out, stride);
    case PackedType::q5_1:
      return strips_of<Strip<true, true, false, 0>>(w, first, end, x, rows, out, stride);
    case PackedType::q8_0:
      return strips_of<Strip<false, false, true, 128>>(w, first, end, x, rows, out, stride);
    default:
      return;
  }
}

}  // namespace vnni
}  // namespace lca

#endif
