// What the two files for NEON share: vectors of four rows of a strip, four columns of each.
// Included by each inside its unnamed namespace; it adds the Accumulator, so how bytes are
// multiplied (strip_product-inl.h says what an Isa has).

struct Neon {
  static constexpr int kLanes = 4;
  static constexpr bool kSignedBytes = true;
  using Bytes = uint8x16_t;
  using Ints = int32x4_t;
  using Floats = float32x4_t;

  static Bytes load(const std::uint8_t* from) { return vld1q_u8(from); }
  static Bytes low_bits(Bytes q) { return vandq_u8(q, vdupq_n_u8(15)); }
  static Bytes high_bits(Bytes q) { return vshrq_n_u8(q, 4); }
  static Bytes merge(Bytes a, Bytes b) { return vorrq_u8(a, b); }
  /// Bytes of Q8_0, which a strip holds moved by 128, as they were.
  static Bytes wide(Bytes q) { return veorq_u8(q, vdupq_n_u8(128)); }
  /// Bits of every four bytes, moved down.
  static Bytes down(Bytes q, int by) {
    return vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(q), vdupq_n_s32(-by)));
  }
  static Bytes exclusive_or(Bytes a, Bytes b) { return veorq_u8(a, b); }
  static Bytes bits_and(Bytes q, int mask) {
    return vandq_u8(q, vdupq_n_u8(static_cast<std::uint8_t>(mask)));
  }
  /// 16 where the bit of a row and column is set; four bits a row.
  static Bytes fifth(const std::uint8_t* bits, int lane) {
    const std::uint8_t* two = bits + lane / 2;
    const Bytes spread = vcombine_u8(vdup_n_u8(two[0]), vdup_n_u8(two[1]));
    const Bytes chosen = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    return vandq_u8(vtstq_u8(spread, chosen), vdupq_n_u8(16));
  }

  static Ints bytes(const std::uint8_t* from) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(from)))));
  }
  static Ints signed_bytes(const std::uint8_t* from) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(from)))));
  }
  static Ints ints_and(Ints x, int mask) { return vandq_s32(x, vdupq_n_s32(mask)); }
  /// The bits from `from` on, of a number that is not negative.
  static Ints ints_high(Ints x, int from) { return vshlq_s32(x, vdupq_n_s32(-from)); }
  static Ints ints_join(Ints low4, Ints high2) { return vorrq_s32(low4, vshlq_n_s32(high2, 4)); }

  static Floats zero() { return vdupq_n_f32(0); }
  static Floats all(float x) { return vdupq_n_f32(x); }
  static Floats halves(const std::uint8_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
  }
  static Floats to_floats(Ints x) { return vcvtq_f32_s32(x); }
  static Floats product(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats times(Floats a, float b) { return vmulq_n_f32(a, b); }
  static Floats add_product(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static void store(float* to, Floats x, int count) {
    if (count >= kLanes) {
      vst1q_f32(to, x);
      return;
    }
    float lanes[kLanes];
    vst1q_f32(lanes, x);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
  }

  /// Four activations, beside each row's four columns.
  static int8x16_t four_values(const std::int8_t* from) {
    std::int32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
  }

  /// Column c of each four.
  template <bool kSigned>
  static Ints column(Bytes q, int c) {
    const Ints top = vshlq_s32(vreinterpretq_s32_u8(q), vdupq_n_s32(24 - 8 * c));
    if constexpr (kSigned) return vshrq_n_s32(top, 24);
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(top), 24));
  }
  /// To bfloat16, ties to even, in the upper halves; the lower ones hold what is left.
  static Ints rounded(Floats x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vreinterpretq_s32_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd));
  }
  static Ints upper(Ints x) { return vandq_s32(x, vdupq_n_s32(-65536)); }
  static Ints pair(Ints below, Ints above) {
    return vreinterpretq_s32_u32(
        vsriq_n_u32(vreinterpretq_u32_s32(above), vreinterpretq_u32_s32(below), 16));
  }
  static void transpose(Ints (&x)[4]) {
    const auto wide = [](Ints v) { return vreinterpretq_s64_s32(v); };
    const Ints even01 = vtrn1q_s32(x[0], x[1]), odd01 = vtrn2q_s32(x[0], x[1]);
    const Ints even23 = vtrn1q_s32(x[2], x[3]), odd23 = vtrn2q_s32(x[2], x[3]);
    x[0] = vreinterpretq_s32_s64(vtrn1q_s64(wide(even01), wide(even23)));
    x[1] = vreinterpretq_s32_s64(vtrn1q_s64(wide(odd01), wide(odd23)));
    x[2] = vreinterpretq_s32_s64(vtrn2q_s64(wide(even01), wide(even23)));
    x[3] = vreinterpretq_s32_s64(vtrn2q_s64(wide(odd01), wide(odd23)));
  }
  static void store_words(std::uint8_t* to, Ints x) {
    vst1q_s32(reinterpret_cast<std::int32_t*>(to), x);
  }

 private:
  static uint8x8_t four_bytes(const std::uint8_t* from) {
    std::uint32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
};
