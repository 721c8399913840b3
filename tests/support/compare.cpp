#include "support/compare.h"

#include "support/worst.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

namespace lca::test {
namespace {

struct Named {
  const char* name;
  const std::vector<double>* expected;
  const std::vector<double>* actual;
  double floor;
};

::testing::AssertionResult check(std::initializer_list<Named> tensors, double tolerance) {
  auto failure = ::testing::AssertionFailure();
  bool failed = false;
  for (const Named& tensor : tensors) {
    const double error = error_of(*tensor.expected, *tensor.actual, tensor.floor);
    if (error <= tolerance) continue;
    failed = true;
    failure << tensor.name << " (" << tensor.actual->size() << " values, "
            << tensor.expected->size() << " expected) is off by " << error << "; ";
  }
  if (!failed) return ::testing::AssertionSuccess();
  return failure << "allowed: " << tolerance;
}

::testing::AssertionResult same(
    std::initializer_list<std::pair<const std::vector<float>*, const std::vector<float>*>> pairs) {
  int tensor = 0;
  for (const auto& [expected, actual] : pairs) {
    ++tensor;
    if (expected->size() != actual->size()) {
      return ::testing::AssertionFailure() << "tensor " << tensor << " has " << actual->size()
                                           << " values, not " << expected->size();
    }
    for (std::size_t i = 0; i < expected->size(); ++i) {
      const float a = (*expected)[i];
      const float b = (*actual)[i];
      if (std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b)) {
        return ::testing::AssertionFailure()
               << "tensor " << tensor << " value " << i << ": " << b << ", not " << a;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

double error_of(std::span<const double> expected, std::span<const double> actual, double floor) {
  const double error = worst_difference(expected, actual) / larger(floor, largest(expected));
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

double worst_error(const reference::Result& expected, const reference::Result& actual) {
  return std::max({error_of(expected.out, actual.out), error_of(expected.lse, actual.lse),
                   error_of(expected.rep_semantic, actual.rep_semantic),
                   error_of(expected.rep_positional, actual.rep_positional),
                   error_of(expected.rep_bias, actual.rep_bias, kErrorFloorBias)});
}

::testing::AssertionResult close(const reference::Result& expected, const reference::Result& actual,
                                 double tolerance) {
  if (expected.tokens != actual.tokens || expected.groups != actual.groups) {
    return ::testing::AssertionFailure()
           << actual.tokens << " tokens and " << actual.groups << " groups, not " << expected.tokens
           << " and " << expected.groups;
  }
  return check({{"out", &expected.out, &actual.out, kErrorFloor},
                {"lse", &expected.lse, &actual.lse, kErrorFloor},
                {"rep_semantic", &expected.rep_semantic, &actual.rep_semantic, kErrorFloor},
                {"rep_positional", &expected.rep_positional, &actual.rep_positional, kErrorFloor},
                {"rep_bias", &expected.rep_bias, &actual.rep_bias, kErrorFloorBias}},
               tolerance);
}

::testing::AssertionResult close(const reference::Result& expected, const Outcome& actual,
                                 DType dtype) {
  return close(expected, widen(actual), tolerance_of(dtype));
}

::testing::AssertionResult close_outputs(const reference::Result& expected,
                                         const reference::Result& actual, double tolerance) {
  return check({{"out", &expected.out, &actual.out, kErrorFloor},
                {"lse", &expected.lse, &actual.lse, kErrorFloor}},
               tolerance);
}

::testing::AssertionResult same_bits(const Outcome& expected, const Outcome& actual) {
  return same({{&expected.out, &actual.out},
               {&expected.lse, &actual.lse},
               {&expected.rep_semantic, &actual.rep_semantic},
               {&expected.rep_positional, &actual.rep_positional},
               {&expected.rep_bias, &actual.rep_bias}});
}

::testing::AssertionResult same_output_bits(const Outcome& expected, const Outcome& actual) {
  return same({{&expected.out, &actual.out}, {&expected.lse, &actual.lse}});
}

double test_scale() {
  const char* text = std::getenv("LCA_TEST_SCALE");
  if (text == nullptr) return 1;
  const double factor = std::strtod(text, nullptr);
  return factor > 0 ? factor : 1;
}

std::size_t scaled_step(std::size_t step) { return test_scale() < 1 ? step : 1; }

std::int64_t scaled(std::int64_t count) {
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(count) * test_scale()));
}

}  // namespace lca::test
