#include "attention/cpu/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile.cpp"
#include "attention/cpu/targets.h"
#include <hwy/foreach_target.h>
// clang-format off: the shared pieces must come after foreach_target
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/bf16.h"

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

/// Scores of kRows queries against kVectors vectors of keys from `column` on.
template <int kVectors>
HWY_INLINE void ColumnScores(const PanelPair<float>& p, std::int64_t column, float* scores) {
  const DF d;
  const std::int64_t lanes = Lanes();
  VF acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  Accumulate<kRows, 1>(p.q_nope, p.k_nope + column, p.depth_nope, acc);
  Accumulate<kRows, 1>(p.q_rope, p.k_rope + column, p.depth_rope, acc);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[r][v], d, scores + r * kBlockKeys + column + v * lanes);
    }
  }
}

/// Scores of kRows queries against keys [from, to) of one panel of 32, and a few around them.
HWY_INLINE void PanelScores(const PanelPair<float>& p, std::int64_t from, std::int64_t to,
                            float* scores) {
  const std::int64_t lanes = Lanes();
  std::int64_t column = from / lanes * lanes;
  for (; column + lanes < to; column += 2 * lanes) ColumnScores<2>(p, column, scores);
  if (column < to) ColumnScores<1>(p, column, scores);
}

/// out = out·factor + weights·values for kRows queries and one panel of 32 columns.
HWY_INLINE void PanelOutputs(const float* weights, const float* values, std::int64_t keys,
                             const float* factor, float* out, std::int64_t out_stride) {
  const DF d;
  const std::int64_t step = 2 * Lanes();
  for (std::int64_t column = 0; column < kPanel; column += step) {
    VF acc[kRows][2];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const VF f = hn::Set(d, factor[r]);
      acc[r][0] = hn::Mul(f, hn::LoadU(d, out + r * out_stride + column));
      acc[r][1] = hn::Mul(f, hn::LoadU(d, out + r * out_stride + column + step / 2));
    }
    Accumulate<1, kBlockKeys>(weights, values + column, keys, acc);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(acc[r][0], d, out + r * out_stride + column);
      hn::StoreU(acc[r][1], d, out + r * out_stride + column + step / 2);
    }
  }
}

constexpr std::int64_t kRowsAhead = 8;  ///< how far ahead queries are fetched

/// What one row sees of a block, as indices into the block.
struct Span {
  std::int64_t sink_end = 0;  ///< [0, sink_end)
  std::int64_t begin = 0, end = 0;
};

/// What rows see of a segment (representatives, or tokens) in the segment's own indices.
struct RowSpans {
  Span row[kTileRows];
};

/// State of a tile while blocks go by.
class TileWork {
 public:
  explicit TileWork(const Tile& tile) : t_(tile) {
    d_value_padded_ = round_up(t_.d_value, kPanel);
    rows_per_call_ = t_.bf16 ? kBf16Rows : kRows;
    rows_padded_ = round_up(t_.rows, rows_per_call_);
    words_nope_ = t_.bf16 ? ceil_div(t_.d_nope, 2) : t_.d_nope;
    words_rope_ = t_.bf16 ? ceil_div(t_.d_rope, 2) : t_.d_rope;
    q_ = t_.scratch;
    scores_ = q_ + kTileRows * (t_.d_nope + t_.d_rope + 2);
    out_ = scores_ + kTileRows * kBlockKeys;
    top_ = out_ + kTileRows * d_value_padded_;
    sum_ = top_ + kTileRows;
    factor_ = sum_ + kTileRows;
    // Finite, so that a row that has seen nothing yet subtracts without making a NaN.
    std::fill_n(top_, kTileRows, -1e30F);
    std::fill_n(sum_, kTileRows, 0.0F);
    std::fill_n(factor_, kTileRows, 1.0F);
    std::fill_n(out_, rows_padded_ * d_value_padded_, 0.0F);
    std::fill_n(scores_, kTileRows * kBlockKeys, 0.0F);
    PackQueries();
  }

  void Run() {
    RowSpans spans;
    std::int64_t window_begin = 0;
    std::int64_t sink_end = 0;
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      const Visible v = t_.layout.visible(t_.first + r);
      spans.row[r] = {v.sink.end, v.window.begin - t_.dropped, v.window.end - t_.dropped};
      // Tokens that were never dropped keep their place; the sink lies before them.
      if (v.window.begin <= v.sink.end) spans.row[r] = {0, v.sink.begin, v.window.end - t_.dropped};
      if (r == 0) window_begin = spans.row[r].begin;
      sink_end = std::max(sink_end, spans.row[r].sink_end);
      window_begin = std::min(window_begin, spans.row[r].begin);
    }
    const std::int64_t window_end = spans.row[t_.rows - 1].end;
    std::int64_t key = 0;
    for (; key < sink_end; key += kBlockKeys) Block(t_.tokens, key, spans, false);
    // Blocks start at the window's first panel, so that no block is all but empty.
    key = std::max(key, window_begin / kPanel * kPanel);
    for (; key < window_end; key += kBlockKeys) Block(t_.tokens, key, spans, false);

    std::int64_t groups = 0;
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      spans.row[r] = {0, 0, t_.layout.visible(t_.first + r).groups};
      groups = std::max(groups, spans.row[r].end);
    }
    for (key = 0; key < groups; key += kBlockKeys) Block(t_.groups, key, spans, true);
    Finish();
  }

 private:
  template <typename T>
  static void PackQueryPart(const T* from, std::int64_t token_stride, std::int64_t rows,
                            std::int64_t rows_padded, std::int64_t depth, int unit, bool bf16,
                            std::uint32_t* to) {
    const std::int64_t words = bf16 ? ceil_div(depth, 2) : depth;
    for (std::int64_t r = 0; r < rows_padded; ++r) {
      std::uint32_t* column = to + r / unit * unit * words + r % unit;
      const T* row = from + r * token_stride;
      // Rows of one head lie far apart: no hardware prefetcher sees the next one coming.
      if (r + kRowsAhead < rows) {
        const auto* ahead = reinterpret_cast<const char*>(row + kRowsAhead * token_stride);
        for (std::int64_t byte = 0; byte < depth * static_cast<std::int64_t>(sizeof(T));
             byte += 64) {
          hwy::Prefetch(ahead + byte);
        }
      }
      for (std::int64_t k = 0; k < words; ++k) {
        std::uint32_t word = 0;
        if (r < rows) {
          if constexpr (sizeof(T) == 2) {
            if (bf16) {
              word = row[2 * k];
              if (2 * k + 1 < depth) word |= static_cast<std::uint32_t>(row[2 * k + 1]) << 16;
            } else {
              word = static_cast<std::uint32_t>(row[k]) << 16;
            }
          } else {
            std::memcpy(&word, row + k, 4);
          }
        }
        column[k * unit] = word;
      }
    }
  }

  void PackQueryTensor(const ConstTensor& q, std::int64_t depth, std::uint32_t* to) const {
    if (depth == 0) return;
    if (q.dtype == DType::f32) {
      PackQueryPart(static_cast<const float*>(q.data), q.stride[0], t_.rows, rows_padded_, depth,
                    rows_per_call_, false, to);
    } else {
      PackQueryPart(static_cast<const std::uint16_t*>(q.data), q.stride[0], t_.rows, rows_padded_,
                    depth, rows_per_call_, t_.bf16, to);
    }
  }

  void PackQueries() {
    auto* words = reinterpret_cast<std::uint32_t*>(q_);
    PackQueryTensor(t_.q_nope, t_.d_nope, words);
    PackQueryTensor(t_.q_rope, t_.d_rope, words + kTileRows * words_nope_);
  }

  /// Takes keys [key, key + 128) of a segment into account.
  void Block(const PackedKeys& keys, std::int64_t key, const RowSpans& segment, bool groups) {
    const std::int64_t block = std::min(kBlockKeys, keys.count - key);
    Span span[kTileRows];
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      const Span& s = segment.row[r];
      span[r] = {std::clamp<std::int64_t>(s.sink_end - key, 0, block),
                 std::clamp<std::int64_t>(s.begin - key, 0, block),
                 std::clamp<std::int64_t>(s.end - key, 0, block)};
    }
    // What the rows of one call see together: edges of the window skip whole panels here.
    Range seen[kTileRows];
    for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
      Range hull{block, 0};
      for (std::int64_t r = r0; r < std::min(t_.rows, r0 + rows_per_call_); ++r) {
        if (span[r].sink_end > 0) hull = {0, std::max(hull.end, span[r].sink_end)};
        if (span[r].begin < span[r].end) {
          hull = {std::min(hull.begin, span[r].begin), std::max(hull.end, span[r].end)};
        }
      }
      seen[r0 / rows_per_call_] = hull;
    }
    Scores(keys, key, block, seen);
    for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
      const Range& hull = seen[r0 / rows_per_call_];
      if (hull.size() == 0) continue;
      for (std::int64_t r = r0; r < std::min(t_.rows, r0 + rows_per_call_); ++r) {
        SoftmaxRow(r, span[r], hull, groups && t_.bias != nullptr ? t_.bias + key : nullptr);
      }
    }
    Outputs(keys, key, seen);
  }

  void Scores(const PackedKeys& keys, std::int64_t key, std::int64_t block, const Range* seen) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(q_);
    for (std::int64_t panel = 0; panel < block; panel += kPanel) {
      const std::uint32_t* k_nope = keys.nope + (key + panel) * words_nope_;
      const std::uint32_t* k_rope = keys.rope + (key + panel) * words_rope_;
      for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
        const Range& hull = seen[r0 / rows_per_call_];
        if (hull.end <= panel || panel + kPanel <= hull.begin) continue;
        const std::uint32_t* q_nope = words + r0 * words_nope_;
        const std::uint32_t* q_rope = words + kTileRows * words_nope_ + r0 * words_rope_;
        float* scores = scores_ + r0 * kBlockKeys + panel;
        const std::int64_t from = std::max<std::int64_t>(0, hull.begin - panel);
        const std::int64_t to = std::min(kPanel, hull.end - panel);
        if (t_.bf16) {
          bf16_kernels()->scores({q_nope, k_nope, words_nope_, q_rope, k_rope, words_rope_}, from,
                                 to, scores);
        } else {
          PanelScores({AsFloat(q_nope), AsFloat(k_nope), words_nope_, AsFloat(q_rope),
                       AsFloat(k_rope), words_rope_},
                      from, to, scores);
        }
      }
    }
  }

  /// Turns a row of scores into weights 2^(x − top), in place (bfloat16: packed at the row's
  /// start), and notes by how much the row's earlier output shrinks. `bias` is the block's, or null.
  void SoftmaxRow(std::int64_t r, const Span& span, const Range& hull, const float* bias) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const std::int64_t lanes = Lanes();
    constexpr float kLog2e = std::numbers::log2e_v<float>;
    // Whole vectors that cover what some row of the call sees; of these, the ones this row sees.
    const std::int64_t from = hull.begin / lanes * lanes;
    const std::int64_t to = round_up(hull.end, lanes);
    const bool two_ranges = span.sink_end > 0;
    const std::int64_t begin = two_ranges ? from : std::max(from, span.begin / lanes * lanes);
    const std::int64_t end =
        two_ranges ? to : std::clamp(round_up(span.end, lanes), begin, to);
    float* row = scores_ + r * kBlockKeys;
    const VF scale = hn::Set(d, t_.scale * kLog2e);
    const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
    VF top = minus_infinity;
    for (std::int64_t i = from; i < begin; i += lanes) hn::StoreU(hn::Zero(d), d, row + i);
    for (std::int64_t i = end; i < to; i += lanes) hn::StoreU(hn::Zero(d), d, row + i);
    for (std::int64_t i = begin; i < end; i += lanes) {
      VF x = hn::Mul(hn::LoadU(d, row + i), scale);
      if (bias != nullptr) x = hn::MulAdd(hn::LoadU(d, bias + i), hn::Set(d, kLog2e), x);
      if (two_ranges || i < span.begin || i + lanes > span.end) {
        const auto index = hn::Iota(di, static_cast<std::int32_t>(i));
        const auto below = [&](std::int64_t limit) HWY_ATTR {
          return hn::Lt(index, hn::Set(di, static_cast<std::int32_t>(limit)));
        };
        const auto visible =
            hn::Or(below(span.sink_end), hn::AndNot(below(span.begin), below(span.end)));
        x = hn::IfThenElse(hn::RebindMask(d, visible), x, minus_infinity);
      }
      top = hn::Max(top, x);
      hn::StoreU(x, d, row + i);
    }
    const float before = top_[r];
    const float now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, top)));
    const VF now_all = hn::Set(d, now);
    VF sum = hn::Zero(d);
    for (std::int64_t i = begin; i < end; i += lanes) {
      const VF p = Exp2(hn::Sub(hn::LoadU(d, row + i), now_all));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, row + i);
    }
    const float factor = before == now ? 1.0F : std::exp2(before - now);
    top_[r] = now;
    sum_[r] = sum_[r] * factor + hn::GetLane(hn::SumOfLanes(d, sum));
    factor_[r] = factor;
    if (t_.bf16) {
      // Pair by pair in place: word i covers floats 2i and 2i+1, which are read before it is
      // written. Words before `from` belong to keys that no row of the call sees.
      const std::int64_t first = from / 2;
      bf16_kernels()->round_pairs(row + from, ceil_div(to, 2) - first,
                                  reinterpret_cast<std::uint32_t*>(row) + first);
    }
  }

  void Outputs(const PackedKeys& keys, std::int64_t key, const Range* seen) {
    const std::int64_t capacity = round_up(keys.count, kPanel);
    for (std::int64_t column = 0; column < d_value_padded_; column += kPanel) {
      for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
        const Range& hull = seen[r0 / rows_per_call_];
        if (hull.size() == 0) continue;
        float* out = out_ + r0 * d_value_padded_ + column;
        const float* weights = scores_ + r0 * kBlockKeys;
        if (t_.bf16) {
          const std::int64_t first = hull.begin / 2;
          const std::uint32_t* values =
              keys.values + (column * capacity + key * kPanel) / 2 + first * kPanel;
          bf16_kernels()->outputs(reinterpret_cast<const std::uint32_t*>(weights) + first, values,
                                  ceil_div(hull.end, 2) - first, factor_ + r0, out,
                                  d_value_padded_);
        } else {
          const float* values =
              AsFloat(keys.values) + column * capacity + (key + hull.begin) * kPanel;
          PanelOutputs(weights + hull.begin, values, hull.size(), factor_ + r0, out,
                       d_value_padded_);
        }
      }
    }
  }

  void Finish() {
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      const float inverse = 1.0F / sum_[r];
      const float* from = out_ + r * d_value_padded_;
      float* to = t_.out + r * t_.out_stride;
      for (std::int64_t i = 0; i < t_.d_value; ++i) to[i] = from[i] * inverse;
      if (t_.lse != nullptr) {
        t_.lse[r * t_.lse_stride] = (top_[r] + std::log2(sum_[r])) * std::numbers::ln2_v<float>;
      }
    }
  }

  static const float* AsFloat(const std::uint32_t* words) {
    return reinterpret_cast<const float*>(words);
  }

  const Tile& t_;
  std::int64_t d_value_padded_, rows_padded_, words_nope_, words_rope_;
  int rows_per_call_;
  float *q_, *scores_, *out_, *top_, *sum_, *factor_;
};

void TileAttend(const Tile& tile) { TileWork(tile).Run(); }

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(TileAttend);

const Bf16Kernels* bf16_kernels() {
#if defined(__x86_64__)
  static const bool has =
      kAvx512Bf16.scores != nullptr && __builtin_cpu_supports("avx512bf16") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return has ? &kAvx512Bf16 : nullptr;
#else
  return nullptr;
#endif
}

void tile_attend(const Tile& tile) { HWY_DYNAMIC_DISPATCH(TileAttend)(tile); }

}  // namespace lca::cpu
#endif
