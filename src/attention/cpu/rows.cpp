#include "attention/cpu/rows.h"

#include "attention/cpu/int8_kernels.h"
#include "attention/cpu/tile.h"
#include "core/cpu_level.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rows.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/workspace.h"

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

/// Asks for memory, into the second-level cache: what goes to the first waits in a shorter queue.
HWY_INLINE void PrefetchLines(const void* from, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  const auto* line = static_cast<const std::uint8_t*>(from);
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(line + at, 0, 2);
}

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

/// Scores to weights 2^(x − top), in place.
void Softmax(const RowHeads& heads, std::int64_t count, float* scores, float* factor) {
  const DF d;
  const std::int64_t lanes = Lanes();
  for (std::int64_t h = 0; h < heads.kv_heads * heads.heads; ++h) {
    float* row = scores + h * kRowBlock;
    const float before = heads.top[h];
    std::int64_t at = 0;
    VF most = hn::Set(d, before);
    for (; at + lanes <= count; at += lanes) most = hn::Max(hn::LoadU(d, row + at), most);
    float now = hn::GetLane(hn::MaxOfLanes(d, most));
    for (; at < count; ++at) now = std::max(now, row[at]);
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
      PrefetchLines(positional + kAhead * rows.positional_stride, bytes * rows.positional_stride);
      PrefetchLines(semantic, bytes * rows.semantic_stride);
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

/// One block of rows of 8 bits.
void AttendBlockInt8(const RowHeads& heads, const Int8Part& semantic, const Int8Part& positional,
                     const RowFormat& format, const float* scales, std::int64_t count,
                     const float* bias, std::int64_t bias_stride) {
  const Int8Kernels& kernels = *int8_kernels();
  const DF d;
  const std::int64_t lanes = Lanes();
  const std::int64_t all = heads.kv_heads * heads.heads;
  float* scores = heads.scratch;
  float* factor = scores + all * kRowBlock;
  // Beyond is room for widened rows, which there are none of.
  auto* weights = reinterpret_cast<Int8Weights*>(
      align_up(reinterpret_cast<std::uintptr_t>(factor + all), alignof(Int8Weights)));
  auto* by_head = reinterpret_cast<float*>(weights + all);  // scales of keys, of values; biases
  float* value_scale = by_head + heads.kv_heads * kRowBlock;
  float* biases = value_scale + heads.kv_heads * kRowBlock;
  for (std::int64_t k = 0; k < count; ++k) {
    const float* row = scales + k * format.scales();
    for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
      by_head[kv * kRowBlock + k] = row[format.positional_scale() + kv];
      value_scale[kv * kRowBlock + k] = row[kv];
    }
  }
  if (bias != nullptr) {
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t kv = 0; kv < heads.kv_heads; ++kv) {
        biases[kv * kRowBlock + k] =
            bias[k * bias_stride + (bias_stride > 0 ? kv : 0)] * std::numbers::log2e_v<float>;
      }
    }
  }
  kernels.scores(heads, positional, count, scores);
  for (std::int64_t head = 0; head < all; ++head) {
    float* row = scores + head * kRowBlock;
    const float* scale = by_head + head / heads.heads * kRowBlock;
    const float* add = bias == nullptr ? nullptr : biases + head / heads.heads * kRowBlock;
    // Whole vectors: a block has room for 64 rows, and nothing reads those that are missing.
    for (std::int64_t k = 0; k < count; k += lanes) {
      const VF score = hn::LoadU(d, row + k);
      const VF s = hn::LoadU(d, scale + k);
      hn::StoreU(add == nullptr ? hn::Mul(score, s) : hn::MulAdd(score, s, hn::LoadU(d, add + k)),
                 d, row + k);
    }
  }
  Softmax(heads, count, scores, factor);
  for (std::int64_t head = 0; head < all; ++head) {
    kernels.weigh(scores + head * kRowBlock, value_scale + head / heads.heads * kRowBlock, count,
                  weights[head]);
  }
  kernels.outputs(heads, semantic, count, weights, factor);
}

/// Rows of 8 bits: multiplied as they are, or widened block by block.
void RowsAttendInt8(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  const RowFormat& format = *rows.format;
  const CacheRows stored{static_cast<const std::byte*>(rows.semantic),
                         static_cast<const std::byte*>(rows.positional), rows.scales, rows.count};
  const std::int64_t semantic_width = heads.kv_heads * heads.d_semantic;
  const std::int64_t positional_width = heads.kv_heads * heads.d_positional;
  float* wide_semantic = heads.scratch + heads.kv_heads * heads.heads * (kRowBlock + 1);
  float* wide_positional = wide_semantic + kRowBlock * semantic_width;
  const auto* semantic = static_cast<const std::int8_t*>(rows.semantic);
  const auto* positional = static_cast<const std::int8_t*>(rows.positional);
  const bool next_int8 = next != nullptr && next->format != nullptr;
  for (std::int64_t first = 0; first < rows.count; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows.count - first);
    const float* bias = rows.bias == nullptr ? nullptr : rows.bias + first * rows.bias_stride;
    if (heads.q_int8 != nullptr) {
      Int8Part values{semantic + first * semantic_width, semantic_width, heads.d_semantic};
      Int8Part keys{positional + first * positional_width, positional_width, heads.d_positional};
      const bool last = first + count == rows.count;
      if (!last || next_int8) {
        // What is read next: the next block, or the first one of the next rows.
        keys.later = last ? static_cast<const std::int8_t*>(next->positional)
                          : keys.rows + count * positional_width;
        values.later = last ? static_cast<const std::int8_t*>(next->semantic)
                            : values.rows + count * semantic_width;
        const std::int64_t left = last ? next->count : rows.count - first - count;
        keys.later_count = values.later_count = std::min(kRowBlock, left);
        const float* scales = last ? next->scales : rows.scales + (first + count) * format.scales();
        PrefetchLines(scales, keys.later_count * format.scale_bytes());
      }
      AttendBlockInt8(heads, values, keys, format, rows.scales + first * format.scales(), count,
                      bias, rows.bias_stride);
      continue;
    }
    for (std::int64_t k = 0; k < count; ++k) {
      format.semantic_read(stored, first + k, wide_semantic + k * semantic_width);
      format.positional_read(stored, first + k, wide_positional + k * positional_width);
    }
    AttendBlock<float>(heads, {wide_semantic, wide_positional, semantic_width, positional_width},
                       count, bias, rows.bias_stride);
  }
}

Int8Query QueryQuantise(const float* HWY_RESTRICT from, std::int64_t count,
                        std::int8_t* HWY_RESTRICT to) {
  constexpr float kMost = 127 * 256;
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // A NaN is kept.
    const float size = std::abs(from[i]);
    largest = size <= largest ? largest : size;
  }
  const float inverse = largest > 1e-30F ? kMost / largest : 0.0F;
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // Adding 1.5·2²³ rounds to a whole number and leaves it in the lowest bits.
    const float shifted = from[i] * inverse + 12582912.0F;
    std::int32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    const std::int32_t q = bits - 0x4b400000;
    to[i] = static_cast<std::int8_t>((q + 128) >> 8);
    to[count + i] = static_cast<std::int8_t>(q);
    sum += static_cast<std::int16_t>(q);
  }
  return {to, largest > 1e-30F ? largest / kMost : largest, 128 * sum};
}

void RowsAttend(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  if (rows.format != nullptr) {
    RowsAttendInt8(heads, rows, next);
    return;
  }
  // Widening pays where many heads read the same rows.
  constexpr std::int64_t kMany = 8;
  const std::int64_t semantic_width = heads.kv_heads * heads.d_semantic;
  const std::int64_t positional_width = heads.kv_heads * heads.d_positional;
  float* wide_semantic = heads.scratch + heads.kv_heads * heads.heads * (kRowBlock + 1);
  float* wide_positional = wide_semantic + kRowBlock * semantic_width;
  if (heads.q_semantic == nullptr) {
    PrefetchLines(rows.positional, std::min(kAhead, rows.count) * rows.positional_stride *
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
HWY_EXPORT(QueryQuantise);

const Int8Kernels* int8_kernels() {
#if defined(__x86_64__)
  static const bool has =
      kAvx512Int8.scores != nullptr && __builtin_cpu_supports("avx512vnni") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return has && cpu_level() >= CpuLevel::avx512 ? &kAvx512Int8 : nullptr;
#else
  return nullptr;
#endif
}

bool rows_run_int8(std::int64_t d_semantic, std::int64_t d_positional) {
  const auto whole = [](std::int64_t width) { return width == 64 || width == 128 || width == 256; };
  return whole(d_semantic) && whole(d_positional) && int8_kernels() != nullptr;
}

Int8Query query_quantise(const float* from, std::int64_t count, std::int8_t* to) {
  return HWY_DYNAMIC_DISPATCH(QueryQuantise)(from, count, to);
}

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

void rows_prefetch(const RowHeads& heads, const RowSpan& rows) {
  if (rows.format == nullptr || heads.q_int8 == nullptr) return;
  const auto lines = [](const void* from, std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    const auto* line = static_cast<const std::uint8_t*>(from);
    for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(line + at, 0, 2);
  };
  const std::int64_t count = std::min(kRowBlock, rows.count);
  lines(rows.positional, count * rows.format->positional_bytes());
  lines(rows.scales, count * rows.format->scale_bytes());
  lines(rows.semantic, count * rows.format->semantic_bytes());
}

void rows_attend(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  HWY_DYNAMIC_DISPATCH(RowsAttend)(heads, rows, next);
}

}  // namespace lca::cpu
#endif
