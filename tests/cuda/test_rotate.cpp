// Angles of entry positions on the GPU (mechanism §10), against long double.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/rotate.h"
#include "cuda/rotate_turns.h"
#include "cuda/support.h"

namespace lca::test {
namespace {

/// 64 pairs, frequencies from 1 to 10000^(−126/128).
Rotation all_pairs() { return rotation_plain(128); }

/// The largest error of a cosine or a sine; the differences are those of every step.
double worst_error(const Rotation& rotation, const std::vector<std::int32_t>& differences,
                   const std::vector<float>& turns) {
  double worst = 0;
  const std::size_t count = differences.size();
  for (std::size_t s = 0; s < rotation.frequencies.size(); ++s) {
    for (std::size_t d = 0; d < count; ++d) {
      const long double angle = static_cast<long double>(rotation.frequencies[s]) * differences[d];
      const float* const got = turns.data() + 2 * (s * count + d);
      worst = std::fmax(worst, std::abs(static_cast<double>(got[0] - std::cos(angle))));
      worst = std::fmax(worst, std::abs(static_cast<double>(got[1] - std::sin(angle))));
    }
  }
  return worst;
}

TEST(CudaRotate, AnglesOfDifferencesUpToTwoMillionAreExactToAFloat) {
  LCA_NEEDS_GPU();
  const Rotation rotation = all_pairs();
  std::vector<std::int32_t> differences{0, 1, -1};
  for (std::int32_t power = 2; power <= 1 << 21; power *= 2) {
    for (const std::int32_t near : {power - 1, power, power + power / 3}) {
      differences.push_back(near);
      differences.push_back(-near);
    }
  }
  const DeviceArray<std::uint64_t> steps(rotation_steps(rotation));
  const DeviceArray<std::int32_t> asked(differences);
  const DeviceArray<float> turns(
      nan_float(static_cast<std::int64_t>(2 * steps.size() * differences.size())));
  turns_make(steps.data(), static_cast<int>(steps.size()), asked.data(),
             static_cast<int>(differences.size()), turns.data());
  // π · 2⁻²⁵ for the angle as a float, as much again for its cosine or sine.
  const std::vector<float> got = turns.download();
  EXPECT_LE(worst_error(rotation, differences, got), 3e-7);
  // No rotation is none at all.
  for (std::size_t s = 0; s < steps.size(); ++s) {
    EXPECT_EQ(got[2 * s * differences.size()], 1.0f);
    EXPECT_EQ(got[2 * s * differences.size() + 1], 0.0f);
  }
}

TEST(CudaRotate, TurnsOfALongGroupDoNotDriftApart) {
  LCA_NEEDS_GPU();
  const Rotation rotation = all_pairs();
  const DeviceArray<std::uint64_t> steps(rotation_steps(rotation));
  for (const std::int32_t first : {0, -123456, -(1 << 21)}) {
    std::vector<std::int32_t> differences;
    for (std::int32_t i = 0; i < 512; ++i) differences.push_back(first - i);
    const DeviceArray<float> turns(
        nan_float(static_cast<std::int64_t>(2 * steps.size() * differences.size())));
    member_turns_make(steps.data(), static_cast<int>(steps.size()), first,
                      static_cast<int>(differences.size()), turns.data());
    // 31 turns from the last that was made from its angle, each with errors of about 10⁻⁷.
    EXPECT_LE(worst_error(rotation, differences, turns.download()), 4e-6) << "from " << first;
  }
}

}  // namespace
}  // namespace lca::test
