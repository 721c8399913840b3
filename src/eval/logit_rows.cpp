// Rows of logits: 49,152 values or more, read once for the maximum and once for the sum. 2
// operations of memory for some 20 of arithmetic a value: about 0.2 ns a value with AVX-512, where
// std::exp in double takes 5.

#include "eval/logit_rows.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "eval/logit_rows.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.h"

HWY_BEFORE_NAMESPACE();
namespace lca::eval {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using LogitTag = hn::ScalableTag<float>;

/// Values whose float32 sum is added to the double one.
constexpr std::int64_t kLogitBlock = 1024;

/// The maximum; NaN where a value is NaN, which Max and Exp may pass over.
float LogitMost(const float* x, std::int64_t count) {
  const LogitTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto numbers = hn::Eq(most, most);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, x + i);
    numbers = hn::And(numbers, hn::Eq(value, value));
    most = hn::Max(most, value);
  }
  if (!hn::AllTrue(d, numbers)) return std::numeric_limits<float>::quiet_NaN();
  float result = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) {
    if (std::isnan(x[i])) return x[i];
    result = std::max(result, x[i]);
  }
  return result;
}

/// Σ exp(x − most), and Σ exp(x − most)·(x − y) where y is given.
void LogitSums(const float* x, const float* y, std::int64_t count, float most, double* sums) {
  const LogitTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, most);
  sums[0] = sums[1] = 0;
  std::int64_t i = 0;
  while (i + lanes <= count) {
    const std::int64_t end = std::min(count, i + kLogitBlock);
    auto weight = hn::Zero(d);
    auto product = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      const auto value = hn::LoadU(d, x + i);
      const auto part = hn::Exp(d, hn::Sub(value, shift));
      weight = hn::Add(weight, part);
      if (y != nullptr) {
        product = hn::MulAdd(part, hn::Sub(value, hn::LoadU(d, y + i)), product);
      }
    }
    sums[0] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, weight)));
    sums[1] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, product)));
  }
  for (; i < count; ++i) {
    const double part = std::exp(static_cast<double>(x[i] - most));
    sums[0] += part;
    if (y != nullptr) sums[1] += part * static_cast<double>(x[i] - y[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::eval
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::eval {

HWY_EXPORT(LogitMost);
HWY_EXPORT(LogitSums);

namespace {

/// The largest value; NaN where it is not finite.
double logit_most(std::span<const float> row) {
  const float most =
      HWY_DYNAMIC_DISPATCH(LogitMost)(row.data(), static_cast<std::int64_t>(row.size()));
  return std::isfinite(most) ? static_cast<double>(most) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double log_sum_exp(std::span<const float> row) {
  const double most = logit_most(row);
  double sums[2];
  HWY_DYNAMIC_DISPATCH(LogitSums)
  (row.data(), nullptr, static_cast<std::int64_t>(row.size()), static_cast<float>(most), sums);
  return most + std::log(sums[0]);
}

RowDivergence divergence_of(std::span<const float> p, std::span<const float> q) {
  if (p.size() != q.size()) {
    fail_internal("rows of {} and {} logits are not of one vocabulary", p.size(), q.size());
  }
  const double most = logit_most(p);
  double sums[2];
  HWY_DYNAMIC_DISPATCH(LogitSums)
  (p.data(), q.data(), static_cast<std::int64_t>(p.size()), static_cast<float>(most), sums);
  RowDivergence result;
  result.p_shift = most + std::log(sums[0]);
  result.q_shift = log_sum_exp(q);
  result.kl = sums[1] / sums[0] - result.p_shift + result.q_shift;
  return result;
}

std::int32_t likeliest(std::span<const float> row) {
  return static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin());
}

}  // namespace lca::eval
#endif
