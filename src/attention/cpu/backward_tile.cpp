#include "attention/cpu/backward_tile.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/backward_tile.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/panel-inl.h"
// clang-format on

#include <algorithm>
#include <numbers>

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

static_assert(kBackwardKeys % kRows == 0 && kBackwardKeys % kPanel == 0 && kRows <= kSpareSums);

/// out[r][0 … 31] += Σ_k left[k·kLeftStep + r·kLeftRow] · right[k][0 … 31] for kRows rows.
template <int kLeftStep, int kLeftRow>
HWY_INLINE void PanelAdd(const float* left, const float* right, std::int64_t depth, float* out,
                         std::int64_t out_stride) {
  const DF d;
  const std::int64_t lanes = Lanes();
  for (std::int64_t column = 0; column < kPanel; column += 2 * lanes) {
    VF acc[kRows][2];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = hn::LoadU(d, out + r * out_stride + column);
      acc[r][1] = hn::LoadU(d, out + r * out_stride + column + lanes);
    }
    Accumulate<kLeftStep, kLeftRow>(left, right + column, depth, acc);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(acc[r][0], d, out + r * out_stride + column);
      hn::StoreU(acc[r][1], d, out + r * out_stride + column + lanes);
    }
  }
}

/// Rows of one width in both packed forms, and their gradient.
struct PackedQueries {
  float* packed = nullptr;  ///< as packed queries
  float* rows = nullptr;    ///< value panels
  float* grad = nullptr;    ///< [kTileRows][width padded to whole panels]
  std::int64_t width = 0;

  std::int64_t packed_width() const { return round_up(width, kDepth); }
  std::int64_t padded() const { return round_up(width, kPanel); }
};

/// State of a tile while blocks go by.
class BackwardWork {
 public:
  explicit BackwardWork(const BackwardTile& tile) : t_(tile), at_(tile.scratch) {
    // Later rows lie no less behind their tokens' positions.
    rotates_ = t_.rotation.steps != nullptr && Shift(t_.rows - 1) != 0;
    wants_queries_ = !t_.dq_nope.empty() || !t_.dq_rope.empty();
    nope_ = Take(t_.d_nope);
    rope_ = Take(t_.d_rope);
    far_ = rotates_ ? Take(t_.d_rope) : rope_;
    dout_ = Take(t_.d_value);
    p_ = Floats(kTileRows * kBackwardKeys);
    ds_ = Floats(kTileRows * kBackwardKeys);
    lse_ = Floats(kTileRows);
    delta_ = Floats(kTileRows);
    row_ = Floats(t_.d_nope + t_.d_rope + t_.d_value);
    angles_ = Floats(t_.d_rope);
    Pack(t_.q_nope, nope_);
    Pack(t_.q_rope, rope_);
    if (rotates_) PackFar();
    Pack(t_.out_grad, dout_);
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      vector_widen(t_.out_grad.row(r), t_.out_grad.dtype, t_.d_value, row_);
      delta_[r] = vector_dot(row_, t_.out.row(r), t_.out.dtype, t_.d_value);
      lse_[r] = t_.lse[r * t_.lse_stride] * std::numbers::log2e_v<float>;
    }
    // Rows past the last query take part in the products that make dQ.
    const std::int64_t past = (round_up(t_.rows, kRows) - t_.rows) * kBackwardKeys;
    std::fill_n(ds_ + t_.rows * kBackwardKeys, past, 0.0F);
  }

  void Run() {
    Range sink[kTileRows];
    Range window[kTileRows];
    Range groups[kTileRows];
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      const Visible v = t_.layout.visible(t_.first + r);
      // Without a gap sink and window are one, seen from the same position.
      const bool apart = v.window.begin > v.sink.end;
      sink[r] = apart ? v.sink : Range{};
      window[r] = apart ? v.window : Range{0, v.window.end};
      groups[r] = {0, v.groups};
      alone_[r] = v.pairs() == 1;
    }
    Segment(t_.tokens, t_.sink, sink, far_, false);
    Segment(t_.tokens, t_.window, window, rope_, false);
    Segment(t_.groups, t_.group_sums, groups, far_, true);
    if (wants_queries_) StoreQueries();
  }

 private:
  float* Floats(std::int64_t count) {
    float* piece = at_;
    at_ += count;
    return piece;
  }

  PackedQueries Take(std::int64_t width) {
    PackedQueries q;
    q.width = width;
    q.packed = Floats(kTileRows * q.packed_width());
    q.rows = Floats(kTileRows * q.padded());
    q.grad = Floats(kTileRows * q.padded());
    std::fill_n(q.grad, kTileRows * q.padded(), 0.0F);
    return q;
  }

  void Pack(const ConstTensor& rows, const PackedQueries& to) const {
    if (to.width == 0) return;
    PackRows(rows, t_.rows, to.width, false, reinterpret_cast<std::uint32_t*>(to.packed));
    pack_values(rows.data, rows.dtype, rows.stride[0], t_.rows, to.width, false, 0, kTileRows,
                reinterpret_cast<std::uint32_t*>(to.rows));
  }

  /// How far row r's entry lies behind its token's position.
  std::int64_t Shift(std::int64_t r) const { return t_.layout.position_shift(t_.first + r + 1); }

  /// The rope parts as representatives and sink are compared with: each row rotated back by its
  /// shift.
  void PackFar() {
    float* rows = Floats(kTileRows * t_.d_rope);
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      vector_rotate(t_.rotation, Angles(-Shift(r)), 1, t_.q_rope.row(r), t_.q_rope.dtype, t_.d_rope,
                    rows + r * t_.d_rope);
    }
    Pack(ConstTensor(rows, DType::f32, {t_.rows, 1, t_.d_rope}), far_);
  }

  /// Angles of a difference of positions; neighbours mostly share one.
  const float* Angles(std::int64_t difference) {
    if (difference != difference_ || !has_angles_) vector_angles(t_.rotation, difference, angles_);
    difference_ = difference;
    has_angles_ = true;
    return angles_;
  }

  /// All blocks of keys that some row sees. Later rows never begin or end earlier.
  void Segment(const BackwardKeys& keys, const KeySums& sums, const Range* seen,
               const PackedQueries& rope, bool groups) {
    std::int64_t first = 0;
    while (first < t_.rows && seen[first].size() == 0) ++first;
    if (first == t_.rows) return;
    const std::int64_t end = seen[t_.rows - 1].end;
    for (std::int64_t key = seen[first].begin / kPanel * kPanel; key < end; key += kBackwardKeys) {
      Block(keys, sums, key, seen, rope, groups);
    }
  }

  void Block(const BackwardKeys& keys, const KeySums& sums, std::int64_t key, const Range* seen,
             const PackedQueries& rope, bool groups) {
    const std::int64_t block = std::min(kBackwardKeys, keys.count - key);
    Range span[kTileRows];  // what each row sees of the block
    Range hull[kTileRows];  // what the rows of each call see together
    for (std::int64_t r0 = 0; r0 < t_.rows; r0 += kRows) {
      Range together{block, 0};
      for (std::int64_t r = r0; r < std::min(t_.rows, r0 + kRows); ++r) {
        span[r] = {std::clamp<std::int64_t>(seen[r].begin - key, 0, block),
                   std::clamp<std::int64_t>(seen[r].end - key, 0, block)};
        if (span[r].size() == 0) continue;
        together = {std::min(together.begin, span[r].begin), std::max(together.end, span[r].end)};
      }
      hull[r0 / kRows] = together;
    }
    Scores(keys, key, block, hull, rope);
    const bool biased = groups && t_.bias != nullptr;
    float* bias_sums = groups && t_.bias_sums != nullptr ? t_.bias_sums + key : nullptr;
    for (std::int64_t r = 0; r < t_.rows; ++r) {
      if (hull[r / kRows].size() == 0) continue;
      SoftmaxRow(r, span[r], biased ? t_.bias + key : nullptr, bias_sums);
    }
    if (wants_queries_) AddQueries(keys, key, hull, rope);
    AddKeys(sums, key - sums.first, block, span, rope);
  }

  /// S and dP, where some row of a call sees the key: one panel at a time, which stays in the
  /// first-level cache while the rows go by.
  void Scores(const BackwardKeys& keys, std::int64_t key, std::int64_t block, const Range* hull,
              const PackedQueries& rope) {
    for (std::int64_t panel = 0; panel < block; panel += kPanel) {
      const std::int64_t at = key + panel;
      Panel(nope_, keys.nope + at * t_.d_nope, rope, keys.rope + at * t_.d_rope, panel, hull, p_);
      Panel({}, nullptr, dout_, keys.values + at * t_.d_value, panel, hull, ds_);
    }
  }

  /// Products of all rows and one panel, contracted over the widths of `a` and `b`.
  void Panel(const PackedQueries& a, const float* a_panel, const PackedQueries& b,
             const float* b_panel, std::int64_t panel, const Range* hull, float* to) const {
    for (std::int64_t r0 = 0; r0 < t_.rows; r0 += kRows) {
      const Range& together = hull[r0 / kRows];
      if (together.end <= panel || panel + kPanel <= together.begin) continue;
      Columns({a.packed + r0 * a.packed_width(), a_panel, a.width, b.packed + r0 * b.packed_width(),
               b_panel, b.width},
              std::max<std::int64_t>(0, together.begin - panel),
              std::min(kPanel, together.end - panel), to + r0 * kBackwardKeys + panel);
    }
  }

  static void Columns(const PanelPair<float>& pair, std::int64_t from, std::int64_t to,
                      float* scores) {
    const std::int64_t lanes = Lanes();
    std::int64_t column = from / lanes * lanes;
    for (; column + lanes < to; column += 2 * lanes) {
      ColumnScores<2>(pair, column, scores, kBackwardKeys);
    }
    if (column < to) ColumnScores<1>(pair, column, scores, kBackwardKeys);
  }

  /// Turns a row of S and dP into P and dS, with zeros for every key of the block that the row does
  /// not see.
  void SoftmaxRow(std::int64_t r, const Range& span, const float* bias, float* bias_sums) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const std::int64_t lanes = Lanes();
    constexpr float kLog2e = std::numbers::log2e_v<float>;
    float* p_row = p_ + r * kBackwardKeys;
    float* ds_row = ds_ + r * kBackwardKeys;
    const std::int64_t begin = span.size() == 0 ? 0 : span.begin / lanes * lanes;
    const std::int64_t end = span.size() == 0 ? 0 : round_up(span.end, lanes);
    std::fill_n(p_row, begin, 0.0F);
    std::fill_n(ds_row, begin, 0.0F);
    std::fill(p_row + end, p_row + kBackwardKeys, 0.0F);
    std::fill(ds_row + end, ds_row + kBackwardKeys, 0.0F);
    const VF scale = hn::Set(d, t_.scale * kLog2e);
    const VF log2e = hn::Set(d, kLog2e);
    const VF lse = hn::Set(d, lse_[r]);
    const VF delta = hn::Set(d, delta_[r]);
    for (std::int64_t i = begin; i < end; i += lanes) {
      VF x = hn::MulSub(hn::LoadU(d, p_row + i), scale, lse);
      if (bias != nullptr) x = hn::MulAdd(hn::LoadU(d, bias + i), log2e, x);
      VF p = Exp2(x);
      VF ds = alone_[r] ? hn::Zero(d) : hn::Mul(p, hn::Sub(hn::LoadU(d, ds_row + i), delta));
      if (i < span.begin || i + lanes > span.end) {
        const auto index = hn::Iota(di, static_cast<std::int32_t>(i));
        const auto from = hn::Set(di, static_cast<std::int32_t>(span.begin));
        const auto to = hn::Set(di, static_cast<std::int32_t>(span.end));
        const auto visible = hn::RebindMask(d, hn::AndNot(hn::Lt(index, from), hn::Lt(index, to)));
        p = hn::IfThenElseZero(visible, p);
        ds = hn::IfThenElseZero(visible, ds);
      }
      hn::StoreU(p, d, p_row + i);
      hn::StoreU(ds, d, ds_row + i);
      if (bias_sums != nullptr) {
        hn::StoreU(hn::Add(hn::LoadU(d, bias_sums + i), ds), d, bias_sums + i);
      }
    }
  }

  /// dQ += dS K.
  void AddQueries(const BackwardKeys& keys, std::int64_t key, const Range* hull,
                  const PackedQueries& rope) {
    const std::int64_t capacity = round_up(keys.count, kPanel);
    const auto add = [&](const float* rows, const PackedQueries& to) HWY_ATTR {
      for (std::int64_t column = 0; column < to.padded(); column += kPanel) {
        const float* panel = rows + column * capacity + key * kPanel;
        for (std::int64_t r0 = 0; r0 < t_.rows; r0 += kRows) {
          const Range& together = hull[r0 / kRows];
          if (together.size() == 0) continue;
          PanelAdd<1, kBackwardKeys>(ds_ + r0 * kBackwardKeys + together.begin,
                                     panel + together.begin * kPanel, together.size(),
                                     to.grad + r0 * to.padded() + column, to.padded());
        }
      }
    };
    add(keys.nope_rows, nope_);
    add(keys.rope_rows, rope);
  }

  /// dK += dSᵀ Q and dV += Pᵀ dO, for as many keys at a time as a call takes and the rows that see
  /// some of them. `row` is the block's first row of the sums.
  void AddKeys(const KeySums& sums, std::int64_t row, std::int64_t block, const Range* span,
               const PackedQueries& rope) {
    Range rows[kBackwardKeys / kRows];
    for (std::int64_t k0 = 0; k0 < block; k0 += kRows) {
      const auto sees = [&](std::int64_t r) {
        return span[r].size() > 0 && span[r].begin < k0 + kRows && span[r].end > k0;
      };
      std::int64_t from = 0;
      while (from < t_.rows && !sees(from)) ++from;
      std::int64_t to = t_.rows;
      while (to > from && !sees(to - 1)) --to;
      rows[k0 / kRows] = {from, to};
    }
    const auto add = [&](const float* weights, const PackedQueries& q, float* out) HWY_ATTR {
      if (out == nullptr) return;
      for (std::int64_t column = 0; column < q.padded(); column += kPanel) {
        const float* panel = q.rows + column * kTileRows;
        for (std::int64_t k0 = 0; k0 < block; k0 += kRows) {
          const Range& seen = rows[k0 / kRows];
          if (seen.size() == 0) continue;
          PanelAdd<kBackwardKeys, 1>(weights + seen.begin * kBackwardKeys + k0,
                                     panel + seen.begin * kPanel, seen.size(),
                                     out + (row + k0) * q.padded() + column, q.padded());
        }
      }
    };
    add(ds_, nope_, sums.nope);
    add(ds_, rope, sums.rope);
    add(p_, dout_, sums.values);
  }

  void StoreQueries() {
    for (std::int64_t r = 0; r < t_.rows && !t_.dq_nope.empty(); ++r) {
      Scale(nope_.grad + r * nope_.padded(), t_.d_nope, row_);
      vector_store(row_, t_.d_nope, t_.dq_nope.dtype, t_.dq_nope.row(r));
    }
    for (std::int64_t r = 0; r < t_.rows && !t_.dq_rope.empty(); ++r) {
      const float* near = rope_.grad + r * rope_.padded();
      if (rotates_) {
        vector_rotate(t_.rotation, Angles(Shift(r)), t_.scale, far_.grad + r * far_.padded(),
                      DType::f32, t_.d_rope, row_);
        AddScaled(t_.scale, near, t_.d_rope, row_);
      } else {
        Scale(near, t_.d_rope, row_);
      }
      vector_store(row_, t_.d_rope, t_.dq_rope.dtype, t_.dq_rope.row(r));
    }
  }

  void Scale(const float* from, std::int64_t count, float* to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = t_.scale * from[i];
  }

  const BackwardTile& t_;
  float* at_;
  bool rotates_ = false;  // some row's entry lies behind its token's position
  bool wants_queries_ = false;
  bool has_angles_ = false;
  std::int64_t difference_ = 0;
  PackedQueries nope_, rope_, far_, dout_;
  float *p_, *ds_, *lse_, *delta_;
  bool alone_[kTileRows];  // rows that see one key: its probability is 1, whatever its score
  float *row_, *angles_;
};

void TileBackward(const BackwardTile& tile) { BackwardWork(tile).Run(); }

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(TileBackward);

void tile_backward(const BackwardTile& tile) { HWY_DYNAMIC_DISPATCH(TileBackward)(tile); }

}  // namespace lca::cpu
#endif
