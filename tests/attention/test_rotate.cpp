// Rotating rows on to other positions: angles of any difference, in both layouts.

#include "attention/rotate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "attention/cpu/vector.h"
#include "core/bf16.h"
#include "support/random.h"

namespace lca::test {
namespace {

using cpu::RowRotation;

RowRotation row_rotation(const Rotation& rotation, const std::vector<std::uint64_t>& steps) {
  return {rotation.layout, steps.data(), static_cast<std::int64_t>(steps.size())};
}

/// frequency · difference in more digits than a double has.
long double exact_angle(double frequency, std::int64_t difference) {
  return static_cast<long double>(frequency) * static_cast<long double>(difference);
}

TEST(Rotate, AnglesAreExactAtPositionsInTheMillions) {
  const Rotation rotation = rotation_plain(128, 100000);
  const std::vector<std::uint64_t> steps = rotation_steps(rotation);
  const auto pairs = static_cast<std::int64_t>(steps.size());
  std::vector<float> angles(2 * steps.size());
  for (const std::int64_t difference :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, std::int64_t{1000},
        std::int64_t{-123'457}, std::int64_t{-7'999'993}, std::int64_t{100'000'007}}) {
    cpu::vector_angles(row_rotation(rotation, steps), difference, angles.data());
    for (std::int64_t i = 0; i < pairs; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const long double angle = exact_angle(rotation.frequencies[at], difference);
      EXPECT_NEAR(angles[at], static_cast<double>(std::cos(angle)), 2e-7) << difference;
      EXPECT_NEAR(angles[at + steps.size()], static_cast<double>(std::sin(angle)), 2e-7);
      EXPECT_NEAR(std::remainder(rotation_angle(steps[at], difference) - static_cast<double>(angle),
                                 2 * std::numbers::pi),
                  0, 1e-7)
          << difference;
    }
  }
}

TEST(Rotate, ADifferenceOfZeroChangesNoBit) {
  const Rotation rotation = rotation_plain(32);
  const std::vector<std::uint64_t> steps = rotation_steps(rotation);
  std::vector<float> angles(2 * steps.size());
  cpu::vector_angles(row_rotation(rotation, steps), 0, angles.data());
  Random random(5);
  std::vector<float> row(32), rotated(32);
  for (float& value : row) value = static_cast<float>(random.normal());
  cpu::vector_rotate(row_rotation(rotation, steps), angles.data(), 1, row.data(), DType::f32, 32,
                     rotated.data());
  EXPECT_EQ(row, rotated);
}

TEST(Rotate, StepsOfOddFrequenciesStayInsideATurn) {
  EXPECT_EQ(rotation_step(0), 0u);
  EXPECT_EQ(rotation_step(2 * std::numbers::pi), 0u);
  for (const double frequency : {-0.25, 1.0, 7.5, -1e3, 1e-12, -1e-300}) {
    EXPECT_NEAR(std::remainder(rotation_angle(rotation_step(frequency), 3) - 3 * frequency,
                               2 * std::numbers::pi),
                0, 1e-9)
        << frequency;
  }
}

TEST(Rotate, RowsOfEveryWidthLayoutAndTypeAgreeWithDoublePrecision) {
  Random random(6);
  for (std::int64_t width = 2; width <= 70; ++width) {
    for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::adjacent}) {
      for (const std::int64_t pairs : {width / 2, std::int64_t{1}, (width + 2) / 4}) {
        Rotation rotation = rotation_plain(2 * pairs, 500);
        rotation.layout = layout;
        const std::vector<std::uint64_t> steps = rotation_steps(rotation);
        std::vector<float> angles(2 * steps.size());
        const std::int64_t difference = random.integer(-3'000'000, 100);
        cpu::vector_angles(row_rotation(rotation, steps), difference, angles.data());
        std::vector<bf16_bits> narrow(static_cast<std::size_t>(width));
        std::vector<float> wide, rotated(static_cast<std::size_t>(width));
        for (bf16_bits& bits : narrow) {
          bits = bf16_from_f32(static_cast<float>(random.normal()));
          wide.push_back(bf16_to_f32(bits));
        }
        std::vector<double> expected(wide.begin(), wide.end());
        rotate_row(rotation, difference, expected.data());
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const void* from = dtype == DType::f32 ? static_cast<const void*>(wide.data())
                                                 : static_cast<const void*>(narrow.data());
          cpu::vector_rotate(row_rotation(rotation, steps), angles.data(), 0.5F, from, dtype, width,
                             rotated.data());
          for (std::size_t i = 0; i < rotated.size(); ++i) {
            EXPECT_NEAR(rotated[i], 0.5 * expected[i], 1e-6) << width << " " << pairs;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
