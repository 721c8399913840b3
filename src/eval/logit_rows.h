#pragma once
/// What evaluation computes from rows of logits. One pass or two over a row, in float32 with sums
/// in double: exact to about 1e-6 nats.

#include <cstdint>
#include <span>

namespace lca::eval {

/// ln Σ exp(x). NaN where a value is NaN, +infinity among them, or all are −infinity.
double log_sum_exp(std::span<const float> row);

/// KL(p ‖ q) in nats of the distributions that two rows of logits of one size stand for, and the
/// log-sum-exp of both. Never negative but for rounding.
struct RowDivergence {
  double kl = 0;
  double p_shift = 0, q_shift = 0;
};
RowDivergence divergence_of(std::span<const float> p, std::span<const float> q);

/// The index of the largest value, the lowest on ties.
std::int32_t likeliest(std::span<const float> row);

}  // namespace lca::eval
