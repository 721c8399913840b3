// Loads and the dot product, compiled once per instruction set. Included by foreach_target files.

#if defined(LCA_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LCA_DOT_INL_H_
#undef LCA_DOT_INL_H_
#else
#define LCA_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Never more than 16 lanes: panels of 32 hold two vectors of the widest kind.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

HWY_INLINE std::int64_t Lanes() { return static_cast<std::int64_t>(hn::Lanes(DF())); }

/// One vector of float32 from float32 or bfloat16 memory.
HWY_INLINE VF LoadAs(const float* from) { return hn::LoadU(DF(), from); }
HWY_INLINE VF LoadAs(const std::uint16_t* from) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
}

/// The first `count` < Lanes() values, the rest zero; reads nothing beyond them.
template <typename T>
HWY_INLINE VF LoadTail(const T* from, std::int64_t count) {
  T values[16] = {};
  std::memcpy(values, from, static_cast<std::size_t>(count) * sizeof(T));
  return LoadAs(values);
}

/// Σ a·b in float32, in `kSums` independent vectors: 2 for short rows, 4 to hide the latency of the
/// additions in long ones.
template <int kSums = 2, typename A, typename B>
HWY_INLINE float Dot(const A* a, const B* b, std::int64_t count) {
  static_assert(kSums == 2 || kSums == 4);
  const DF d;
  const std::int64_t lanes = Lanes();
  VF sum[kSums];
#pragma GCC unroll 4
  for (int s = 0; s < kSums; ++s) sum[s] = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kSums * lanes <= count; i += kSums * lanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      sum[s] = hn::MulAdd(LoadAs(a + i + s * lanes), LoadAs(b + i + s * lanes), sum[s]);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    sum[0] = hn::MulAdd(LoadAs(a + i), LoadAs(b + i), sum[0]);
  }
  if (i < count) {
    sum[1] = hn::MulAdd(LoadTail(a + i, count - i), LoadTail(b + i, count - i), sum[1]);
  }
  VF all = hn::Add(sum[0], sum[1]);
  if constexpr (kSums == 4) all = hn::Add(all, hn::Add(sum[2], sum[3]));
  return hn::GetLane(hn::SumOfLanes(d, all));
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#endif
