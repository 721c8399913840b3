#include "attention/cpu/rows.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rows.cpp"
#include "attention/cpu/foreach_target.h"
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <numbers>

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
/// Adds the blocks of four lanes of a vector up.
template <class D, class V>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> SumBlocks(D /*d*/, V v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}
#endif

/// Four accumulators to four sums.
HWY_INLINE void SumFour(VF a0, VF a1, VF a2, VF a3, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a0);
  to[1] = hn::GetLane(a1);
  to[2] = hn::GetLane(a2);
  to[3] = hn::GetLane(a3);
#else
  const DF d;
  const hn::Repartition<double, DF> dd;
  const auto pair = [&](VF x, VF y) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
  };
  const auto low = hn::BitCast(dd, pair(a0, a1));
  const auto high = hn::BitCast(dd, pair(a2, a3));
  // Every block of four lanes then holds four partial sums in order.
  const VF sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, low, high)),
                          hn::BitCast(d, hn::InterleaveUpper(dd, low, high)));
  hn::StoreU(SumBlocks(d, sums), hn::CappedTag<float, 4>(), to);
#endif
}

/// One part of a score: queries against the semantic, or the positional, part of rows.
struct ScorePart {
  const float* q;     ///< [heads][width]
  const float* rows;  ///< `stride` apart
  std::int64_t stride, width;

  ScorePart at(std::int64_t head, std::int64_t row) const {
    return {q + head * width, rows + row * stride, stride, width};
  }
};

/// acc[h][k] += q[h]·rows[k] for kHeads heads and 4 rows.
template <int kHeads>
HWY_INLINE void ScoreAccumulate(const ScorePart& part, VF (&acc)[kHeads][4]) {
  const std::int64_t lanes = Lanes();
  const auto step = [&](const auto& load, std::int64_t i) HWY_ATTR {
    VF row[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) row[k] = load(part.rows + k * part.stride + i);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const VF query = load(part.q + h * part.width + i);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[h][k] = hn::MulAdd(query, row[k], acc[h][k]);
    }
  };
  std::int64_t i = 0;
  for (; i + lanes <= part.width; i += lanes) {
    step([](const float* from) HWY_ATTR { return hn::LoadU(DF(), from); }, i);
  }
  if (i < part.width) {
    step([&](const float* from) HWY_ATTR { return LoadTail(from, part.width - i); }, i);
  }
}

/// Scores of kHeads heads and 4 rows.
template <int kHeads>
HWY_INLINE void ScoreTile(const ScorePart& semantic, const ScorePart& positional, float* scores) {
  VF acc[kHeads][4];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[h][k] = hn::Zero(DF());
  }
  ScoreAccumulate(semantic, acc);
  ScoreAccumulate(positional, acc);
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    SumFour(acc[h][0], acc[h][1], acc[h][2], acc[h][3], scores + h * kRowBlock);
  }
}

/// Scores of all heads against `count` ≤ 64 float32 rows.
void Scores(const ScorePart& semantic, const ScorePart& positional, std::int64_t heads,
            std::int64_t count, float* scores) {
  // Eight rows (18 KiB for DeepSeek-V2-Lite) and four queries at a time stay in the first-level
  // cache.
  constexpr std::int64_t kRowsAtOnce = 8;
  const std::int64_t whole = count / 4 * 4;
  for (std::int64_t first = 0; first < whole; first += kRowsAtOnce) {
    for (std::int64_t h = 0; h < heads; h += 4) {
      for (std::int64_t k = first; k < std::min(whole, first + kRowsAtOnce); k += 4) {
        const ScorePart s = semantic.at(h, k);
        const ScorePart p = positional.at(h, k);
        float* to = scores + h * kRowBlock + k;
        switch (std::min<std::int64_t>(4, heads - h)) {
          case 4:
            ScoreTile<4>(s, p, to);
            break;
          case 3:
            ScoreTile<3>(s, p, to);
            break;
          case 2:
            ScoreTile<2>(s, p, to);
            break;
          default:
            ScoreTile<1>(s, p, to);
        }
      }
    }
  }
  for (std::int64_t k = whole; k < count; ++k) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const ScorePart s = semantic.at(h, k);
      const ScorePart p = positional.at(h, k);
      scores[h * kRowBlock + k] = Dot(s.q, s.rows, s.width) + Dot(p.q, p.rows, p.width);
    }
  }
}

/// out[h] = out[h]·factor[h] + Σ_k weights[h][k]·rows[k] for kHeads heads and kVectors vectors.
template <int kHeads, int kVectors>
HWY_INLINE void OutputTile(const float* weights, const float* factor, const float* rows,
                           std::int64_t row_stride, std::int64_t count, float* out,
                           std::int64_t out_stride) {
  const DF d;
  const std::int64_t lanes = Lanes();
  VF acc[kHeads][kVectors];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    const VF f = hn::Set(d, factor[h]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[h][v] = hn::Mul(f, hn::LoadU(d, out + h * out_stride + v * lanes));
    }
  }
  for (std::int64_t k = 0; k < count; ++k) {
    VF row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, rows + k * row_stride + v * lanes);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const VF weight = hn::Set(d, weights[h * kRowBlock + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(weight, row[v], acc[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[h][v], d, out + h * out_stride + v * lanes);
    }
  }
}

// Vectors of a row that kHeads heads take together: 16 accumulators, or 8 where there are 16
// registers in all.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kAccumulators = 16;
#else
constexpr int kAccumulators = 8;
#endif

template <int kHeads>
void Outputs(const float* weights, const float* factor, const float* rows, std::int64_t row_stride,
             std::int64_t width, std::int64_t count, float* out) {
  const std::int64_t lanes = Lanes();
  std::int64_t i = 0;
  constexpr int kVectors = std::max(1, std::min(4, kAccumulators / kHeads));
  for (; i + kVectors * lanes <= width; i += kVectors * lanes) {
    OutputTile<kHeads, kVectors>(weights, factor, rows + i, row_stride, count, out + i, width);
  }
  for (; i + lanes <= width; i += lanes) {
    OutputTile<kHeads, 1>(weights, factor, rows + i, row_stride, count, out + i, width);
  }
  for (; i < width; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      float sum = out[h * width + i] * factor[h];
      for (std::int64_t k = 0; k < count; ++k) {
        sum += weights[h * kRowBlock + k] * rows[k * row_stride + i];
      }
      out[h * width + i] = sum;
    }
  }
}

/// Scores to weights 2^(x − top), in place.
void Softmax(const RowHeads& heads, std::int64_t count, float* scores, float* factor) {
  const DF d;
  const std::int64_t lanes = Lanes();
  for (std::int64_t h = 0; h < heads.heads; ++h) {
    float* row = scores + h * kRowBlock;
    const float before = heads.top[h];
    float now = before;
    for (std::int64_t k = 0; k < count; ++k) now = std::max(now, row[k]);
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
      row[k] = hn::GetLane(Exp2(hn::Sub(hn::Set(d, row[k]), top)));
      sum += row[k];
    }
    factor[h] = before == now ? 1.0F : std::exp2(before - now);
    heads.top[h] = now;
    heads.sum[h] = heads.sum[h] * factor[h] + sum;
  }
}

void RowsAttend(const RowHeads& heads, const RowSpan& rows) {
  float* scores = heads.scratch;
  float* wide_semantic = scores + heads.heads * kRowBlock;
  float* wide_positional = wide_semantic + kRowBlock * heads.d_semantic;
  float* factor = wide_positional + kRowBlock * heads.d_positional;
  for (std::int64_t first = 0; first < rows.count; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows.count - first);
    const float* semantic = nullptr;
    const float* positional = nullptr;
    std::int64_t semantic_stride = rows.semantic_stride;
    std::int64_t positional_stride = rows.positional_stride;
    if (rows.dtype == DType::f32) {
      semantic = static_cast<const float*>(rows.semantic) + first * semantic_stride;
      positional = static_cast<const float*>(rows.positional) + first * positional_stride;
    } else {
      // Widened once for all heads.
      const auto* s = static_cast<const std::uint16_t*>(rows.semantic) + first * semantic_stride;
      const auto* p =
          static_cast<const std::uint16_t*>(rows.positional) + first * positional_stride;
      for (std::int64_t k = 0; k < count; ++k) {
        Widen(s + k * semantic_stride, heads.d_semantic, wide_semantic + k * heads.d_semantic);
        Widen(p + k * positional_stride, heads.d_positional,
              wide_positional + k * heads.d_positional);
      }
      semantic = wide_semantic;
      positional = wide_positional;
      semantic_stride = heads.d_semantic;
      positional_stride = heads.d_positional;
    }
    const std::int64_t scored = heads.q_semantic == nullptr ? 0 : heads.d_semantic;
    Scores({heads.q_semantic, semantic, semantic_stride, scored},
           {heads.q_positional, positional, positional_stride, heads.d_positional}, heads.heads,
           count, scores);
    if (rows.bias != nullptr) {
      for (std::int64_t k = 0; k < count; ++k) {
        const float bias = rows.bias[(first + k) * rows.bias_stride] * std::numbers::log2e_v<float>;
        for (std::int64_t h = 0; h < heads.heads; ++h) scores[h * kRowBlock + k] += bias;
      }
    }
    Softmax(heads, count, scores, factor);
    // Eight heads at a time pass over the block half as often as four.
    for (std::int64_t h = 0; h < heads.heads; h += heads.heads - h >= 8 ? 8 : 4) {
      const float* weights = scores + h * kRowBlock;
      float* out = heads.out + h * heads.d_semantic;
      const auto outputs = [&](auto kHeads) HWY_ATTR {
        Outputs<decltype(kHeads)::value>(weights, factor + h, semantic, semantic_stride,
                                         heads.d_semantic, count, out);
      };
      switch (std::min<std::int64_t>(8, heads.heads - h)) {
        case 8:
          outputs(std::integral_constant<int, 8>());
          break;
        case 7:
        case 6:
        case 5:
        case 4:
          outputs(std::integral_constant<int, 4>());
          break;
        case 3:
          outputs(std::integral_constant<int, 3>());
          break;
        case 2:
          outputs(std::integral_constant<int, 2>());
          break;
        default:
          outputs(std::integral_constant<int, 1>());
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(RowsAttend);

void rows_begin(const RowHeads& heads) {
  std::fill_n(heads.out, heads.heads * heads.d_semantic, 0.0F);
  std::fill_n(heads.top, heads.heads, -1e30F);
  std::fill_n(heads.sum, heads.heads, 0.0F);
}

void rows_attend(const RowHeads& heads, const RowSpan& rows) {
  HWY_DYNAMIC_DISPATCH(RowsAttend)(heads, rows);
}

}  // namespace lca::cpu
#endif
