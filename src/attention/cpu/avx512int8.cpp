// Decoding on rows of 8 bits with AVX-512 VNNI; this file alone is compiled for that CPU.
//
// One instruction multiplies 64 pairs of bytes, one of them without sign, and adds them four by
// four. Queries and weights have 16 bits, so that a row takes two of them: as many as bfloat16 for
// half the memory, and no conversion. Scores: rows become q + 128 by one exclusive or, and sixteen
// of them are turned, so that lanes are rows and no sum goes across lanes. Outputs: four rows at a
// time, their values side by side; 3 heads × 64 columns in 24 registers.

#include "attention/cpu/int8_kernels.h"

#if defined(__AVX512VNNI__)

#include <immintrin.h>

#include "ops/cpu/avx512-inl.h"

namespace lca::cpu {

namespace {

inline __m512i bytes(const void* from) { return _mm512_loadu_si512(from); }

/// Into the second-level cache: what goes to the first waits in a shorter queue.
inline void prefetch(const std::int8_t* from) { __builtin_prefetch(from, 0, 2); }

/// 8 × 8 numbers, rows to columns.
inline void turn_eight(__m256 (&v)[8]) {
  __m256 pairs[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  __m256 fours[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

void turn(const float* rows, std::int64_t stride, std::int64_t columns, std::int64_t count,
          float factor, float* out) {
  for (std::int64_t c = 0; c < columns; c += 8) {
    const std::int64_t some = columns - c < 8 ? columns - c : 8;
    const auto mask = static_cast<__mmask8>((1 << some) - 1);
    for (std::int64_t k = 0; k < count; k += 8) {
      __m256 v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        v[i] = k + i < count ? _mm256_maskz_loadu_ps(mask, rows + (k + i) * stride + c)
                             : _mm256_setzero_ps();
      }
      turn_eight(v);
      for (std::int64_t i = 0; i < some; ++i) {
        _mm256_storeu_ps(out + (c + i) * kRowBlock + k,
                         _mm256_mul_ps(v[i], _mm256_set1_ps(factor)));
      }
    }
  }
}

/// Where the scores of sixteen rows and one KV head come from besides rows, and go.
struct ScoreTile {
  const float* scale;
  const float* bias;  ///< may be null
  float* to;          ///< one head's, the next 64 further
};

/// kHeads heads against 64 values of 16 rows: lanes are rows. Before the last piece of a row `to`
/// holds whole numbers.
template <int kHeads>
inline void score_heads(const Int8Query* q, std::int64_t piece, std::int64_t pieces,
                        const __m512i (&values)[16], const ScoreTile& tile) {
  __m512i high[kHeads];
  __m512i low[kHeads];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) high[h] = low[h] = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int v = 0; v < 16; ++v) {
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const std::int8_t* from = q[h].high + 64 * piece + 4 * v;
      high[h] = _mm512_dpbusd_epi32(high[h], values[v], avx512_four_bytes(from));
      low[h] = _mm512_dpbusd_epi32(low[h], values[v], avx512_four_bytes(from + 64 * pieces));
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    float* to = tile.to + h * kRowBlock;
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[h], 8), low[h]);
    if (piece > 0) sum = _mm512_add_epi32(sum, bytes(to));
    if (piece + 1 < pieces) {
      _mm512_storeu_si512(to, sum);
      continue;
    }
    const __m512i exact = _mm512_sub_epi32(sum, _mm512_set1_epi32(q[h].excess));
    const __m512 score = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_set1_ps(q[h].step));
    const __m512 scale = _mm512_loadu_ps(tile.scale);
    _mm512_storeu_ps(to, tile.bias == nullptr
                             ? _mm512_mul_ps(score, scale)
                             : _mm512_fmadd_ps(score, scale, _mm512_loadu_ps(tile.bias)));
  }
}

void scores(const RowHeads& heads, const Int8Part& part, std::int64_t count, const float* scale,
            const float* bias, float* scores) {
  constexpr std::int64_t kRows = 16;
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const std::int64_t pieces = part.width / 64;
  for (std::int64_t k = 0; k < count; k += kRows) {
    const std::int8_t* first = part.rows + k * part.stride;
    // The last row stands for those that are missing at the end of a block.
    const std::int64_t last = count - 1 - k;
    for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
      if (k < part.later_count) {
        const std::int64_t bytes = kRows * part.width;
        const std::int8_t* later = part.later + k * part.stride + kv * bytes;
        for (std::int64_t at = 0; at < bytes; at += 64) prefetch(later + at);
      }
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const std::int8_t* from = first + kv * part.width + 64 * piece;
        __m512i values[kRows];
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < kRows; ++i) {
          values[i] = _mm512_xor_si512(bytes(from + (i < last ? i : last) * part.stride), sign);
        }
        avx512_turn(values);
        for (std::int64_t h = 0; h < heads.heads; h += 4) {
          const std::int64_t head = kv * heads.heads + h;
          const Int8Query* q = heads.q_int8 + head;
          const ScoreTile tile{scale + kv * kRowBlock + k,
                               bias == nullptr ? nullptr : bias + kv * kRowBlock + k,
                               scores + head * kRowBlock + k};
          switch (heads.heads - h) {
            case 1:
              score_heads<1>(q, piece, pieces, values, tile);
              break;
            case 2:
              score_heads<2>(q, piece, pieces, values, tile);
              break;
            case 3:
              score_heads<3>(q, piece, pieces, values, tile);
              break;
            default:
              score_heads<4>(q, piece, pieces, values, tile);
          }
        }
      }
    }
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
      const __m512i weight_high = avx512_four_bytes(weights[h].high + k);
      const __m512i weight_low = avx512_four_bytes(weights[h].low + k);
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
constinit const Int8Kernels kAvx512Int8{turn, scores, weigh, outputs};

}  // namespace lca::cpu

#else

namespace lca::cpu {
constinit const Int8Kernels kAvx512Int8{nullptr, nullptr, nullptr, nullptr};
}  // namespace lca::cpu

#endif
