#include "attention/cpu/tile.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/panel-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/cpu_level.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

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
    rows_per_call_ = RowsPerCall(t_.bf16);
    rows_padded_ = round_up(t_.rows, rows_per_call_);
    words_nope_ = t_.bf16 ? ceil_div(t_.d_nope, 2) : t_.d_nope;
    words_rope_ = t_.bf16 ? ceil_div(t_.d_rope, 2) : t_.d_rope;
    q_ = t_.scratch;
    q_words_nope_ = round_up(words_nope_, kDepth);
    q_words_rope_ = round_up(words_rope_, kDepth);
    scores_ = q_ + kTileRows * (q_words_nope_ + q_words_rope_);
    out_ = scores_ + kTileRows * kBlockKeys;
    top_ = out_ + kTileRows * d_value_padded_;
    sum_ = top_ + kTileRows;
    factor_ = sum_ + kTileRows;
    far_ = factor_ + kTileRows;
    // Finite, so that a row that has seen nothing yet subtracts without making a NaN.
    std::fill_n(top_, kTileRows, -1e30F);
    std::fill_n(sum_, kTileRows, 0.0F);
    std::fill_n(factor_, kTileRows, 1.0F);
    std::fill_n(out_, rows_padded_ * d_value_padded_, 0.0F);
    // Rows past the last query take part in the products; they must not bring in anything odd.
    std::fill_n(scores_ + t_.rows * kBlockKeys, (rows_padded_ - t_.rows) * kBlockKeys, 0.0F);
    PackQueries();
    // Later rows lie no less behind their tokens' positions.
    rotates_ = t_.rotation.steps != nullptr && Shift(t_.rows - 1) != 0;
    if (rotates_) PackFarQueries();
  }

  void Run() {
    RowSpans spans;
    RowSpans sink_spans;
    RowSpans group_spans;
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      const Visible v = t_.layout.visible(t_.first + r);
      group_spans.row[r] = {0, 0, v.groups};
      spans.row[r] = {v.sink.end, v.window.begin - t_.dropped, v.window.end - t_.dropped};
      // Tokens that were never dropped keep their place; the sink lies before them.
      if (v.window.begin <= v.sink.end) spans.row[r] = {0, v.sink.begin, v.window.end - t_.dropped};
      // The sink is seen from another position than the window: then it goes by itself.
      if (rotates_ && Shift(r) != 0) {
        spans.row[r].sink_end = 0;
        sink_spans.row[r] = {0, 0, v.sink.end};
      }
    }
    // Later rows never see less: the first row begins, the last one ends.
    const std::int64_t last = t_.rows - 1;
    const std::int64_t sink_end = spans.row[last].sink_end;
    const std::int64_t window_begin = spans.row[0].begin;
    const std::int64_t window_end = spans.row[last].end;
    const std::int64_t groups = group_spans.row[last].end;
    const std::uint32_t* near = Words(q_) + kTileRows * q_words_nope_;
    const std::uint32_t* far = rotates_ ? Words(far_) : near;
    std::int64_t key = 0;
    for (; key < sink_spans.row[last].end; key += kBlockKeys) {
      Block(t_.tokens, key, sink_spans, far, false);
    }
    for (key = 0; key < sink_end; key += kBlockKeys) Block(t_.tokens, key, spans, near, false);
    // Blocks start at the window's first panel, so that no block is all but empty.
    key = std::max(key, window_begin / kPanel * kPanel);
    for (; key < window_end; key += kBlockKeys) Block(t_.tokens, key, spans, near, false);

    for (key = 0; key < groups; key += kBlockKeys) Block(t_.groups, key, group_spans, far, true);
    Finish();
  }

 private:
  void PackQueries() {
    auto* words = reinterpret_cast<std::uint32_t*>(q_);
    PackRows(t_.q_nope, t_.rows, t_.d_nope, t_.bf16, words);
    PackRows(t_.q_rope, t_.rows, t_.d_rope, t_.bf16, words + kTileRows * q_words_nope_);
  }

  /// How far row r's entry lies behind its token's position.
  std::int64_t Shift(std::int64_t r) const { return t_.layout.position_shift(t_.first + r + 1); }

  /// The rope parts as representatives and sink are compared with: packed like the others, each row
  /// rotated back by its shift. Neighbours mostly share one.
  void PackFarQueries() {
    auto* far = reinterpret_cast<std::uint32_t*>(far_);
    std::memcpy(far, Words(q_) + kTileRows * q_words_nope_,
                static_cast<std::size_t>(rows_padded_ * q_words_rope_) * sizeof(*far));
    float* row = far_ + kTileRows * q_words_rope_;
    const std::int64_t row_floats = round_up(t_.d_rope, 2 * kDepth);
    float* angles = row + row_floats;
    std::fill_n(row, row_floats, 0.0F);
    std::int64_t shift = 0;
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      if (Shift(r) == 0) continue;
      if (Shift(r) != shift) {
        shift = Shift(r);
        vector_angles(t_.rotation, -shift, angles);
      }
      vector_rotate(t_.rotation, angles, 1, t_.q_rope.row(r), t_.q_rope.dtype, t_.d_rope, row);
      const std::uint32_t* words = Words(row);
      if (t_.bf16) {
        bf16_kernels()->round_pairs(row, words_rope_, reinterpret_cast<std::uint32_t*>(row));
      }
      const std::int64_t in_call = r % rows_per_call_;
      std::uint32_t* to = far + (r - in_call) * q_words_rope_ + in_call * kDepth;
      for (std::int64_t word = 0; word < words_rope_;
           word += kDepth, to += rows_per_call_ * kDepth) {
        std::memcpy(to, words + word,
                    static_cast<std::size_t>(std::min(kDepth, words_rope_ - word)) * sizeof(*to));
      }
    }
  }

  /// Takes keys [key, key + kBlockKeys) of a segment into account; `q_rope` is the form of the
  /// queries that is compared with them.
  void Block(const PackedKeys& keys, std::int64_t key, const RowSpans& segment,
             const std::uint32_t* q_rope, bool groups) {
    FetchAhead();
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
    Scores(keys, key, block, seen, q_rope);
    for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
      const Range& hull = seen[r0 / rows_per_call_];
      if (hull.size() == 0) continue;
      for (std::int64_t r = r0; r < std::min(t_.rows, r0 + rows_per_call_); ++r) {
        SoftmaxRow(r, span[r], hull, groups && t_.bias != nullptr ? t_.bias + key : nullptr);
      }
    }
    Outputs(keys, key, seen);
  }

  /// Fetches some rows of the next tile into the second-level cache. They lie far apart, so no
  /// hardware prefetcher sees them coming, and a tile would start by waiting for each of them.
  void FetchAhead() {
    constexpr std::int64_t kRowsABlock = kTileRows / 4;
    const std::int64_t end = ahead_ + kRowsABlock;
    for (const RowsAhead& ahead : t_.ahead) {
      for (std::int64_t r = ahead_; r < std::min(end, ahead.rows); ++r) {
        const char* row = ahead.first + r * ahead.stride;
        for (std::int64_t byte = 0; byte < ahead.bytes; byte += 64) {
          __builtin_prefetch(row + byte, 0, 2);
        }
      }
    }
    ahead_ = end;
  }

  void Scores(const PackedKeys& keys, std::int64_t key, std::int64_t block, const Range* seen,
              const std::uint32_t* q_rope_all) {
    for (std::int64_t panel = 0; panel < block; panel += kPanel) {
      const std::uint32_t* k_nope = keys.nope + (key + panel) * words_nope_;
      const std::uint32_t* k_rope = keys.rope + (key + panel) * words_rope_;
      for (std::int64_t r0 = 0; r0 < t_.rows; r0 += rows_per_call_) {
        const Range& hull = seen[r0 / rows_per_call_];
        if (hull.end <= panel || panel + kPanel <= hull.begin) continue;
        const std::uint32_t* q_nope = Words(q_) + r0 * q_words_nope_;
        const std::uint32_t* q_rope = q_rope_all + r0 * q_words_rope_;
        float* scores = scores_ + r0 * kBlockKeys + panel;
        const std::int64_t from = std::max<std::int64_t>(0, hull.begin - panel);
        const std::int64_t to = std::min(kPanel, hull.end - panel);
        PanelScores({q_nope, k_nope, words_nope_, q_rope, k_rope, words_rope_}, t_.bf16, from, to,
                    scores, kBlockKeys);
      }
    }
  }

  /// Turns a row of scores into weights 2^(x − top), in place (bfloat16: packed at the row's
  /// start), and notes by how much the row's earlier output shrinks. `bias` is the block's, or
  /// null.
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
    const std::int64_t end = two_ranges ? to : std::clamp(round_up(span.end, lanes), begin, to);
    float* row = scores_ + r * kBlockKeys;
    const VF scale = hn::Set(d, t_.scale * kLog2e);
    const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (std::int64_t i = from; i < begin; i += lanes) hn::StoreU(hn::Zero(d), d, row + i);
    for (std::int64_t i = end; i < to; i += lanes) hn::StoreU(hn::Zero(d), d, row + i);
    if (bias != nullptr) {
      const VF inverse = hn::Set(d, 1.0F / t_.scale);
      for (std::int64_t i = begin; i < end; i += lanes) {
        const VF x = hn::MulAdd(hn::LoadU(d, bias + i), inverse, hn::LoadU(d, row + i));
        hn::StoreU(x, d, row + i);
      }
    }
    VF top = minus_infinity;
    for (std::int64_t i = begin; i < end; i += lanes) {
      VF x = hn::LoadU(d, row + i);
      if (two_ranges || i < span.begin || i + lanes > span.end) {
        const auto index = hn::Iota(di, static_cast<std::int32_t>(i));
        const auto below = [&](std::int64_t limit) HWY_ATTR {
          return hn::Lt(index, hn::Set(di, static_cast<std::int32_t>(limit)));
        };
        const auto visible =
            hn::Or(below(span.sink_end), hn::AndNot(below(span.begin), below(span.end)));
        x = hn::IfThenElse(hn::RebindMask(d, visible), x, minus_infinity);
        hn::StoreU(x, d, row + i);
      }
      top = hn::Max(top, x);
    }
    const float before = top_[r];
    const float now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, top)) * (t_.scale * kLog2e));
    const VF now_all = hn::Set(d, now);
    VF sum = hn::Zero(d);
    for (std::int64_t i = begin; i < end; i += lanes) {
      const VF p = Exp2(hn::MulSub(hn::LoadU(d, row + i), scale, now_all));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, row + i);
    }
    const float factor = before == now ? 1.0F : hn::GetLane(Exp2(hn::Set(d, before - now)));
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

  static const std::uint32_t* Words(const float* floats) {
    return reinterpret_cast<const std::uint32_t*>(floats);
  }

  static const float* AsFloat(const std::uint32_t* words) {
    return reinterpret_cast<const float*>(words);
  }

  const Tile& t_;
  std::int64_t d_value_padded_, rows_padded_;
  std::int64_t words_nope_, words_rope_, q_words_nope_, q_words_rope_;
  int rows_per_call_;
  bool rotates_ = false;  // some row's entry lies behind its token's position
  std::int64_t ahead_ = 0;
  float *q_, *scores_, *out_, *top_, *sum_, *factor_, *far_;
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
  return has && cpu_level() >= CpuLevel::avx512 ? &kAvx512Bf16 : nullptr;
#else
  return nullptr;
#endif
}

void tile_attend(const Tile& tile) { HWY_DYNAMIC_DISPATCH(TileAttend)(tile); }

}  // namespace lca::cpu
#endif
