#include "attention/cpu/rows.h"

#include "attention/cpu/int8_kernels.h"
#include "attention/cpu/tile.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rows.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/row_softmax-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>
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
template <typename T>
struct ScorePart {
  const float* q;  ///< [heads][width]
  const T* rows;   ///< `stride` apart
  std::int64_t stride, width;

  ScorePart at(std::int64_t head, std::int64_t row) const {
    return {q + head * width, rows + row * stride, stride, width};
  }
};

/// acc[h][k] += q[h]·rows[k] for kHeads heads and 4 rows.
template <int kHeads, typename T>
HWY_INLINE void ScoreAccumulate(const ScorePart<T>& part, VF (&acc)[kHeads][4]) {
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
    step([](const auto* from) HWY_ATTR { return LoadAs(from); }, i);
  }
  if (i < part.width) {
    step([&](const auto* from) HWY_ATTR { return LoadTail(from, part.width - i); }, i);
  }
}

/// Scores of kHeads heads and 4 rows.
template <int kHeads, typename T>
HWY_INLINE void ScoreTile(const ScorePart<T>& semantic, const ScorePart<T>& positional,
                          float* scores) {
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

/// Scores of one KV head's heads against `count` ≤ 4 rows.
template <typename T>
HWY_INLINE void ScoreRows(const ScorePart<T>& semantic, const ScorePart<T>& positional,
                          std::int64_t heads, std::int64_t count, float* scores) {
  for (std::int64_t h = 0; h < heads; h += 4) {
    const ScorePart<T> s = semantic.at(h, 0);
    const ScorePart<T> p = positional.at(h, 0);
    float* to = scores + h * kRowBlock;
    if (count < 4) {
      for (std::int64_t i = 0; i < std::min<std::int64_t>(4, heads - h); ++i) {
        for (std::int64_t k = 0; k < count; ++k) {
          const ScorePart<T> si = s.at(i, k);
          const ScorePart<T> pi = p.at(i, k);
          to[i * kRowBlock + k] = Dot(si.q, si.rows, si.width) + Dot(pi.q, pi.rows, pi.width);
        }
      }
      continue;
    }
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

/// How many rows ahead the positional part is asked for; the semantic one, which is needed later,
/// when the positional one is scored.
constexpr std::int64_t kAhead = 32;

/// out[h] = out[h]·factor[h] + Σ_k weights[h][k]·rows[k] for kHeads heads and kVectors vectors.
template <int kHeads, int kVectors, typename T>
HWY_INLINE void OutputTile(const float* weights, const float* factor, const T* rows,
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
    for (int v = 0; v < kVectors; ++v) row[v] = LoadAs(rows + k * row_stride + v * lanes);
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

template <int kHeads, typename T>
void Outputs(const float* weights, const float* factor, const T* rows, std::int64_t row_stride,
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
        sum += weights[h * kRowBlock + k] * hn::GetLane(LoadTail(rows + k * row_stride + i, 1));
      }
      out[h * width + i] = sum;
    }
  }
}

/// Rows of one dtype.
template <typename T>
struct TypedRows {
  const T* semantic;
  const T* positional;
  std::int64_t semantic_stride, positional_stride;
};

/// One block of at most 64 rows.
template <typename T>
void AttendBlock(const RowHeads& heads, const TypedRows<T>& rows, std::int64_t count,
                 const float* bias, std::int64_t bias_stride) {
  float* scores = heads.scratch;
  float* factor = scores + heads.kv_heads * heads.heads * kRowBlock;
  const std::int64_t scored = heads.q_semantic == nullptr ? 0 : heads.d_semantic;
  for (std::int64_t k = 0; k < count; k += 4) {
    const std::int64_t some = std::min<std::int64_t>(4, count - k);
    const T* positional = rows.positional + k * rows.positional_stride;
    const T* semantic = rows.semantic + k * rows.semantic_stride;
    if (scored == 0) {
      const auto bytes = some * static_cast<std::int64_t>(sizeof(T));
      prefetch_lines(positional + kAhead * rows.positional_stride, bytes * rows.positional_stride);
      prefetch_lines(semantic, bytes * rows.semantic_stride);
    }
    for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
      const std::int64_t head = kv * heads.heads;
      if constexpr (sizeof(T) == sizeof(std::uint16_t)) {
        if (heads.q_bf16 != nullptr) {
          // A row of zeros stands for those that are missing at the end of a block.
          std::int64_t stride = rows.positional_stride;
          const T* from = positional + kv * heads.d_positional;
          if (some < 4) {
            T* filled = reinterpret_cast<T*>(factor + heads.kv_heads * heads.heads);
            for (std::int64_t i = 0; i < 4; ++i) {
              if (i < some) {
                std::memcpy(filled + i * heads.d_positional, from + i * stride,
                            static_cast<std::size_t>(heads.d_positional) * sizeof(T));
              } else {
                std::fill_n(filled + i * heads.d_positional, heads.d_positional, T{0});
              }
            }
            from = filled;
            stride = heads.d_positional;
          }
          bf16_kernels()->row_scores(heads.q_bf16 + head * heads.d_positional, heads.heads,
                                     heads.d_positional, from, stride, heads.q_factor,
                                     scores + head * kRowBlock + k, kRowBlock);
          continue;
        }
      }
      ScoreRows<T>(
          {heads.q_semantic == nullptr ? nullptr : heads.q_semantic + head * scored,
           semantic + kv * heads.d_semantic, rows.semantic_stride, scored},
          {heads.q_positional + head * heads.d_positional, positional + kv * heads.d_positional,
           rows.positional_stride, heads.d_positional},
          heads.heads, some, scores + head * kRowBlock + k);
    }
  }
  if (bias != nullptr) {
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t head = 0; head < heads.kv_heads * heads.heads; ++head) {
        const std::int64_t kv = bias_stride > 0 ? head / heads.heads : 0;
        scores[head * kRowBlock + k] += bias[k * bias_stride + kv] * std::numbers::log2e_v<float>;
      }
    }
  }
  Softmax(heads, count, scores, factor);
  if constexpr (sizeof(T) == sizeof(std::uint16_t)) {
    if (heads.q_bf16 != nullptr) {
      const Bf16Kernels& kernels = *bf16_kernels();
      for (std::int64_t head = 0; head < heads.kv_heads * heads.heads; ++head) {
        float* row = scores + head * kRowBlock;
        if (count % 2 != 0) row[count] = 0;
        kernels.round_pairs(row, (count + 1) / 2, reinterpret_cast<std::uint32_t*>(row));
      }
      for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
        const std::int64_t head = kv * heads.heads;
        kernels.row_outputs(reinterpret_cast<const std::uint32_t*>(scores + head * kRowBlock),
                            kRowBlock, factor + head, heads.heads, heads.d_semantic,
                            rows.semantic + kv * heads.d_semantic, rows.semantic_stride, count,
                            heads.out + head * heads.d_semantic);
      }
      return;
    }
  }
  for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
    const T* semantic = rows.semantic + kv * heads.d_semantic;
    // Eight heads at a time pass over the block half as often as four.
    for (std::int64_t h = 0; h < heads.heads; h += heads.heads - h >= 8 ? 8 : 4) {
      const std::int64_t head = kv * heads.heads + h;
      const auto outputs = [&](auto kHeads) HWY_ATTR {
        Outputs<decltype(kHeads)::value>(scores + head * kRowBlock, factor + head, semantic,
                                         rows.semantic_stride, heads.d_semantic, count,
                                         heads.out + head * heads.d_semantic);
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

void RowsAttend(const RowHeads& heads, const RowSpan& rows) {
  // Widening pays where many heads read the same rows.
  constexpr std::int64_t kMany = 8;
  const std::int64_t semantic_width = heads.kv_heads * heads.d_semantic;
  const std::int64_t positional_width = heads.kv_heads * heads.d_positional;
  float* wide_semantic = heads.scratch + heads.kv_heads * heads.heads * (kRowBlock + 1);
  float* wide_positional = wide_semantic + kRowBlock * semantic_width;
  if (heads.q_semantic == nullptr) {
    prefetch_lines(rows.positional, std::min(kAhead, rows.count) * rows.positional_stride *
                                        static_cast<std::int64_t>(dtype_bytes(rows.dtype)));
  }
  for (std::int64_t first = 0; first < rows.count; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows.count - first);
    const float* bias = rows.bias == nullptr ? nullptr : rows.bias + first * rows.bias_stride;
    const auto block = [&]<typename T>(const T* semantic, const T* positional) HWY_ATTR {
      AttendBlock<T>(
          heads,
          {semantic + first * rows.semantic_stride, positional + first * rows.positional_stride,
           rows.semantic_stride, rows.positional_stride},
          count, bias, rows.bias_stride);
    };
    if (rows.dtype == DType::f32) {
      block(static_cast<const float*>(rows.semantic), static_cast<const float*>(rows.positional));
      continue;
    }
    const auto* semantic = static_cast<const std::uint16_t*>(rows.semantic);
    const auto* positional = static_cast<const std::uint16_t*>(rows.positional);
    if (heads.heads < kMany || heads.q_bf16 != nullptr) {
      block(semantic, positional);
      continue;
    }
    for (std::int64_t k = 0; k < count; ++k) {
      Widen(semantic + (first + k) * rows.semantic_stride, semantic_width,
            wide_semantic + k * semantic_width);
      Widen(positional + (first + k) * rows.positional_stride, positional_width,
            wide_positional + k * positional_width);
    }
    AttendBlock<float>(heads, {wide_semantic, wide_positional, semantic_width, positional_width},
                       count, bias, rows.bias_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(RowsAttend);

bool rows_run_bf16(DType dtype, std::int64_t d_semantic, std::int64_t d_positional) {
  constexpr std::int64_t kPiece = 32;
  return dtype == DType::bf16 && d_semantic % kPiece == 0 && d_positional % kPiece == 0 &&
         bf16_kernels() != nullptr;
}

void rows_begin(const RowHeads& heads) {
  const std::int64_t count = heads.kv_heads * heads.heads;
  std::fill_n(heads.out, count * heads.d_semantic, 0.0F);
  std::fill_n(heads.top, count, -1e30F);
  std::fill_n(heads.sum, count, 0.0F);
}

void rows_attend(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  if (rows.format != nullptr) {
    rows_attend_int8(heads, rows, next);
  } else {
    HWY_DYNAMIC_DISPATCH(RowsAttend)(heads, rows);
  }
}

}  // namespace lca::cpu
#endif
