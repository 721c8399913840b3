// Decoding on rows of 8 bits with AVX-512 VNNI; this file alone is compiled for that CPU.
//
// One instruction multiplies 64 pairs of bytes, one of them without sign, and adds them four by
// four. Queries and weights have 16 bits, so that a row takes two of them: as many as bfloat16 for
// half the memory, and no conversion. Scores: rows become q + 128 by one exclusive or. Outputs:
// four rows at a time, their values side by side; 3 heads × 64 columns in 24 registers.

#include "attention/cpu/int8_kernels.h"

#if defined(__AVX512VNNI__)

#include <immintrin.h>

namespace lca::cpu {

namespace {

inline __m512i bytes(const void* from) { return _mm512_loadu_si512(from); }

/// Into the second-level cache: what goes to the first waits in a shorter queue.
inline void prefetch(const std::int8_t* from) { __builtin_prefetch(from, 0, 2); }

/// The sums of four vectors, in each quarter of a vector those of its quarter.
inline __m512i sum_four(const __m512i (&v)[4]) {
  const __m512i ab =
      _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i cd =
      _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/// The quarters of four vectors added up, one vector's sum after the other.
inline __m512i sum_quarters(const __m512i (&v)[4]) {
  const auto pair = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  };
  const __m512i ab = pair(v[0], v[1]);
  const __m512i cd = pair(v[2], v[3]);
  return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

/// kHeads heads of one KV head against 4 rows of 64·kPieces values.
template <int kHeads, int kPieces>
inline void score_heads(const Int8Query* q, const __m512i (&row)[4][kPieces], float* scores) {
  __m512i quarters[4];
#pragma GCC unroll 4
  for (int h = 0; h < 4; ++h) {
    if (h >= kHeads) {
      quarters[h] = _mm512_setzero_si512();
      continue;
    }
    __m512i acc[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[k] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      const __m512i high = bytes(q[h].high + 64 * p);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[k] = _mm512_dpbusd_epi32(acc[k], row[k][p], high);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[k] = _mm512_slli_epi32(acc[k], 8);
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      const __m512i low = bytes(q[h].high + 64 * (kPieces + p));
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[k] = _mm512_dpbusd_epi32(acc[k], row[k][p], low);
    }
    quarters[h] = sum_four(acc);
  }
  const __m512i sums = sum_quarters(quarters);
  const auto store = [&](int h, __m128i sum) {
    const __m128i exact = _mm_sub_epi32(sum, _mm_set1_epi32(q[h].excess));
    _mm_storeu_ps(scores + h * kRowBlock,
                  _mm_mul_ps(_mm_cvtepi32_ps(exact), _mm_set1_ps(q[h].step)));
  };
  store(0, _mm512_castsi512_si128(sums));
  if constexpr (kHeads > 1) store(1, _mm512_extracti32x4_epi32(sums, 1));
  if constexpr (kHeads > 2) store(2, _mm512_extracti32x4_epi32(sums, 2));
  if constexpr (kHeads > 3) store(3, _mm512_extracti32x4_epi32(sums, 3));
}

/// One KV head's heads against 4 rows.
template <int kPieces>
inline void score_rows(const Int8Query* q, std::int64_t heads, const std::int8_t* const (&rows)[4],
                       float* scores) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i row[4][kPieces];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      row[k][p] = _mm512_xor_si512(bytes(rows[k] + 64 * p), sign);
    }
  }
  for (std::int64_t h = 0; h < heads; h += 4, q += 4, scores += 4 * kRowBlock) {
    switch (heads - h) {
      case 1:
        score_heads<1, kPieces>(q, row, scores);
        break;
      case 2:
        score_heads<2, kPieces>(q, row, scores);
        break;
      case 3:
        score_heads<3, kPieces>(q, row, scores);
        break;
      default:
        score_heads<4, kPieces>(q, row, scores);
    }
  }
}

template <int kPieces>
void block_scores(const RowHeads& heads, const Int8Part& part, std::int64_t count, float* scores) {
  for (std::int64_t k = 0; k < count; k += 4) {
    const std::int8_t* first = part.rows + k * part.stride;
    if (k < part.later_count) {
      const std::int8_t* later = part.later + k * part.stride;
      for (std::int64_t at = 0; at < 4 * part.stride; at += 64) prefetch(later + at);
    }
    // The last row stands for those that are missing at the end of a block.
    const std::int8_t* rows[4];
    for (std::int64_t i = 0; i < 4; ++i) {
      rows[i] = first + (k + i < count ? i : count - 1 - k) * part.stride;
    }
    for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
      score_rows<kPieces>(heads.q_int8 + kv * heads.heads, heads.heads, rows,
                          scores + kv * heads.heads * kRowBlock + k);
      for (const std::int8_t*& row : rows) row += part.width;
    }
  }
}

void scores(const RowHeads& heads, const Int8Part& rows, std::int64_t count, float* scores) {
  switch (rows.width) {
    case 64:
      block_scores<1>(heads, rows, count, scores);
      break;
    case 128:
      block_scores<2>(heads, rows, count, scores);
      break;
    default:
      block_scores<4>(heads, rows, count, scores);
  }
}

void weigh(const float* weights, const float* scale, std::int64_t count, Int8Weights& to) {
  constexpr float kMost = 65535;
  __m512 scaled[4];
  __m512i most = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const std::int64_t left = count - 16 * v;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
    scaled[v] = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, weights + 16 * v),
                              _mm512_maskz_loadu_ps(mask, scale + 16 * v));
    // None is negative: as whole numbers they are in order, and a NaN is the largest.
    most = _mm512_max_epu32(most, _mm512_castps_si512(scaled[v]));
  }
  const float largest = _mm_cvtss_f32(
      _mm_castsi128_ps(_mm_set1_epi32(static_cast<int>(_mm512_reduce_max_epu32(most)))));
  to.step = largest / kMost;
  // Weights too small for the inverse are zero.
  const __m512 inverse = _mm512_set1_ps(largest > 1e-30F ? kMost / largest : 0.0F);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(scaled[v], inverse));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.high + 16 * v),
                    _mm512_cvtepi32_epi8(_mm512_srli_epi32(q, 8)));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.low + 16 * v), _mm512_cvtepi32_epi8(q));
  }
}

/// kHeads heads and 64 columns. Vector v holds columns 4v … 4v + 3 of every sixteen.
template <int kHeads>
inline void output_tile(const Int8Weights* weights, const float* factor, const std::int8_t* rows,
                        std::int64_t stride, std::int64_t count, const std::int8_t* later,
                        std::int64_t later_count, float* out, std::int64_t out_stride) {
  __m512i high[kHeads][4];
  __m512i low[kHeads][4];
#pragma GCC unroll 3
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) high[h][v] = low[h][v] = _mm512_setzero_si512();
  }
  const std::int8_t* last = rows + (count - 1) * stride;
  for (std::int64_t k = 0; k < count; k += 4) {
    const std::int8_t* at = rows + k * stride;
    if (k < later_count) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) prefetch(later + (k + i) * stride);
    }
    // What is missing at the end of a block has the weight zero.
    const auto row = [&](std::int64_t i) { return bytes(k + i < count ? at + i * stride : last); };
    const __m512i a = row(0);
    const __m512i b = row(1);
    const __m512i c = row(2);
    const __m512i d = row(3);
    const __m512i ab_low = _mm512_unpacklo_epi8(a, b);
    const __m512i ab_high = _mm512_unpackhi_epi8(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi8(c, d);
    const __m512i cd_high = _mm512_unpackhi_epi8(c, d);
    const __m512i four[4] = {
        _mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)};
#pragma GCC unroll 3
    for (int h = 0; h < kHeads; ++h) {
      const auto weight = [&](const std::uint8_t* from) {
        return _mm512_set1_epi32(*reinterpret_cast<const int*>(from + k));
      };
      const __m512i weight_high = weight(weights[h].high);
      const __m512i weight_low = weight(weights[h].low);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        high[h][v] = _mm512_dpbusd_epi32(high[h][v], weight_high, four[v]);
        low[h][v] = _mm512_dpbusd_epi32(low[h][v], weight_low, four[v]);
      }
    }
  }
#pragma GCC unroll 3
  for (int h = 0; h < kHeads; ++h) {
    const __m512 step = _mm512_set1_ps(weights[h].step);
    const __m512 keep = _mm512_set1_ps(factor[h]);
    __m512 sum[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sum[v] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[h][v], 8), low[h][v]));
    }
    // Sixteen columns are a quarter of each vector.
    const __m512 s01 = _mm512_shuffle_f32x4(sum[0], sum[1], 0x44);
    const __m512 s23 = _mm512_shuffle_f32x4(sum[2], sum[3], 0x44);
    const __m512 t01 = _mm512_shuffle_f32x4(sum[0], sum[1], 0xee);
    const __m512 t23 = _mm512_shuffle_f32x4(sum[2], sum[3], 0xee);
    const __m512 ordered[4] = {
        _mm512_shuffle_f32x4(s01, s23, 0x88), _mm512_shuffle_f32x4(s01, s23, 0xdd),
        _mm512_shuffle_f32x4(t01, t23, 0x88), _mm512_shuffle_f32x4(t01, t23, 0xdd)};
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      float* to = out + h * out_stride + 16 * v;
      _mm512_storeu_ps(to,
                       _mm512_fmadd_ps(step, ordered[v], _mm512_mul_ps(keep, _mm512_loadu_ps(to))));
    }
  }
}

void outputs(const RowHeads& heads, const Int8Part& rows, std::int64_t count,
             const Int8Weights* weights, const float* factor) {
  for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
    for (std::int64_t column = 0; column < rows.width; column += 64) {
      const std::int8_t* from = rows.rows + kv * rows.width + column;
      for (std::int64_t h = 0; h < heads.heads; h += 3) {
        const std::int64_t head = kv * heads.heads + h;
        float* out = heads.out + head * rows.width + column;
        const auto tile = [&](auto run) {
          run(weights + head, factor + head, from, rows.stride, count,
              rows.later + kv * rows.width + column, h == 0 ? rows.later_count : 0, out,
              rows.width);
        };
        switch (heads.heads - h) {
          case 1:
            tile(output_tile<1>);
            break;
          case 2:
            tile(output_tile<2>);
            break;
          default:
            tile(output_tile<3>);
        }
      }
    }
  }
}

}  // namespace

// Data, not a function: nothing of this file may run before the CPU was asked.
constinit const Int8Kernels kAvx512Int8{scores, weigh, outputs};

}  // namespace lca::cpu

#else

namespace lca::cpu {
constinit const Int8Kernels kAvx512Int8{nullptr, nullptr, nullptr};
}  // namespace lca::cpu

#endif
