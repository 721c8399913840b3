// Shared SIMD pieces, compiled once per instruction set. Included inside a foreach_target file.

#if defined(LCA_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LCA_SIMD_INL_H_
#undef LCA_SIMD_INL_H_
#else
#define LCA_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "ops/cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

/// 2^x for x ≤ 0 or so; −127 and below give exactly 0. Relative error below 2e-7. A NaN stays one.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  // The order of operands matters: x86's maximum returns the second where one is NaN.
  const VF clamped = hn::Max(hn::Set(d, -127.0F), x);
  // Adding 1.5·2²³ rounds to a whole number and leaves it in the lowest bits.
  const VF magic = hn::Set(d, 12582912.0F);
  const VF shifted = hn::Add(clamped, magic);
  const VF part = hn::Sub(clamped, hn::Sub(shifted, magic));
  // Minimax polynomial of 2^r on [−½, ½] with 2^0 = 1 exactly, so that the clamp gives 0.
  VF p = hn::Set(d, 1.3264726042e-3F);
  p = hn::MulAdd(p, part, hn::Set(d, 9.6715127221e-3F));
  p = hn::MulAdd(p, part, hn::Set(d, 5.5507337471e-2F));
  p = hn::MulAdd(p, part, hn::Set(d, 2.4022242084e-1F));
  p = hn::MulAdd(p, part, hn::Set(d, 6.9314697760e-1F));
  p = hn::MulAdd(p, part, hn::Set(d, 1.0F));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(du, p), power));
}

/// y += factor·x in float32.
template <typename X>
HWY_INLINE void AddScaled(float factor, const X* x, std::int64_t count, float* y) {
  const DF d;
  const std::int64_t lanes = Lanes();
  const VF f = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(f, LoadAs(x + i), hn::LoadU(d, y + i)), d, y + i);
  }
  if (i < count) {
    float tail[16];
    hn::StoreU(hn::MulAdd(f, LoadTail(x + i, count - i), LoadTail(y + i, count - i)), d, tail);
    std::memcpy(y + i, tail, static_cast<std::size_t>(count - i) * sizeof(float));
  }
}

/// to = float32 of from.
template <typename X>
HWY_INLINE void Widen(const X* from, std::int64_t count, float* to) {
  const DF d;
  const std::int64_t lanes = Lanes();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadAs(from + i), d, to + i);
  if (i < count) {
    float tail[16];
    hn::StoreU(LoadTail(from + i, count - i), d, tail);
    std::memcpy(to + i, tail, static_cast<std::size_t>(count - i) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#endif
