// Products through cuBLASLt against plain loops in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <lca/error.h>

#include "cuda/support.h"
#include "ops/cuda/product.h"

namespace lca::test {
namespace {

struct ProductCase {
  std::int64_t rows = 1, columns = 1, inner = 1;
  bool b_transposed = true, c_float = false, accumulate = false;
  int batch = 1;
  bool one_b = false;      ///< all products of a batch share B
  std::int64_t spare = 0;  ///< elements behind every row, NaN
  std::int64_t shift = 0;  ///< elements before every matrix
  std::uint64_t seed = 0;
  float alpha = 1;
  bool a_transposed = false;

  std::string describe() const {
    std::ostringstream text;
    text << rows << " x " << columns << " x " << inner << (a_transposed ? " At" : " A")
         << (b_transposed ? "*Bt" : "*B") << (c_float ? " float" : " bf16")
         << (accumulate ? " added" : "") << " batch " << batch << (one_b ? " one B" : "")
         << " spare " << spare << " shift " << shift;
    return text.str();
  }
};

/// Random [batch][rows][stride] with NaN behind the columns of every row, and before all of it.
std::vector<bf16> matrices(Random& random, std::int64_t batch, std::int64_t rows,
                           std::int64_t width, const ProductCase& c) {
  std::vector<bf16> values = nan_bf16(c.shift + batch * rows * (width + c.spare));
  for (std::int64_t row = 0; row < batch * rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      values[static_cast<std::size_t>(c.shift + row * (width + c.spare) + i)] =
          bf16_of(random.normal());
    }
  }
  return values;
}

template <typename Out>
void expect_right(const ProductCase& c) {
  SCOPED_TRACE(c.describe());
  Random random(c.seed + 77);
  const std::int64_t b_rows = c.b_transposed ? c.columns : c.inner;
  const std::int64_t b_width = c.b_transposed ? c.inner : c.columns;
  const std::int64_t a_rows = c.a_transposed ? c.inner : c.rows;
  const std::int64_t a_width = c.a_transposed ? c.rows : c.inner;
  const std::int64_t a_stride = a_width + c.spare;
  const std::int64_t b_stride = b_width + c.spare;
  const std::int64_t c_stride = c.columns + c.spare;
  const std::vector<bf16> a = matrices(random, c.batch, a_rows, a_width, c);
  const std::vector<bf16> b = matrices(random, c.one_b ? 1 : c.batch, b_rows, b_width, c);
  std::vector<Out> before(static_cast<std::size_t>(c.shift + c.batch * c.rows * c_stride));
  for (Out& value : before) value = Out(c.accumulate ? static_cast<float>(random.normal()) : kNan);

  const DeviceArray<bf16> a_device(a);
  const DeviceArray<bf16> b_device(b);
  const DeviceArray<Out> c_device(before);
  cuda::Product product;
  product.a = a_device.data() + c.shift;
  product.b = b_device.data() + c.shift;
  product.c = c_device.data() + c.shift;
  product.rows = c.rows;
  product.columns = c.columns;
  product.inner = c.inner;
  product.a_stride = a_stride;
  product.b_stride = b_stride;
  product.c_stride = c_stride;
  product.a_transposed = c.a_transposed;
  product.b_transposed = c.b_transposed;
  product.c_float = c.c_float;
  product.accumulate = c.accumulate;
  product.alpha = c.alpha;
  product.batch = c.batch;
  product.a_batch = a_rows * a_stride;
  product.b_batch = c.one_b ? 0 : b_rows * b_stride;
  product.c_batch = c.rows * c_stride;
  const cuda::Stream stream(gpu());
  TestProducts products;
  products.space().multiply(product, stream);
  stream.wait();

  const std::vector<Out> got = c_device.download();
  RelativeError error;
  for (std::int64_t row = 0; row < c.batch * c.rows; ++row) {
    const std::int64_t b_first = c.one_b ? 0 : row / c.rows * b_rows;
    const std::int64_t a_first = row / c.rows * a_rows;
    for (std::int64_t column = 0; column < c_stride; ++column) {
      const auto at = static_cast<std::size_t>(c.shift + row * c_stride + column);
      if (column >= c.columns) {  // behind the row: as it was
        const double left = double_of(got[at]);
        const double was = double_of(before[at]);
        ASSERT_TRUE(left == was || (std::isnan(left) && std::isnan(was)))
            << "row " << row << " is written behind its end";
        continue;
      }
      double sum = c.accumulate ? double_of(before[at]) : 0;
      for (std::int64_t i = 0; i < c.inner; ++i) {
        const std::int64_t b_at =
            c.b_transposed ? (b_first + column) * b_stride + i : (b_first + i) * b_stride + column;
        const std::int64_t a_at =
            c.a_transposed ? (a_first + i) * a_stride + row % c.rows : row * a_stride + i;
        sum += static_cast<double>(c.alpha) *
               double_of(a[static_cast<std::size_t>(c.shift + a_at)]) *
               double_of(b[static_cast<std::size_t>(c.shift + b_at)]);
      }
      const double value = double_of(got[at]);
      // A value is off by rounding the result, and by sums of `inner` products in float32.
      const double most =
          (c.c_float ? 1e-4 : 1e-2) * (std::abs(sum) + std::sqrt(static_cast<double>(c.inner)));
      ASSERT_LE(std::abs(value - sum), most)
          << "row " << row << " column " << column << ": got " << value << ", expected " << sum;
      error.add(value, sum);
    }
  }
  EXPECT_LE(error.value(), c.c_float ? 1e-5 : 5e-3);
}

void expect_right_any(const ProductCase& c) {
  if (c.c_float) {
    expect_right<float>(c);
  } else {
    expect_right<bf16>(c);
  }
}

TEST(CudaProduct, IsRightForAnySizes) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 0;
  for (const std::int64_t rows : {1, 2, 17, 128}) {
    for (const std::int64_t columns : {1, 24, 129}) {
      for (const std::int64_t inner : {1, 20, 136}) {
        for (const bool transposed : {true, false}) {
          ProductCase c{rows, columns, inner, transposed};
          c.c_float = ++seed % 2 == 0;
          c.accumulate = seed % 3 == 0;
          c.a_transposed = seed % 8 < 3;
          c.seed = seed;
          if (seed % 5 == 0) c.alpha = 0.375f;
          expect_right_any(c);
        }
      }
    }
  }
}

TEST(CudaProduct, TakesStridesBatchesAndViews) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 100;
  for (const int batch : {1, 3, 16}) {
    for (const std::int64_t spare : {0, 8, 3}) {
      for (const std::int64_t shift : {0, 8, 1}) {
        for (const bool transposed : {true, false}) {
          ProductCase c{33, 64, 48, transposed};
          c.batch = batch;
          c.spare = spare;
          c.shift = shift;
          c.one_b = seed % 4 == 0;
          c.c_float = ++seed % 2 == 0;
          c.accumulate = seed % 3 == 0;
          c.a_transposed = seed % 8 < 3;
          c.seed = seed;
          expect_right_any(c);
        }
      }
    }
  }
}

TEST(CudaProduct, IsZeroWithoutAnythingToAddUp) {
  LCA_NEEDS_GPU();
  expect_right<float>({3, 5, 0, true, true});
  expect_right<bf16>({3, 5, 0, true, false, true});
  expect_right<bf16>({0, 5, 4});
}

TEST(CudaProduct, ACapturedProductOutlivesTheThreadThatCapturedIt) {
  LCA_NEEDS_GPU();
  // Long sums of few results: an algorithm that splits them and needs its scratch.
  constexpr std::int64_t kRows = 8, kColumns = 16, kInner = 8192;
  const DeviceArray<bf16> a(std::vector<bf16>(kRows * kInner, bf16_of(1)));
  const DeviceArray<bf16> b(std::vector<bf16>(kColumns * kInner, bf16_of(0.5)));
  const DeviceArray<float> c(nan_float(kRows * kColumns));
  cuda::Product product;
  product.a = a.data();
  product.b = b.data();
  product.c = c.data();
  product.rows = kRows;
  product.columns = product.c_stride = kColumns;
  product.inner = product.a_stride = product.b_stride = kInner;
  product.c_float = true;
  const cuda::Stream stream(gpu());
  const cuda::Buffer scratch(cuda::Products::kScratchBytes);
  cudaGraphExec_t replay = nullptr;
  std::thread([&] {
    cuda::Products products(gpu());
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    products.multiply(product, scratch.as<void>(), stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check(cudaGraphInstantiate(&replay, graph, 0), "a graph");
    cudaGraphDestroy(graph);
  }).join();
  // Memory allocated by the thread, if any, would have been reused by now.
  const cuda::Buffer other(cuda::Products::kScratchBytes);
  cuda::check(cudaMemset(other.as<void>(), 0xff, other.bytes()), "poison");
  cuda::check(cudaDeviceSynchronize(), "poison");
  cuda::check(cudaGraphLaunch(replay, stream), "a graph");
  stream.wait();
  for (const float value : c.download()) EXPECT_EQ(value, 0.5f * kInner);
  std::vector<std::uint8_t> after(other.bytes());
  cuda::check(cudaMemcpy(after.data(), other.as<void>(), after.size(), cudaMemcpyDeviceToHost),
              "reading");
  EXPECT_TRUE(std::ranges::all_of(after, [](std::uint8_t byte) { return byte == 0xff; }))
      << "the product wrote memory that it was not given";
  cudaGraphExecDestroy(replay);
}

TEST(CudaProduct, RefusesRowsThatOverlap) {
  LCA_NEEDS_GPU();
  cuda::Product product;
  product.rows = 4;
  product.columns = product.inner = 8;
  product.a_stride = 7;
  product.b_stride = product.c_stride = 8;
  TestProducts products;
  EXPECT_THROW(products.space().multiply(product, nullptr), Error);
}

}  // namespace
}  // namespace lca::test
