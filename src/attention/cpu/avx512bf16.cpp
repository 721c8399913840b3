// The inner products on AVX-512 BF16. Highway 1.0 has no name for this instruction, so the loops
// are written with intrinsics; this file alone is compiled for that CPU.
//
// Shapes of a tile: 12 rows of queries × one panel of 32, accumulated in 24 of the 32 registers.
// One instruction multiplies 32 pairs and adds them two by two in float32.

#include "attention/cpu/tile.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace lca::cpu {

namespace {

constexpr int kRows = kBf16Rows;
constexpr int kLanes = 16;

inline __m512bh pairs(const std::uint32_t* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}

inline __m512bh broadcast(std::uint32_t pair) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
}

/// acc[r][v] += Σ_k left[k·kStep + r·kRow] · right[k·32 + v·16 …]
template <int kStep, int kRow, int kVectors>
inline void accumulate(const std::uint32_t* left, const std::uint32_t* right, std::int64_t words,
                       __m512 (&acc)[kRows][kVectors]) {
  for (std::int64_t k = 0; k < words; ++k) {
    __m512bh b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) b[v] = pairs(right + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512bh a = broadcast(left[r * kRow]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], a, b[v]);
    }
    left += kStep;
    right += kPanel;
  }
}

/// The same over the whole depth of packed queries.
template <int kVectors>
inline void accumulate_depth(const std::uint32_t* q, const std::uint32_t* keys, std::int64_t words,
                             __m512 (&acc)[kRows][kVectors]) {
  for (; words > 0; words -= kDepth, q += kRows * kDepth, keys += kDepth * kPanel) {
    accumulate<1, kDepth>(q, keys, words < kDepth ? words : kDepth, acc);
  }
}

template <int kVectors>
inline void column_scores(const PanelPair<std::uint32_t>& p, std::int64_t column, float* scores,
                          std::int64_t stride) {
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  accumulate_depth(p.q_nope, p.k_nope + column, p.depth_nope, acc);
  accumulate_depth(p.q_rope, p.k_rope + column, p.depth_rope, acc);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(scores + r * stride + column + v * kLanes, acc[r][v]);
    }
  }
}

void panel_scores(const PanelPair<std::uint32_t>& p, std::int64_t from, std::int64_t to,
                  float* scores, std::int64_t stride) {
  if (from >= kLanes) {
    column_scores<1>(p, kLanes, scores, stride);
  } else if (to <= kLanes) {
    column_scores<1>(p, 0, scores, stride);
  } else {
    column_scores<2>(p, 0, scores, stride);
  }
}

void panel_outputs(const std::uint32_t* weights, const std::uint32_t* values, std::int64_t words,
                   const float* factor, float* out, std::int64_t out_stride) {
  __m512 acc[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const __m512 f = _mm512_set1_ps(factor[r]);
    acc[r][0] = _mm512_mul_ps(f, _mm512_loadu_ps(out + r * out_stride));
    acc[r][1] = _mm512_mul_ps(f, _mm512_loadu_ps(out + r * out_stride + 16));
  }
  accumulate<1, kBlockKeys>(weights, values, words, acc);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(out + r * out_stride, acc[r][0]);
    _mm512_storeu_ps(out + r * out_stride + 16, acc[r][1]);
  }
}

void round_pairs(const float* from, std::int64_t words, std::uint32_t* to) {
  std::int64_t i = 0;
  for (; i + 16 <= words; i += 16) {
    // Both halves are read before the store: the caller rounds a row in place.
    const __m512 low = _mm512_loadu_ps(from + 2 * i);
    const __m512 high = _mm512_loadu_ps(from + 2 * i + 16);
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  while (i < words) {
    const std::int64_t some = words - i < 8 ? words - i : 8;
    const __m512 both =
        _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << (2 * some)) - 1U), from + 2 * i);
    _mm256_mask_storeu_epi32(to + i, static_cast<__mmask8>((1U << some) - 1U),
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(both)));
    i += some;
  }
}

// --- decoding: a few heads against rows as they lie in the cache
// -----------------------------------

inline __m512bh values(const std::uint16_t* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}

/// The sums of four vectors.
inline __m128 sum_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_castps_pd(ab);
  const __m512d high = _mm512_castps_pd(cd);
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

template <int kHeads>
inline void score_tile(const std::uint16_t* q, std::int64_t width, const std::uint16_t* rows,
                       std::int64_t row_stride, float factor, float* scores, std::int64_t stride) {
  __m512 acc[kHeads][4];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[h][k] = _mm512_setzero_ps();
  }
  for (std::int64_t i = 0; i < width; i += 32) {
    __m512bh row[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) row[k] = values(rows + k * row_stride + i);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512bh query = values(q + h * width + i);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[h][k] = _mm512_dpbf16_ps(acc[h][k], query, row[k]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    _mm_storeu_ps(
        scores + h * stride,
        _mm_mul_ps(sum_four(acc[h][0], acc[h][1], acc[h][2], acc[h][3]), _mm_set1_ps(factor)));
  }
}

void row_scores(const std::uint16_t* q, std::int64_t heads, std::int64_t width,
                const std::uint16_t* rows, std::int64_t row_stride, float factor, float* scores,
                std::int64_t stride) {
  for (std::int64_t h = 0; h < heads; h += 4, q += 4 * width, scores += 4 * stride) {
    switch (heads - h) {
      case 1:
        score_tile<1>(q, width, rows, row_stride, factor, scores, stride);
        break;
      case 2:
        score_tile<2>(q, width, rows, row_stride, factor, scores, stride);
        break;
      case 3:
        score_tile<3>(q, width, rows, row_stride, factor, scores, stride);
        break;
      default:
        score_tile<4>(q, width, rows, row_stride, factor, scores, stride);
    }
  }
}

/// kHeads heads and 32·kPieces columns. Two rows are taken at a time, their values side by side; a
/// vector then holds columns 0 to 3 of every eight, or 4 to 7.
template <int kHeads, int kPieces>
inline void output_tile(const std::uint32_t* weights, std::int64_t weight_stride,
                        const float* factor, const std::uint16_t* rows, std::int64_t row_stride,
                        std::int64_t count, float* out, std::int64_t out_stride) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  __m512 acc[kHeads][2 * kPieces];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const __m512 f = _mm512_set1_ps(factor[h]);
#pragma GCC unroll 2
    for (int p = 0; p < kPieces; ++p) {
      const __m512 low = _mm512_mul_ps(f, _mm512_loadu_ps(out + h * out_stride + 32 * p));
      const __m512 high = _mm512_mul_ps(f, _mm512_loadu_ps(out + h * out_stride + 32 * p + 16));
      acc[h][2 * p] = _mm512_permutex2var_ps(low, first, high);
      acc[h][2 * p + 1] = _mm512_permutex2var_ps(low, second, high);
    }
  }
  for (std::int64_t k = 0; k < count; k += 2) {
    const std::uint16_t* even = rows + k * row_stride;
    const std::uint16_t* odd = k + 1 < count ? even + row_stride : even;
    __m512bh pair[2 * kPieces];
#pragma GCC unroll 2
    for (int p = 0; p < kPieces; ++p) {
      const __m512i a = _mm512_loadu_si512(even + 32 * p);
      const __m512i b = _mm512_loadu_si512(odd + 32 * p);
      pair[2 * p] = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(a, b));
      pair[2 * p + 1] = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(a, b));
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512bh weight = broadcast(weights[h * weight_stride + k / 2]);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPieces; ++v) {
        acc[h][v] = _mm512_dpbf16_ps(acc[h][v], weight, pair[v]);
      }
    }
  }
  const __m512i back = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i rest = _mm512_add_epi32(back, _mm512_set1_epi32(8));
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 2
    for (int p = 0; p < kPieces; ++p) {
      float* to = out + h * out_stride + 32 * p;
      _mm512_storeu_ps(to, _mm512_permutex2var_ps(acc[h][2 * p], back, acc[h][2 * p + 1]));
      _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(acc[h][2 * p], rest, acc[h][2 * p + 1]));
    }
  }
}

template <int kHeads>
inline void head_outputs(const std::uint32_t* weights, std::int64_t weight_stride,
                         const float* factor, std::int64_t width, const std::uint16_t* rows,
                         std::int64_t row_stride, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    output_tile<kHeads, 2>(weights, weight_stride, factor, rows + i, row_stride, count, out + i,
                           width);
  }
  if (i < width) {
    output_tile<kHeads, 1>(weights, weight_stride, factor, rows + i, row_stride, count, out + i,
                           width);
  }
}

void row_outputs(const std::uint32_t* weights, std::int64_t weight_stride, const float* factor,
                 std::int64_t heads, std::int64_t width, const std::uint16_t* rows,
                 std::int64_t row_stride, std::int64_t count, float* out) {
  for (std::int64_t h = 0; h < heads; h += 4) {
    const std::uint32_t* w = weights + h * weight_stride;
    float* to = out + h * width;
    switch (heads - h) {
      case 1:
        head_outputs<1>(w, weight_stride, factor + h, width, rows, row_stride, count, to);
        break;
      case 2:
        head_outputs<2>(w, weight_stride, factor + h, width, rows, row_stride, count, to);
        break;
      case 3:
        head_outputs<3>(w, weight_stride, factor + h, width, rows, row_stride, count, to);
        break;
      default:
        head_outputs<4>(w, weight_stride, factor + h, width, rows, row_stride, count, to);
    }
  }
}

}  // namespace

// Data, not a function: nothing of this file may run before the CPU was asked.
constinit const Bf16Kernels kAvx512Bf16{panel_scores, panel_outputs, round_pairs, row_scores,
                                        row_outputs};

}  // namespace lca::cpu

#else

namespace lca::cpu {
constinit const Bf16Kernels kAvx512Bf16{nullptr, nullptr, nullptr, nullptr, nullptr};
}  // namespace lca::cpu

#endif
