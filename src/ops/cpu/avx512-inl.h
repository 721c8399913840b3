#pragma once
// What the files compiled for AVX-512 share. Static: no copy of it may serve a file that is not.

#include <immintrin.h>

#include <cstring>

namespace lca {

/// Four bytes in every lane.
static inline __m512i avx512_four_bytes(const void* from) {
  int value;
  std::memcpy(&value, from, sizeof(value));
  return _mm512_set1_epi32(value);
}

/// 16 × 16 numbers, rows to columns.
static inline void avx512_turn(__m512i (&v)[16]) {
  __m512i fours[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i ab_low = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    const __m512i ab_high = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const __m512i cd_low = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    const __m512i cd_high = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    // Column c of four rows, one in each quarter: 0, 4, 8, 12 for the first, and so on.
    fours[i] = _mm512_unpacklo_epi64(ab_low, cd_low);
    fours[i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    fours[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    fours[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low_even = _mm512_shuffle_i32x4(fours[c], fours[c + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(fours[c], fours[c + 4], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], 0xdd);
    v[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    v[c + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    v[c + 8] = _mm512_shuffle_i32x4(low_even, high_even, 0xdd);
    v[c + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

}  // namespace lca
