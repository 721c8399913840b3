#include "attention/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rows.cpp"
#include "attention/cpu/targets.h"
#include <hwy/foreach_target.h>
// clang-format off: the shared pieces must come after foreach_target
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <numbers>

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

/// Four accumulators to four sums.
HWY_INLINE void SumFour(VF a0, VF a1, VF a2, VF a3, float* to) {
  const DF d;
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a0);
  to[1] = hn::GetLane(a1);
  to[2] = hn::GetLane(a2);
  to[3] = hn::GetLane(a3);
  (void)d;
#else
  const hn::Repartition<double, DF> dd;
  const auto pair = [&](VF x, VF y) {
    return hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
  };
  const auto low = hn::BitCast(dd, pair(a0, a1));
  const auto high = hn::BitCast(dd, pair(a2, a3));
  const VF sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, low, high)),
                          hn::BitCast(d, hn::InterleaveUpper(dd, low, high)));
  // Every block of four lanes now holds four partial sums in order.
  float blocks[16];
  hn::StoreU(sums, d, blocks);
  const std::int64_t lanes = Lanes();
  for (int i = 0; i < 4; ++i) {
    float sum = blocks[i];
    for (std::int64_t block = 4; block < lanes; block += 4) sum += blocks[block + i];
    to[i] = sum;
  }
#endif
}

/// scores[h][k] += q[h]·rows[k] for kHeads heads and 4 rows.
template <int kHeads>
HWY_INLINE void ScoreTile(const float* q, const float* rows, std::int64_t row_stride,
                          std::int64_t width, bool add, float* scores) {
  const DF d;
  const std::int64_t lanes = Lanes();
  VF acc[kHeads][4];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) acc[h][k] = hn::Zero(d);
  }
  const auto step = [&](const auto& load, std::int64_t i) HWY_ATTR {
    VF row[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) row[k] = load(rows + k * row_stride + i);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const VF query = load(q + h * width + i);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[h][k] = hn::MulAdd(query, row[k], acc[h][k]);
    }
  };
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    step([](const float* from) HWY_ATTR { return hn::LoadU(DF(), from); }, i);
  }
  if (i < width) {
    step([&](const float* from) HWY_ATTR { return LoadTail(from, width - i); }, i);
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    float sums[4];
    SumFour(acc[h][0], acc[h][1], acc[h][2], acc[h][3], sums);
    float* to = scores + h * kRowBlock;
    for (int k = 0; k < 4; ++k) to[k] = add ? to[k] + sums[k] : sums[k];
  }
}

/// Scores of all heads against `count` ≤ 64 float32 rows.
void Scores(const float* q, std::int64_t heads, const float* rows, std::int64_t row_stride,
            std::int64_t width, std::int64_t count, bool add, float* scores) {
  for (std::int64_t k = 0; k < count; k += 4) {
    // The last few rows are scored again with those before them, or alone where there are none.
    if (k + 4 > count) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = k; i < count; ++i) {
          float* to = scores + h * kRowBlock + i;
          const float sum = Dot(q + h * width, rows + i * row_stride, width);
          *to = add ? *to + sum : sum;
        }
      }
      return;
    }
    const float* tile = rows + k * row_stride;
    std::int64_t h = 0;
    for (; h + 4 <= heads; h += 4) {
      ScoreTile<4>(q + h * width, tile, row_stride, width, add, scores + h * kRowBlock + k);
    }
    const float* rest = q + h * width;
    float* to = scores + h * kRowBlock + k;
    if (heads - h == 3) ScoreTile<3>(rest, tile, row_stride, width, add, to);
    if (heads - h == 2) ScoreTile<2>(rest, tile, row_stride, width, add, to);
    if (heads - h == 1) ScoreTile<1>(rest, tile, row_stride, width, add, to);
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
#pragma GCC unroll 4
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
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const VF weight = hn::Set(d, weights[h * kRowBlock + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(weight, row[v], acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[h][v], d, out + h * out_stride + v * lanes);
    }
  }
}

template <int kHeads>
void Outputs(const float* weights, const float* factor, const float* rows, std::int64_t row_stride,
             std::int64_t width, std::int64_t count, float* out) {
  const std::int64_t lanes = Lanes();
  std::int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    OutputTile<kHeads, 4>(weights, factor, rows + i, row_stride, count, out + i, width);
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
    Scores(heads.q_positional, heads.heads, positional, positional_stride, heads.d_positional,
           count, false, scores);
    if (heads.q_semantic != nullptr) {
      Scores(heads.q_semantic, heads.heads, semantic, semantic_stride, heads.d_semantic, count,
             true, scores);
    }
    if (rows.bias != nullptr) {
      for (std::int64_t k = 0; k < count; ++k) {
        const float bias =
            rows.bias[(first + k) * rows.bias_stride] * std::numbers::log2e_v<float>;
        for (std::int64_t h = 0; h < heads.heads; ++h) scores[h * kRowBlock + k] += bias;
      }
    }
    Softmax(heads, count, scores, factor);
    for (std::int64_t h = 0; h < heads.heads; h += 4) {
      const float* weights = scores + h * kRowBlock;
      float* out = heads.out + h * heads.d_semantic;
      const auto outputs = [&](auto kHeads) HWY_ATTR {
        Outputs<decltype(kHeads)::value>(weights, factor + h, semantic, semantic_stride,
                                         heads.d_semantic, count, out);
      };
      switch (std::min<std::int64_t>(4, heads.heads - h)) {
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
