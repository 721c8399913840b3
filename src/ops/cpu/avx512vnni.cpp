// Strips on AVX-512 VNNI: one instruction multiplies 64 pairs of bytes, unsigned by signed, and
// adds them four by four. Four columns of sixteen rows are one vector; a run of 32 columns takes
// sixteen such products for a row of activations, eight for their high and eight for their low
// parts.

#include "ops/cpu/strip_kernels.h"
#include "ops/cpu/strip_weave.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)

#include <immintrin.h>

#include <utility>

#include "ops/cpu/avx512-inl.h"

namespace lca {
namespace vnni {
namespace {

struct Isa {
  static constexpr int kLanes = 16;
  static constexpr bool kSignedBytes = false;
  using Bytes = __m512i;
  using Ints = __m512i;
  using Floats = __m512;

  static Bytes load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  static Bytes low_bits(Bytes q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }
  static Bytes high_bits(Bytes q) { return low_bits(_mm512_srli_epi16(q, 4)); }
  static Bytes merge(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  /// Bytes of Q8_0, which a strip holds moved by 128: unsigned.
  static Bytes wide(Bytes q) { return q; }
  /// Bits of every four bytes, moved down.
  static Bytes down(Bytes q, int by) { return _mm512_srli_epi32(q, static_cast<unsigned>(by)); }
  static Bytes exclusive_or(Bytes a, Bytes b) { return _mm512_xor_si512(a, b); }
  static Bytes bits_and(Bytes q, int mask) {
    return _mm512_and_si512(q, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  /// 16 where the bit of a row and column is set; four bits a row.
  static Bytes fifth(const std::uint8_t* bits, int) {
    std::uint64_t set;
    __builtin_memcpy(&set, bits, sizeof set);
    return _mm512_maskz_set1_epi8(set, 16);
  }

  static Ints bytes(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints signed_bytes(const std::uint8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints ints_and(Ints x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
  /// The bits from `from` on.
  static Ints ints_high(Ints x, int from) {
    return _mm512_srli_epi32(x, static_cast<unsigned>(from));
  }
  static Ints ints_join(Ints low4, Ints high2) {
    return _mm512_or_si512(low4, _mm512_slli_epi32(high2, 4));
  }

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats halves(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Floats product(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats times(Floats a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
  static Floats add_product(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* to, Floats x, int count) {
    const auto kept = static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
    _mm512_mask_storeu_ps(to, kept, x);
  }

  /// Column c of each four.
  template <bool kSigned>
  static Ints column(Bytes q, int c) {
    const Ints top = c == 3 ? q : _mm512_slli_epi32(q, static_cast<unsigned>(24 - 8 * c));
    return kSigned ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24);
  }
  /// To bfloat16, ties to even, in the upper halves; the lower ones hold what is left.
  static Ints rounded(Floats x) {
    const Ints bits = _mm512_castps_si512(x);
    const Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  }
  static Ints upper(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi32(-65536)); }
  static Ints pair(Ints below, Ints above) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(below, 16), above);
  }
  static void transpose(Ints (&x)[16]) { avx512_turn(x); }
  static void store_words(std::uint8_t* to, Ints x) { _mm512_storeu_si512(to, x); }

  template <int kLargest, bool kSigned>
  struct Accumulator {
    Ints high = _mm512_setzero_si512(), low = high;

    void add(int, Bytes q, const std::int8_t* x_high, const std::int8_t* x_low) {
      high = _mm512_dpbusd_epi32(high, q, avx512_four_bytes(x_high));
      low = _mm512_dpbusd_epi32(low, q, avx512_four_bytes(x_low));
    }
    Ints total() const { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }
  };
};

// The order matters.
// clang-format off
#include "ops/cpu/strip_product-inl.h"
#include "ops/cpu/strip_unpack-inl.h"
// clang-format on

}  // namespace

const StripKernels kStrips = {strips_dot_of, unpack_of<bf16_bits>, unpack_of<float>};

}  // namespace vnni
}  // namespace lca

#elif defined(__x86_64__)

namespace lca::vnni {
const StripKernels kStrips;
}  // namespace lca::vnni

#endif
