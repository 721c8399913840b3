// The register-blocked products of tiles, compiled once per instruction set. Included inside a
// foreach_target file, after simd-inl.h.

#if defined(LCA_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LCA_PANEL_INL_H_
#undef LCA_PANEL_INL_H_
#else
#define LCA_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "attention/cpu/simd-inl.h"
#include "attention/cpu/tile.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

// Rows of queries whose scores stay in registers: two vectors of keys each, beside the two vectors
// of the panel and a broadcast. 32 registers hold 12 rows, 16 hold 6.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif
static_assert(kTileRows % kRows == 0 && kTileRows % kBf16Rows == 0);

/// acc[r][v] += Σ_k left[k·kLeftStep + r·kLeftRow] · right[k·32 + v·lanes …].
template <int kLeftStep, int kLeftRow, int kVectors>
HWY_INLINE void Accumulate(const float* HWY_RESTRICT left, const float* HWY_RESTRICT right,
                           std::int64_t depth, VF (&acc)[kRows][kVectors]) {
  const DF d;
  const std::int64_t lanes = Lanes();
  for (std::int64_t k = 0; k < depth; ++k) {
    VF b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) b[v] = hn::LoadU(d, right + v * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const VF a = hn::Set(d, left[r * kLeftRow]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(a, b[v], acc[r][v]);
    }
    left += kLeftStep;
    right += kPanel;
  }
}

/// The same over the whole depth of packed queries.
template <int kVectors>
HWY_INLINE void AccumulateDepth(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys,
                                std::int64_t depth, VF (&acc)[kRows][kVectors]) {
  for (; depth > 0; depth -= kDepth, q += kRows * kDepth, keys += kDepth * kPanel) {
    Accumulate<1, kDepth>(q, keys, std::min(depth, kDepth), acc);
  }
}

/// Scores of kRows queries against kVectors vectors of keys from `column` on.
template <int kVectors>
HWY_INLINE void ColumnScores(const PanelPair<float>& p, std::int64_t column, float* scores,
                             std::int64_t stride) {
  const DF d;
  const std::int64_t lanes = Lanes();
  VF acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  AccumulateDepth(p.q_nope, p.k_nope + column, p.depth_nope, acc);
  AccumulateDepth(p.q_rope, p.k_rope + column, p.depth_rope, acc);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[r][v], d, scores + r * stride + column + v * lanes);
    }
  }
}

/// Scores of one call's queries against keys [from, to) of one panel of 32, and a few around them.
HWY_INLINE void PanelScores(const PanelPair<std::uint32_t>& p, bool bf16, std::int64_t from,
                            std::int64_t to, float* scores, std::int64_t stride) {
  if (bf16) {
    bf16_kernels()->scores(p, from, to, scores, stride);
    return;
  }
  const auto f = [](const std::uint32_t* words) { return reinterpret_cast<const float*>(words); };
  const PanelPair<float> pair{f(p.q_nope), f(p.k_nope), p.depth_nope,
                              f(p.q_rope), f(p.k_rope), p.depth_rope};
  const std::int64_t lanes = Lanes();
  std::int64_t column = from / lanes * lanes;
  for (; column + lanes < to; column += 2 * lanes) ColumnScores<2>(pair, column, scores, stride);
  if (column < to) ColumnScores<1>(pair, column, scores, stride);
}

/// Queries (or any rows) that one call of the products takes.
HWY_INLINE int RowsPerCall(bool bf16) { return bf16 ? kBf16Rows : kRows; }

/// Copies `count` rows into the form of packed queries, filled up with zero rows to whole calls.
inline void PackRows(const ConstTensor& rows, std::int64_t count, std::int64_t depth, bool bf16,
                     std::uint32_t* to) {
  if (depth == 0) return;
  const int unit = RowsPerCall(bf16);
  const std::int64_t words = round_up(bf16 ? ceil_div(depth, 2) : depth, kDepth);
  const bool widen = rows.dtype == DType::bf16 && !bf16;
  constexpr std::int64_t kBlock = 4 * kDepth;  // bytes
  const std::int64_t bytes = depth * static_cast<std::int64_t>(dtype_bytes(rows.dtype));
  for (std::int64_t r = 0; r < round_up(count, unit); ++r) {
    const std::int64_t in_call = r % unit;
    std::uint32_t* block = to + (r - in_call) * words + in_call * kDepth;
    const auto* row = static_cast<const char*>(rows.row(r));
    for (std::int64_t word = 0; word < words; word += kDepth, block += unit * kDepth) {
      const std::int64_t left = r < count && !widen ? bytes - 4 * word : 0;
      if (left >= kBlock) {
        std::memcpy(block, row + 4 * word, kBlock);  // nearly always
        continue;
      }
      std::memset(block, 0, kBlock);
      if (r < count && widen) {
        Widen(reinterpret_cast<const std::uint16_t*>(row) + word, std::min(kDepth, depth - word),
              reinterpret_cast<float*>(block));
      } else if (left > 0) {
        std::memcpy(block, row + 4 * word, static_cast<std::size_t>(left));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#endif
