// The inner products of a tile on AVX-512 BF16. Highway 1.0 has no name for this instruction, so
// the three loops are written with intrinsics; this file alone is compiled for that CPU.
//
// Shapes: 12 rows of queries × one panel of 32, accumulated in 24 of the 32 registers. One
// instruction multiplies 32 pairs and adds them two by two in float32.

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

}  // namespace

// Data, not a function: nothing of this file may run before the CPU was asked.
constinit const Bf16Kernels kAvx512Bf16{panel_scores, panel_outputs, round_pairs};

}  // namespace lca::cpu

#else

namespace lca::cpu {
constinit const Bf16Kernels kAvx512Bf16{nullptr, nullptr, nullptr};
}  // namespace lca::cpu

#endif
