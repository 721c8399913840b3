// Summaries made from queries in one kernel, against plain loops in double precision on the same
// bf16 values. Outputs, and all queries that no group asks for, start as NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/condense_support.h"

namespace lca::test {
namespace {

constexpr std::int64_t kSpareRows = 5;  // before and after those that are needed

struct Case {
  Layout layout;
  std::int64_t first_group, count;
};

/// Queries of a case in one tensor [rows][H][d_n + d_r + slack], or each part in one of its own.
struct CaseQueries {
  CaseQueries(Random& random, const AttentionShape& shape, const Case& c, bool apart,
              std::int64_t slack)
      : first(c.layout.summary_range(c.first_group, 0).begin - kSpareRows) {
    const std::int64_t rows =
        c.layout.summary_range(c.first_group + c.count - 1, 0).end + kSpareRows - first;
    head_stride = shape.d_nope + shape.d_rope + slack;
    row_stride = shape.heads * head_stride;
    values = nan_bf16(rows * row_stride);
    for (std::int64_t k = 0; k < c.count; ++k) {
      const Range range = c.layout.summary_range(c.first_group + k, 0);
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t i = 0; i < shape.d_nope + shape.d_rope; ++i) {
            bf16& value = values[at(place(t, h, i))];
            if (std::isnan(double_of(value))) value = bf16_of(random.normal());
          }
        }
      }
    }
    view.first = first;
    view.rows = rows;
    if (!apart) {
      device = DeviceArray<bf16>(values);
      view.nope = {device.data(), row_stride, head_stride, static_cast<int>(shape.d_nope)};
      view.rope = {device.data() + shape.d_nope, row_stride, head_stride,
                   static_cast<int>(shape.d_rope)};
      return;
    }
    std::vector<bf16> nope;
    std::vector<bf16> rope;
    for (std::int64_t i = 0; i < rows * shape.heads; ++i) {
      const auto from = values.begin() + i * head_stride;
      nope.insert(nope.end(), from, from + shape.d_nope);
      rope.insert(rope.end(), from + shape.d_nope, from + shape.d_nope + shape.d_rope);
    }
    device = DeviceArray<bf16>(nope);
    device_rope = DeviceArray<bf16>(rope);
    view.nope = {device.data(), shape.heads * shape.d_nope, shape.d_nope,
                 static_cast<int>(shape.d_nope)};
    view.rope = {device_rope.data(), shape.heads * shape.d_rope, shape.d_rope,
                 static_cast<int>(shape.d_rope)};
  }

  std::int64_t place(std::int64_t position, std::int64_t head, std::int64_t i) const {
    return (position - first) * row_stride + head * head_stride + i;
  }
  double mean(const Range& range, std::int64_t head, std::int64_t i) const {
    double sum = 0;
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      sum += double_of(values[at(place(t, head, i))]);
    }
    return sum / static_cast<double>(range.size());
  }

  std::int64_t first;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::vector<bf16> values;
  DeviceArray<bf16> device;
  DeviceArray<bf16> device_rope;
  cuda::QueryRows view;
};

/// [count][d_c + d_r]: the absorbed means, then the sums over heads of those with position.
std::vector<double> summary_expected(const AttentionShape& shape, const Case& c,
                                     const CaseQueries& queries, const std::vector<bf16>& w) {
  const std::int64_t width = shape.d_latent + shape.d_rope;
  std::vector<double> want(at(c.count * width));
  for (std::int64_t k = 0; k < c.count; ++k) {
    const Range range = c.layout.summary_range(c.first_group + k, 0);
    double* to = want.data() + k * width;
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t i = 0; i < shape.d_nope; ++i) {
        const double mean = queries.mean(range, h, i);
        const bf16* row = w.data() + (h * shape.d_nope + i) * shape.d_latent;
        for (std::int64_t j = 0; j < shape.d_latent; ++j) to[j] += mean * double_of(row[j]);
      }
      for (std::int64_t i = 0; i < shape.d_rope; ++i) {
        to[shape.d_latent + i] += queries.mean(range, h, shape.d_nope + i);
      }
    }
  }
  return want;
}

/// |Δ| ≤ 1e-4 of the largest magnitude: bf16 means alone would be 20 times worse.
::testing::AssertionResult summary_near(const std::vector<float>& got,
                                        const std::vector<double>& want, std::int64_t width) {
  double largest = 0;
  for (const double value : want) largest = std::fmax(largest, std::fabs(value));
  std::int64_t wrong = 0;
  std::size_t first = 0;
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(double_of(got[i]) - want[i]);
    if (!(error <= 1e-4 * largest) && wrong++ == 0) first = i;
    worst = std::fmax(worst, error);
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  const auto columns = static_cast<std::size_t>(width);
  return ::testing::AssertionFailure()
         << wrong << " of " << want.size() << " values are wrong, worst error " << worst << " of "
         << largest << "; first at group " << first / columns << " column " << first % columns
         << ": got " << double_of(got[first]) << ", want " << want[first];
}

/// Runs it once: every summary is right, and nothing lies behind the last.
void summary_check(const AttentionShape& shape, const Case& c, const CaseQueries& queries,
                   const std::vector<bf16>& w, const DeviceArray<bf16>& device_w) {
  const std::int64_t width = shape.d_latent + shape.d_rope;
  const DeviceArray<float> summary(nan_float((c.count + 1) * width));
  cuda::query_summary(shape, c.layout, queries.view, c.first_group, c.count, device_w.data(),
                      summary.data(), gpu_queue());
  const std::vector<float> got = summary.download();
  ASSERT_TRUE(summary_near(got, summary_expected(shape, c, queries, w), width));
  ASSERT_TRUE(is_nan_from(got, c.count * width)) << "written after the last group";
}

TEST(CudaQuerySummary, SummariesAreAbsorbedMeansOfTheRangesTheLayoutNames) {
  LCA_NEEDS_GPU();
  const std::vector<Case> cases = {
      {layout_of(16, 32, 0, 16), 0, 70},   // each query once; a second block of 6 groups
      {layout_of(16, 32, 5, 16), 37, 64},  // not from the first group on; one full block
      {layout_of(4, 100, 0, 50), 2, 9},    // overlapping ranges
      {layout_of(5, 1, 2, 3), 1, 66},      // gaps between ranges, an odd number of queries
      {layout_of(1, 1, 0, 1), 7, 131},     // fewer queries than steps
      {layout_of(16, 16, 0, 17), 0, 3},   {layout_of(32, 64, 0, 7), 3, 1},
  };
  std::uint64_t seed = 3000;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
        AttentionShape::mla(1, 128, 64, 512, 128), AttentionShape::mla(1, 64, 32, 256, 64)}) {
    for (const Case& c : cases) {
      Random random(++seed);
      const bool apart = seed % 3 == 0;
      const std::int64_t slack = seed % 2 == 0 ? 0 : 8;
      SCOPED_TRACE(shape_text(shape) + " case " + std::to_string(&c - cases.data()) + " seed " +
                   std::to_string(seed));
      const CaseQueries queries(random, shape, c, apart, slack);
      const std::vector<bf16> w =
          random_bf16(random, shape.heads * shape.d_nope * shape.d_latent, 0.1);
      const DeviceArray<bf16> device_w(w);
      if (!cuda::query_summary_fits(gpu(), shape, HeadReduce::mean, &c.layout, queries.view,
                                    c.first_group, device_w.data())) {
        // Only for lack of shared memory.
        ASSERT_LT(gpu().shared_bytes, shape.d_latent == 512 ? 224u * 1024 : 160u * 1024);
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(summary_check(shape, c, queries, w, device_w));
    }
  }
}

TEST(CudaQuerySummary, AWholeModelsHeadsAddUp) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 3100;
  for (const AttentionShape& shape :
       {AttentionShape::mla(16, 128, 64, 512, 128), AttentionShape::mla(40, 64, 32, 256, 64)}) {
    Random random(++seed);
    SCOPED_TRACE(shape_text(shape) + " seed " + std::to_string(seed));
    const Case c = {layout_of(16, 1024, 0, 16), 100, 5};
    const CaseQueries queries(random, shape, c, false, 0);
    const std::vector<bf16> w =
        random_bf16(random, shape.heads * shape.d_nope * shape.d_latent, 0.1);
    const DeviceArray<bf16> device_w(w);
    if (!cuda::query_summary_fits(gpu(), shape, HeadReduce::sum, &c.layout, queries.view,
                                  c.first_group, device_w.data())) {
      continue;  // the other test says why
    }
    ASSERT_NO_FATAL_FAILURE(summary_check(shape, c, queries, w, device_w));
  }
}

TEST(CudaQuerySummary, WhatItCannotDoIsRefused) {
  LCA_NEEDS_GPU();
  const AttentionShape shape = AttentionShape::mla(40, 64, 32, 256, 64);
  const DeviceArray<bf16> data(nan_bf16(64));
  const auto fits = [&](const AttentionShape& of, HeadReduce reduce, const Layout& layout,
                        std::int64_t head_stride, std::int64_t offset) {
    cuda::QueryRows queries;
    const bf16* from = data.data() + offset;
    queries.nope = {from, 40 * head_stride, head_stride, static_cast<int>(of.d_nope)};
    queries.rope = {from, 40 * head_stride, head_stride, static_cast<int>(of.d_rope)};
    return cuda::query_summary_fits(gpu(), of, reduce, &layout, queries, 0, data.data());
  };
  const Layout layout = layout_of(16, 32, 0, 16);
  EXPECT_EQ(fits(shape, HeadReduce::sum, layout, 96, 0),
            gpu().shared_bytes >= std::size_t{160} * 1024);
  EXPECT_FALSE(fits(shape, HeadReduce::max, layout, 96, 0));
  EXPECT_FALSE(fits(shape, HeadReduce::mean, layout, 97, 0));
  EXPECT_FALSE(fits(shape, HeadReduce::mean, layout, 96, 1));
  EXPECT_FALSE(fits(shape, HeadReduce::mean, layout_of(16, 32, 0, 49), 96, 0));  // cut off at 0
  EXPECT_FALSE(fits(AttentionShape::mla(40, 64, 32, 264, 64), HeadReduce::mean, layout, 96, 0));
  EXPECT_FALSE(fits(AttentionShape::gqa(40, 8, 64, 64), HeadReduce::mean, layout, 96, 0));
}

}  // namespace
}  // namespace lca::test
