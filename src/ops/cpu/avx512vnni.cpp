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

/// a and b of one block in each of four weight rows, `row` bytes apart.
struct Headers {
  __m128 a, b;
};

/// Four half-precision numbers.
inline __m128 halves(const Byte* from, std::int64_t row) {
  std::uint16_t bits[4];
  for (int r = 0; r < 4; ++r) __builtin_memcpy(bits + r, from + r * row, 2);
  return _mm_cvtph_ps(_mm_set_epi16(0, 0, 0, 0, static_cast<short>(bits[3]),
                                    static_cast<short>(bits[2]), static_cast<short>(bits[1]),
                                    static_cast<short>(bits[0])));
}

/// A scale alone: b is a constant multiple of it.
inline Headers scales_only(const Byte* from, std::int64_t row, float multiple) {
  const __m128 a = halves(from, row);
  return {a, _mm_mul_ps(a, _mm_set1_ps(multiple))};
}

/// A scale, then a minimum.
inline Headers scales_and_minimums(const Byte* from, std::int64_t row) {
  std::uint32_t bits[4];
  for (int r = 0; r < 4; ++r) __builtin_memcpy(bits + r, from + r * row, 4);
  const __m256 both =
      _mm256_cvtph_ps(_mm_set_epi32(static_cast<int>(bits[3]), static_cast<int>(bits[2]),
                                    static_cast<int>(bits[1]), static_cast<int>(bits[0])));
  const __m128 low = _mm256_castps256_ps128(both);
  const __m128 high = _mm256_extractf128_ps(both, 1);
  return {_mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)),
          _mm_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1))};
}

struct Q4_0 {
  static constexpr int kValues = 32, kBytes = 18;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    return {nibbles(from + 2), scale, scale, -8 * scale, -8 * scale};
  }
  static __m256i quants(const Byte* from) { return nibbles(from + 2); }
  static Headers headers(const Byte* from, std::int64_t row) { return scales_only(from, row, -8); }
};

struct Q4_1 {
  static constexpr int kValues = 32, kBytes = 20;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    return {nibbles(from + 4), scale, scale, minimum, minimum};
  }
  static __m256i quants(const Byte* from) { return nibbles(from + 4); }
  static Headers headers(const Byte* from, std::int64_t row) {
    return scales_and_minimums(from, row);
  }
};

struct Q5_0 {
  static constexpr int kValues = 32, kBytes = 22;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    return {_mm256_or_si256(nibbles(from + 6), sixteens(from + 2)), scale, scale, -16 * scale,
            -16 * scale};
  }
  static __m256i quants(const Byte* from) {
    return _mm256_or_si256(nibbles(from + 6), sixteens(from + 2));
  }
  static Headers headers(const Byte* from, std::int64_t row) { return scales_only(from, row, -16); }
};

struct Q5_1 {
  static constexpr int kValues = 32, kBytes = 24;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    return {_mm256_or_si256(nibbles(from + 8), sixteens(from + 4)), scale, scale, minimum, minimum};
  }
  static __m256i quants(const Byte* from) {
    return _mm256_or_si256(nibbles(from + 8), sixteens(from + 4));
  }
  static Headers headers(const Byte* from, std::int64_t row) {
    return scales_and_minimums(from, row);
  }
};

struct Q8_0 {
  static constexpr int kValues = 32, kBytes = 34;
  static Block load(const Byte* from, int) {
    const float scale = half_at(from);
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2));
    return {_mm256_xor_si256(q, _mm256_set1_epi8(-128)), scale, scale, -128 * scale, -128 * scale};
  }
  static __m256i quants(const Byte* from) {
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2));
    return _mm256_xor_si256(q, _mm256_set1_epi8(-128));
  }
  static Headers headers(const Byte* from, std::int64_t row) {
    return scales_only(from, row, -128);
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

/// Bytes between what is multiplied and what is asked for.
constexpr std::int64_t kAhead = 8192;

/// Four weight rows with one or two rows of activations, for types of one scale a block: the four
/// headers are read together, and the sums do not wait for each other.
template <typename Type, int kRows>
inline void four_dots(const Byte* weights, std::int64_t row_bytes, std::int64_t blocks,
                      const QuantisedRows& x, std::int64_t row, float* out, std::int64_t stride) {
  __m256 sum[kRows][4];
  __m128 offset[kRows];
  for (int m = 0; m < kRows; ++m) {
    offset[m] = _mm_setzero_ps();
    for (int r = 0; r < 4; ++r) sum[m][r] = _mm256_setzero_ps();
  }
  // Weights come from memory once a token, in pieces too short for the processor to foresee: ask
  // for what comes a few rows later. Asking beyond the end does no harm.
  const Byte* ahead = weights + kAhead;
  for (std::int64_t block = 0; block < blocks; ++block, weights += Type::kBytes) {
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(ahead + 64, _MM_HINT_T0);
    ahead += 4 * Type::kBytes;
    const Headers headers = Type::headers(weights, row_bytes);
    __m256i quants[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) quants[r] = Type::quants(weights + r * row_bytes);
#pragma GCC unroll 2
    for (int m = 0; m < kRows; ++m) {
      const std::int64_t at = (row + m) * x.blocks + block;
      const BlockValues values(x, at);
      const __m128 scale = _mm_mul_ps(headers.a, _mm_set1_ps(x.scales[at]));
      const __m128 total = _mm_set1_ps(x.sums[2 * at] + x.sums[2 * at + 1]);
      offset[m] = _mm_fmadd_ps(headers.b, total, offset[m]);
      const __m256 wide = _mm256_castps128_ps256(scale);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        sum[m][r] = _mm256_fmadd_ps(
            values.dot(quants[r]), _mm256_permutevar8x32_ps(wide, _mm256_set1_epi32(r)), sum[m][r]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    alignas(16) float offsets[4];
    _mm_store_ps(offsets, offset[m]);
    for (int r = 0; r < 4; ++r) out[(row + m) * stride + r] = sum_of(sum[m][r]) + offsets[r];
  }
}

template <typename Type>
void rows_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
              std::int64_t rows, float* out, std::int64_t stride) {
  const std::int64_t blocks = w.columns / 32;
  const std::int64_t row_bytes = w.columns / Type::kValues * Type::kBytes;
  const auto* weights = reinterpret_cast<const Byte*>(w.data) + first * row_bytes;
  std::int64_t n = first;
  if constexpr (Type::kValues == 32) {
    for (; n + 4 <= end; n += 4, weights += 4 * row_bytes) {
      std::int64_t m = 0;
      for (; m + 2 <= rows; m += 2) {
        four_dots<Type, 2>(weights, row_bytes, blocks, x, m, out + n, stride);
      }
      if (m < rows) four_dots<Type, 1>(weights, row_bytes, blocks, x, m, out + n, stride);
    }
  }
  for (; n < end; ++n, weights += row_bytes) {
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

}  // namespace vnni
}  // namespace lca

#endif
