// Strips on AVX2, which multiplies unsigned by signed bytes and adds two neighbours into 16 bits.
// Quants of 4 to 6 bits leave room there for two to eight such sums; bytes leave none, and are
// multiplied as |q| and ±x̂.

#include "ops/cpu/strip_kernels.h"
#include "ops/cpu/strip_weave.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include <utility>

namespace lca {
namespace avx2 {
namespace {

struct Isa {
  static constexpr int kLanes = 8;
  static constexpr bool kSignedBytes = true;
  using Bytes = __m256i;
  using Ints = __m256i;
  using Floats = __m256;

  static Bytes load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Bytes low_bits(Bytes q) { return _mm256_and_si256(q, _mm256_set1_epi8(15)); }
  static Bytes high_bits(Bytes q) { return low_bits(_mm256_srli_epi16(q, 4)); }
  static Bytes merge(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  /// Bytes of Q8_0, which a strip holds moved by 128, as they were.
  static Bytes wide(Bytes q) { return _mm256_xor_si256(q, _mm256_set1_epi8(-128)); }
  /// Bits of every four bytes, moved down.
  static Bytes down(Bytes q, int by) { return _mm256_srli_epi32(q, by); }
  static Bytes exclusive_or(Bytes a, Bytes b) { return _mm256_xor_si256(a, b); }
  static Bytes bits_and(Bytes q, int mask) {
    return _mm256_and_si256(q, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  /// 16 where the bit of a row and column is set; four bits a row.
  static Bytes fifth(const std::uint8_t* bits, int lane) {
    int word;
    __builtin_memcpy(&word, bits + lane / 2, sizeof word);
    const Bytes places =
        _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const Bytes chosen = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const Bytes spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), places);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, chosen), chosen),
                            _mm256_set1_epi8(16));
  }

  static Ints bytes(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints signed_bytes(const std::uint8_t* from) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints ints_and(Ints x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); }
  /// The bits from `from` on.
  static Ints ints_high(Ints x, int from) { return _mm256_srli_epi32(x, from); }
  static Ints ints_join(Ints low4, Ints high2) {
    return _mm256_or_si256(low4, _mm256_slli_epi32(high2, 4));
  }

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats halves(const std::uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats product(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats times(Floats a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
  static Floats add_product(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* to, Floats x, int count) {
    if (count >= kLanes) {
      _mm256_storeu_ps(to, x);
      return;
    }
    float lanes[kLanes];
    _mm256_storeu_ps(lanes, x);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
  }

  /// Column c of each four.
  template <bool kSigned>
  static Ints column(Bytes q, int c) {
    const Ints top = c == 3 ? q : _mm256_slli_epi32(q, 24 - 8 * c);
    return kSigned ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24);
  }
  /// To bfloat16, ties to even, in the upper halves; the lower ones hold what is left.
  static Ints rounded(Floats x) {
    const Ints bits = _mm256_castps_si256(x);
    const Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  }
  static Ints upper(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi32(-65536)); }
  static Ints pair(Ints below, Ints above) {
    return _mm256_blend_epi16(_mm256_srli_epi32(below, 16), above, 0xaa);
  }
  static void transpose(Ints (&x)[8]) {
    Ints t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
      t[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      for (int j = 0; j < 2; ++j) {
        x[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
        x[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
      t[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) x[i] = t[i];
  }
  static void store_words(std::uint8_t* to, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }

  static constexpr int kPanelRows = 4;
  static Ints no_ints() { return _mm256_setzero_si256(); }
  static Ints load_ints(const std::int16_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_ints(std::int16_t* to, Ints x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), x);
  }
  static Floats load_floats(const float* from) { return _mm256_load_ps(from); }
  static Ints two_values(const std::int16_t* from) {
    int word;
    __builtin_memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
  }
  static Ints add_pairs(Ints sum, Ints w, Ints x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
  }
  /// Columns 2·kPair and 2·kPair + 1 of each four, in 16 bits.
  template <bool kSigned, int kPair>
  static Ints words(Bytes q) {
    if constexpr (kSigned) {
      const Bytes tops =
          _mm256_set1_epi64x(kPair == 0 ? static_cast<long long>(0x0580048001800080)
                                        : static_cast<long long>(0x0780068003800280));
      const Bytes places = _mm256_add_epi8(tops, eights());
      return _mm256_srai_epi16(_mm256_shuffle_epi8(q, places), 8);
    } else {
      const Bytes places = _mm256_add_epi8(
          _mm256_set1_epi64x(kPair == 0 ? static_cast<long long>(0x8005800480018000)
                                        : static_cast<long long>(0x8007800680038002)),
          eights());
      return _mm256_shuffle_epi8(q, places);
    }
  }
  /// 8 in the upper halves of 128 bits: the same places, of the next two rows.
  static Bytes eights() { return _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0); }

  template <int kLargest, bool kSigned>
  struct Accumulator {
    /// Sums of two products that fit into 16 bits.
    static constexpr int kFit = 32767 / (2 * kLargest * 127);
    static_assert(kFit == 1 || kFit == 2 || kFit >= 4);
    static constexpr int kSums = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit;

    Ints high = _mm256_setzero_si256(), low = high;
    Ints short_high = high, short_low = high;

    static Bytes four_values(const std::int8_t* from) {
      int word;
      __builtin_memcpy(&word, from, sizeof word);
      return _mm256_set1_epi32(word);
    }
    void add(int step, Bytes q, const std::int8_t* x_high, const std::int8_t* x_low) {
      Bytes h = four_values(x_high), l = four_values(x_low);
      if constexpr (kSigned) {
        h = _mm256_sign_epi8(h, q);
        l = _mm256_sign_epi8(l, q);
        q = _mm256_abs_epi8(q);
      }
      const Ints one = _mm256_maddubs_epi16(q, h), two = _mm256_maddubs_epi16(q, l);
      short_high = step % kSums == 0 ? one : _mm256_add_epi16(short_high, one);
      short_low = step % kSums == 0 ? two : _mm256_add_epi16(short_low, two);
      if (step % kSums == kSums - 1) {
        const Ints ones = _mm256_set1_epi16(1);
        high = _mm256_add_epi32(high, _mm256_madd_epi16(short_high, ones));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(short_low, ones));
      }
    }
    Ints total() const { return _mm256_add_epi32(_mm256_slli_epi32(high, 7), low); }
  };
};

// The order matters.
// clang-format off
#include "ops/cpu/strip_product-inl.h"
#include "ops/cpu/strip_unpack-inl.h"
#include "ops/cpu/strip_panel-inl.h"
// clang-format on

}  // namespace

const StripKernels kStrips = {strips_dot_of, unpack_of<bf16_bits>, unpack_of<float>, panels_dot_of};

}  // namespace avx2
}  // namespace lca

#elif defined(__x86_64__)

namespace lca::avx2 {
const StripKernels kStrips;
}  // namespace lca::avx2

#endif
