// Products of a few rows against plain loops in double precision.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/support.h"
#include "ops/cuda/thin.h"

namespace lca::test {
namespace {

struct ThinCase {
  int rows = 1, columns = 1, inner = 1;
  bool y_float = false, accumulate = false, bias = false;
  int batch = 1;
  int spare = 0;  ///< elements behind every row, NaN
  int shift = 0;  ///< elements before x and W
};

template <typename Out>
void expect_thin_right(const ThinCase& c, std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message()
               << c.rows << " x " << c.columns << " x " << c.inner << (c.y_float ? " float" : "")
               << (c.accumulate ? " added" : "") << (c.bias ? " bias" : "") << " batch " << c.batch
               << " spare " << c.spare << " shift " << c.shift);
  Random random(seed);
  const std::int64_t stride = c.inner + c.spare, y_stride = c.columns + c.spare;
  const auto fill = [&](std::int64_t rows) {
    std::vector<bf16> values = nan_bf16(c.shift + rows * stride);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (int i = 0; i < c.inner; ++i) {
        values[static_cast<std::size_t>(c.shift + row * stride + i)] = bf16_of(random.normal());
      }
    }
    return values;
  };
  const std::vector<bf16> x = fill(std::int64_t{c.batch} * c.rows);
  const std::vector<bf16> w = fill(std::int64_t{c.batch} * c.columns);
  const std::vector<float> bias = random_float(random, std::int64_t{c.batch} * c.columns);
  std::vector<Out> before(static_cast<std::size_t>(c.batch * c.rows * y_stride), Out(kNan));
  if (c.accumulate) {
    for (std::int64_t row = 0; row < std::int64_t{c.batch} * c.rows; ++row) {
      for (int i = 0; i < c.columns; ++i) {
        before[static_cast<std::size_t>(row * y_stride + i)] =
            Out(static_cast<float>(random.normal()));
      }
    }
  }
  const DeviceArray<bf16> x_device(x), w_device(w);
  const DeviceArray<float> bias_device(bias);
  const DeviceArray<Out> y_device(before);
  cuda::Thin thin;
  thin.x = x_device.data() + c.shift;
  thin.w = w_device.data() + c.shift;
  thin.bias = c.bias ? bias_device.data() : nullptr;
  thin.y = y_device.data();
  thin.rows = c.rows;
  thin.columns = c.columns;
  thin.inner = c.inner;
  thin.x_stride = thin.w_stride = stride;
  thin.y_stride = y_stride;
  thin.y_float = c.y_float;
  thin.accumulate = c.accumulate;
  thin.batch = c.batch;
  thin.x_batch = c.rows * stride;
  thin.w_batch = c.columns * stride;
  thin.y_batch = c.rows * y_stride;
  cuda::thin_multiply(thin, gpu_queue());
  const std::vector<Out> got = y_device.download();
  RelativeError error;
  for (std::int64_t row = 0; row < std::int64_t{c.batch} * c.rows; ++row) {
    const std::int64_t of = row / c.rows;
    for (std::int64_t column = 0; column < y_stride; ++column) {
      const auto at = static_cast<std::size_t>(row * y_stride + column);
      if (column >= c.columns) {
        ASSERT_TRUE(std::isnan(double_of(got[at])))
            << "row " << row << " is written behind its end";
        continue;
      }
      double sum = c.accumulate ? double_of(before[at]) : 0;
      if (c.bias) sum += double{bias[static_cast<std::size_t>(of * c.columns + column)]};
      for (int i = 0; i < c.inner; ++i) {
        sum += double_of(x[static_cast<std::size_t>(c.shift + row * stride + i)]) *
               double_of(
                   w[static_cast<std::size_t>(c.shift + (of * c.columns + column) * stride + i)]);
      }
      ASSERT_NEAR(double_of(got[at]), sum,
                  (c.y_float ? 1e-4 : 1e-2) * (std::abs(sum) + std::sqrt(double{1.0} * c.inner)))
          << "row " << row << " column " << column;
      error.add(double_of(got[at]), sum);
    }
  }
  EXPECT_LE(error.value(), c.y_float ? 1e-5 : 5e-3);
}

TEST(CudaThin, IsRightForAnySizes) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 0;
  for (const int rows : {1, 2, 8, 9, 16, 17, 32, 40}) {
    for (const int columns : {1, 16, 33, 200}) {
      for (const int inner : {1, 20, 64, 136, 1000}) {
        ThinCase c{rows, columns, inner};
        c.y_float = ++seed % 2 == 0;
        c.accumulate = seed % 4 == 0;
        c.bias = seed % 3 == 0;
        c.batch = seed % 5 == 0 ? 3 : 1;
        c.spare = static_cast<int>(seed % 3) * 4;
        c.shift = seed % 7 == 0 ? 3 : 0;
        c.y_float ? expect_thin_right<float>(c, seed) : expect_thin_right<bf16>(c, seed);
      }
    }
  }
}

TEST(CudaThin, TheSizesOfDecoding) {
  LCA_NEEDS_GPU();
  for (const int rows : {1, 4, 12, 32}) {
    ThinCase output{rows, 2048, 2048, true, true};
    expect_thin_right<float>(output, 1);
    ThinCase latent{rows, 3648, 2048};
    expect_thin_right<bf16>(latent, 2);
    ThinCase absorbed{rows, 512, 128};
    absorbed.batch = 16;
    expect_thin_right<bf16>(absorbed, 3);
  }
}

TEST(CudaThin, ARowDoesNotDependOnTheOthers) {
  LCA_NEEDS_GPU();
  Random random(5);
  constexpr int kColumns = 96, kInner = 512;
  const DeviceArray<bf16> x(random_bf16(random, 8 * kInner)),
      w(random_bf16(random, kColumns * kInner));
  std::vector<float> alone;
  for (const int rows : {1, 3, 8}) {
    const DeviceArray<float> y(nan_float(8 * kColumns));
    cuda::Thin thin;
    thin.x = x.data();
    thin.w = w.data();
    thin.y = y.data();
    thin.rows = rows;
    thin.columns = kColumns;
    thin.inner = kInner;
    thin.x_stride = thin.w_stride = kInner;
    thin.y_stride = kColumns;
    thin.y_float = true;
    cuda::thin_multiply(thin, gpu_queue());
    std::vector<float> got = y.download();
    got.resize(kColumns);
    if (rows == 1) alone = got;
    EXPECT_EQ(got, alone) << rows << " rows";
  }
}

}  // namespace
}  // namespace lca::test
