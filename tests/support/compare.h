#pragma once
/// How errors are measured (mechanism §5), and assertions on them.

#include <gtest/gtest.h>

#include <span>

#include "attention/reference/reference.h"
#include "support/feed.h"

namespace lca::test {

/// Tolerances of the fast path, measured as below. bfloat16 storage rounds a representative to 8
/// bits, and kernels may round rebuilt keys and softmax weights as well.
constexpr double kToleranceF32 = 2e-4;
constexpr double kToleranceBf16 = 2e-2;
constexpr double tolerance_of(DType dtype) {
  return dtype == DType::f32 ? kToleranceF32 : kToleranceBf16;
}

constexpr double kErrorFloor = 1e-2;
constexpr double kErrorFloorBias = 1;

/// max|Δ| / max(max|reference|, floor); infinite where sizes differ or a value is not a number.
double error_of(std::span<const double> expected, std::span<const double> actual,
                double floor = kErrorFloor);

/// The largest error over all tensors.
double worst_error(const reference::Result& expected, const reference::Result& actual);

/// Whether every tensor of `actual` is within the tolerance; the message names those that are not.
::testing::AssertionResult close(const reference::Result& expected, const reference::Result& actual,
                                 double tolerance);
/// The same with the tolerance of the fast path for caches of this type.
::testing::AssertionResult close(const reference::Result& expected, const Outcome& actual,
                                 DType dtype);
/// The same for outputs and log-sum-exps alone: what two methods with different representatives
/// have in common.
::testing::AssertionResult close_outputs(const reference::Result& expected,
                                         const reference::Result& actual, double tolerance);

/// Whether all tensors, or the outputs and log-sum-exps, are the same floats bit for bit.
::testing::AssertionResult same_bits(const Outcome& expected, const Outcome& actual);
::testing::AssertionResult same_output_bits(const Outcome& expected, const Outcome& actual);

/// The factor LCA_TEST_SCALE puts on the number of random cases; 1 without it.
double test_scale();
/// `count` times that factor, at least 1.
std::int64_t scaled(std::int64_t count);

/// The step through a list of cases: 1, or `step` where LCA_TEST_SCALE asks for fewer.
std::size_t scaled_step(std::size_t step);

}  // namespace lca::test
