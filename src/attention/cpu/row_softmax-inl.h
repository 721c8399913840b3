// One step of the online softmax over a block of rows, compiled once per instruction set. Included
// inside a foreach_target file.

#if defined(LCA_ROW_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LCA_ROW_SOFTMAX_INL_H_
#undef LCA_ROW_SOFTMAX_INL_H_
#else
#define LCA_ROW_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "attention/cpu/rows.h"
#include "attention/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

/// Scores to weights 2^(x − top), in place; `factor` takes what earlier blocks are multiplied by.
HWY_INLINE void Softmax(const RowHeads& heads, std::int64_t count, float* scores, float* factor) {
  const DF d;
  const std::int64_t lanes = Lanes();
  const std::int64_t all = heads.kv_heads * heads.heads;
  // The largest of every head first: heads do not wait for each other's.
  float* largest = factor;
  for (std::int64_t h = 0; h < all; ++h) {
    const float* row = scores + h * kRowBlock;
    std::int64_t k = 0;
    VF most = hn::Set(d, heads.top[h]);
    for (; k + lanes <= count; k += lanes) most = hn::Max(hn::LoadU(d, row + k), most);
    float now = hn::GetLane(hn::MaxOfLanes(d, most));
    for (; k < count; ++k) now = std::max(now, row[k]);
    largest[h] = now;
  }
  for (std::int64_t h = 0; h < all; ++h) {
    float* row = scores + h * kRowBlock;
    const float now = largest[h];
    const VF top = hn::Set(d, now);
    VF sums = hn::Zero(d);
    std::int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
      const VF p = Exp2(hn::Sub(hn::LoadU(d, row + k), top));
      sums = hn::Add(sums, p);
      hn::StoreU(p, d, row + k);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; k < count; ++k) {
      row[k] = hn::GetLane(Exp2(hn::Set(d, row[k] - now)));
      sum += row[k];
    }
    factor[h] = hn::GetLane(Exp2(hn::Set(d, heads.top[h] - now)));
    heads.top[h] = now;
    heads.sum[h] = heads.sum[h] * factor[h] + sum;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#endif
