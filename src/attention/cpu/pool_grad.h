#pragma once
/// The backward pass of pooling (mechanism §4, §8).

#include <lca/settings.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "attention/cpu/score_vectors.h"
#include "attention/cpu/vector.h"
#include "core/bf16.h"

namespace lca::cpu {

/// How the gradient of a pooled row flows back to one side of a group's members: latents or values,
/// keys, or keys at the representative's position.
class PoolGrad {
 public:
  /// `winners` is scratch of one index a column.
  PoolGrad(Pool kind, const float* grad, std::int64_t width, const GroupWeights& weights,
           std::span<const float> alpha, std::int32_t* winners)
      : kind_(kind),
        grad_(grad),
        width_(width),
        weights_(weights),
        alpha_(alpha),
        winners_(winners) {}

  /// Takes a look at all members; `top` is scratch of one row. Adds to the gradient of α.
  template <typename Rows>
  void look(const Rows& member, float* top, float* alpha_grad) const {
    const std::int64_t count = std::ssize(alpha_);
    for (std::int64_t k = 0; k < count && kind_ == Pool::weighted; ++k) {
      const PoolRow row = member(k);
      alpha_grad[k] += vector_dot(grad_, row.data, row.dtype, width_);
    }
    if (kind_ != Pool::max) return;
    const PoolRow first = member(0);
    vector_widen(first.data, first.dtype, width_, top);
    std::fill_n(winners_, width_, 0);
    for (std::int64_t k = 1; k < count; ++k) {
      const PoolRow row = member(k);
      note_winners(row, static_cast<std::int32_t>(k), top);
    }
  }

  /// to += the gradient of member k.
  void add(std::int64_t k, float* to) const {
    switch (kind_) {
      case Pool::weighted:
        return vector_add_scaled(alpha_[static_cast<std::size_t>(k)], grad_, DType::f32, width_,
                                 to);
      case Pool::mean:
        return vector_add_scaled(1.0F / static_cast<float>(alpha_.size()), grad_, DType::f32,
                                 width_, to);
      case Pool::select:
        if (k == weights_.best) vector_add_scaled(1, grad_, DType::f32, width_, to);
        return;
      case Pool::max:
        for (std::int64_t i = 0; i < width_; ++i) {
          if (winners_[i] == k) to[i] += grad_[i];
        }
        return;
    }
  }

 private:
  /// Notes where member k is larger than all before it: the lowest index of equals wins.
  void note_winners(const PoolRow& row, std::int32_t k, float* top) const {
    for (std::int64_t i = 0; i < width_; ++i) {
      const float value = row.dtype == DType::f32
                              ? static_cast<const float*>(row.data)[i]
                              : bf16_to_f32(static_cast<const bf16_bits*>(row.data)[i]);
      if (value > top[i]) {
        top[i] = value;
        winners_[i] = k;
      }
    }
  }

  Pool kind_;
  const float* grad_;
  std::int64_t width_;
  const GroupWeights& weights_;
  std::span<const float> alpha_;
  std::int32_t* winners_;
};

}  // namespace lca::cpu
