// Products with packed weights against plain loops in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/workspace.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/strips.h"
#include "support/worst.h"

namespace lca::test {
namespace {

std::vector<float> random_values(std::uint64_t seed, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0);
  }
  return values;
}

PackedMatrix matrix_of(const std::vector<float>& values, std::int64_t rows) {
  return {reinterpret_cast<const std::byte*>(values.data()), PackedType::f32, rows,
          static_cast<std::int64_t>(values.size()) / rows};
}

/// x·Wᵀ + bias + scale·(x·Aᵀ)·Bᵀ, in double.
std::vector<double> expected_of(const std::vector<float>& x, const std::vector<float>& w,
                                std::int64_t rows, std::int64_t out, std::int64_t in) {
  std::vector<double> result(static_cast<std::size_t>(rows * out));
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t n = 0; n < out; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < in; ++k) {
        sum += static_cast<double>(x[static_cast<std::size_t>(m * in + k)]) *
               w[static_cast<std::size_t>(n * in + k)];
      }
      result[static_cast<std::size_t>(m * out + n)] = sum;
    }
  }
  return result;
}

std::vector<float> poisoned(std::size_t count) {
  return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
}

TEST(Linear, MatchesPlainLoopsForFewAndManyRows) {
  Context context(2);
  for (const std::int64_t in : {1, 31, 64, 576}) {
    for (const std::int64_t out : {1, 33, 300}) {
      const auto w = random_values(1, out * in);
      for (const std::int64_t rows : {1, 2, 12, 13, 70}) {
        const auto x = random_values(2, rows * in);
        const auto expected = expected_of(x, w, rows, out, in);
        const Linear layer{matrix_of(w, out), nullptr, {}};
        std::vector<float> actual = poisoned(expected.size());
        linear(context, layer, ProductType::f32, x.data(), rows, actual.data());
        EXPECT_LE(worst_difference(expected, actual), 1e-5 * std::sqrt(in) + 1e-6)
            << in << " " << out << " " << rows;
        actual = poisoned(expected.size());
        linear(context, layer, ProductType::bf16, x.data(), rows, actual.data());
        EXPECT_LE(worst_difference(expected, actual), 1.2e-2 * std::sqrt(in))
            << in << " " << out << " " << rows;
      }
    }
  }
}

TEST(Linear, Bfloat16RowsAreMultipliedInFewNumbersOfRows) {
  std::set<std::int64_t> numbers;
  for (std::int64_t m = 1; m <= 3000; ++m) {
    for (std::int64_t left = m; left > 0;) {
      const std::int64_t rows = bf16_rows_together(left);
      ASSERT_GE(rows, std::min(m, kAlikeRows)) << m;
      ASSERT_LE(rows, left) << m;
      numbers.insert(rows);
      left -= rows;
    }
  }
  EXPECT_LE(numbers.size(), 76u);
  EXPECT_EQ(bf16_rows_together(47), 47) << "a short prompt is one product";
  EXPECT_EQ(bf16_rows_together(192), 192) << "a usual chunk is one product";
}

TEST(Linear, Bfloat16RowsAreTheSameInAnyNumberOfPieces) {
  if (!product_bf16_is_native()) GTEST_SKIP() << "this processor has no bfloat16 products";
  if (!product_rows_are_alike(true)) GTEST_SKIP() << "here rows depend on those beside them";
  Context context(2);
  constexpr std::int64_t kIn = 96, kOut = 40, kRows = 560;
  const auto w = random_values(1, kOut * kIn);
  const auto x = random_values(2, kRows * kIn);
  const Linear layer{matrix_of(w, kOut), nullptr, {}};
  std::vector<float> all = poisoned(kRows * kOut);
  linear(context, layer, ProductType::bf16, x.data(), kRows, all.data());
  for (const std::int64_t rows : {16, 31, 32, 33, 47, 255, 256, 257, 271, 272, 273, 529}) {
    std::vector<float> some = poisoned(static_cast<std::size_t>(rows * kOut));
    linear(context, layer, ProductType::bf16, x.data(), rows, some.data());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
  }
}

TEST(Linear, Bfloat16FactorsAreRoundedAndSumsAreNot) {
  if (!product_bf16_is_native()) GTEST_SKIP() << "this processor has no bfloat16 products";
  Context context(1);
  // 1 + 2⁻¹⁰ rounds to 1; the sum of 300 ones is no bfloat16 but must come out exact.
  const std::vector<float> w(2 * 300, 1.0F + 0x1p-10F);
  const std::vector<float> x(20 * 300, 1.0F);
  std::vector<float> out = poisoned(20 * 2);
  linear(context, {matrix_of(w, 2), nullptr, {}}, ProductType::bf16, x.data(), 20, out.data());
  for (const float value : out) EXPECT_EQ(value, 300.0F);
}

TEST(Linear, FewRowsOnPackedBlocksStayCloseToUnpackedOnes) {
  Context context(2);
  int checked = 0;
  for (int t = 0; t < kPackedTypes; ++t) {
    const auto type = static_cast<PackedType>(t);
    if (!strips_supported(type)) continue;
    const PackedTypeInfo& info = packed_type_info(type);
    const std::int64_t in = 768, out = 45;
    // Any bytes are valid weights, except the scales, which must be finite half-precision numbers.
    std::vector<std::byte> bytes(packed_bytes(type, out * in));
    std::uint64_t state = static_cast<std::uint64_t>(t) + 1;
    for (std::byte& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(state >> 56);
    }
    for (std::size_t at = 0; at < bytes.size(); at += info.block_bytes) {
      const std::uint16_t scale = 0x2400, minimum = 0xa000;
      const bool last = type == PackedType::q6_k;
      std::memcpy(bytes.data() + at + (last ? info.block_bytes - 2 : 0), &scale, 2);
      const bool two = type == PackedType::q4_1 || type == PackedType::q5_1 ||
                       type == PackedType::q4_k || type == PackedType::q5_k;
      if (two) std::memcpy(bytes.data() + at + 2, &minimum, 2);
    }
    const PackedMatrix plain{bytes.data(), type, out, in};
    const std::size_t strip = strip_bytes(type, in);
    const AlignedBytes memory = aligned_bytes(static_cast<std::size_t>(strip_count(out)) * strip);
    for (std::int64_t i = 0; i < strip_count(out); ++i) {
      strip_arrange(plain, i, memory.get() + static_cast<std::size_t>(i) * strip);
    }
    const PackedMatrix matrix{memory.get(), type, out, in, true};
    std::vector<float> w(static_cast<std::size_t>(out * in));
    unpack_f32(type, bytes.data(), w.data(), out * in);
    double norm = 0;
    for (const float value : w) norm += value * value / static_cast<double>(w.size());
    for (const std::int64_t rows : {1, 2, 3, 4, 7, 12}) {
      const auto x = random_values(9, rows * in);
      const auto expected = expected_of(x, w, rows, out, in);
      std::vector<float> actual = poisoned(expected.size());
      linear(context, {matrix, nullptr, {}}, ProductType::bf16, x.data(), rows, actual.data());
      // Each activation is off by at most 2⁻¹⁵ of its block's largest; sums are float32.
      EXPECT_LE(worst_difference(expected, actual), 1e-4 * std::sqrt(norm * in)) << info.name;
      EXPECT_GT(worst_difference(expected, actual), 0) << info.name;
    }
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "this processor has no packed products";
}

TEST(ThreadsLinear, BitsDoNotDependOnTheThreads) {
  const std::int64_t in = 96, out = 700;
  const auto w = random_values(1, out * in);
  for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
    for (const std::int64_t rows : {3, 40}) {
      const auto x = random_values(2, rows * in);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 7}) {
        Context context(threads);
        std::vector<float> y = poisoned(static_cast<std::size_t>(rows * out));
        linear(context, {matrix_of(w, out), nullptr, {}}, type, x.data(), rows, y.data());
        results.push_back(y);
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_EQ(results[0], results[2]);
    }
  }
}

TEST(Elementwise, RmsNormDividesByTheRootMeanSquare) {
  Context context(2);
  const std::int64_t width = 77, rows = 5, stride = 80;
  const auto x = random_values(1, rows * stride);
  const auto weight = random_values(2, width);
  std::vector<float> out = poisoned(static_cast<std::size_t>(rows * width));
  rms_norm(context, x.data(), stride, rows, width, weight.data(), 1e-2, out.data(), width);
  for (std::int64_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      mean += std::pow(x[static_cast<std::size_t>(r * stride + c)], 2) / static_cast<double>(width);
    }
    for (std::int64_t c = 0; c < width; ++c) {
      const double expected = x[static_cast<std::size_t>(r * stride + c)] / std::sqrt(mean + 1e-2) *
                              weight[static_cast<std::size_t>(c)];
      EXPECT_NEAR(out[static_cast<std::size_t>(r * width + c)], expected, 1e-5);
    }
  }
}

TEST(Elementwise, SwigluIsSafeForLargeGates) {
  Context context(2);
  std::vector<float> gate{-200, -88, -1, 0, 1, 88, 200, 3, -3, 0.5F, 1e4F, -1e4F, 2, 4, 6, 8, 9};
  const std::vector<float> before = gate;
  const std::vector<float> up(gate.size(), 2.0F);
  swiglu(context, gate.data(), up.data(), std::ssize(gate));
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = before[i];
    const double expected = g < -700 ? 0 : 2 * g / (1 + std::exp(-g));
    EXPECT_NEAR(gate[i], expected, 1e-5 * std::max(1.0, std::abs(expected))) << g;
  }
}

TEST(Elementwise, FindsWhatIsNotFiniteInEveryType) {
  for (int t = 0; t < kPackedTypes; ++t) {
    const auto type = static_cast<PackedType>(t);
    const PackedTypeInfo& info = packed_type_info(type);
    std::vector<std::byte> bytes(4 * info.block_bytes * (info.block_values == 1 ? 64 : 1));
    PackedMatrix matrix{bytes.data(), type, 4, info.block_values == 1 ? 64 : info.block_values};
    EXPECT_TRUE(packed_is_finite(matrix)) << info.name;
    // All ones in the exponent of the last block's scale (or of the last number).
    const std::size_t last = bytes.size() - info.block_bytes;
    const std::size_t at = type == PackedType::q6_k ? bytes.size() - 2 : last;
    std::uint32_t bits = 0x7c00;
    std::size_t size = 2;
    if (type == PackedType::f32) {
      bits = 0x7f800001;
      size = 4;
    } else if (type == PackedType::bf16) {
      bits = 0xff80;
    }
    std::memcpy(bytes.data() + at, &bits, size);
    EXPECT_FALSE(packed_is_finite(matrix)) << info.name;
  }
}

// Lengths on both sides of the thresholds for the kind of product and for joining runs.
TEST(Linear, RunsTogetherGetWhatEachGetsAlone) {
  Context context(2);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const auto& [out, in] :
       {std::pair<std::int64_t, std::int64_t>{96, 64}, {40, 576}, {256, 1536}, {72, 2048}}) {
    std::vector<float> weights(static_cast<std::size_t>(out * in));
    for (float& value : weights) value = uniform(random);
    Linear layer;
    layer.weight = {reinterpret_cast<const std::byte*>(weights.data()), PackedType::f32, out, in};
    for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
      for (int round = 0; round < 4; ++round) {
        std::vector<std::int64_t> runs;
        std::int64_t rows = 0;
        for (int i = 0; i < 9; ++i) {
          runs.push_back(1 + static_cast<std::int64_t>(random() % (i % 2 == 0 ? 40 : 18)));
          rows += runs.back();
        }
        std::vector<float> x(static_cast<std::size_t>(rows * in));
        for (float& value : x) value = uniform(random);
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::vector<float> together(static_cast<std::size_t>(rows * out), nan);
        std::vector<float> alone(together.size(), nan);
        linear(context, layer, type, x.data(), runs, together.data());
        std::int64_t at = 0;
        for (const std::int64_t run : runs) {
          linear(context, layer, type, x.data() + at * in, run, alone.data() + at * out);
          at += run;
        }
        ASSERT_EQ(together, alone) << out << " x " << in;
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
