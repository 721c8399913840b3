// Means of queries on the GPU, plain or with RoPE, and their absorption, against plain loops in
// double precision on the same bf16 values. Every output starts as NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/condense_support.h"

namespace lca::test {
namespace {

/// Queries of one document as a model lays them: [rows][H][d_n + d_r], both parts in one row, with
/// `slack` values between heads that may not be read.
struct TestQueries {
  TestQueries(Random& random, const AttentionShape& shape_in, std::int64_t first,
              std::int64_t rows_in, std::int64_t slack)
      : shape(shape_in),
        rows(rows_in),
        head_stride(shape.d_nope + shape.d_rope + slack),
        row_stride(shape.heads * head_stride),
        values(random_bf16(random, rows * row_stride)) {
    for (std::int64_t i = 0; i < rows * shape.heads; ++i) {
      for (std::int64_t k = head_stride - slack; k < head_stride; ++k) {
        values[at(i * head_stride + k)] = bf16_of(kNan);
      }
    }
    device = DeviceArray<bf16>(values);
    if (shape.form == Form::mla) {
      view.nope = {device.data(), row_stride, head_stride, static_cast<int>(shape.d_nope)};
    }
    view.rope = {device.data() + shape.d_nope, row_stride, head_stride,
                 static_cast<int>(shape.d_rope)};
    view.first = first;
    view.rows = rows;
  }
  double nope(std::int64_t row, std::int64_t head, std::int64_t i) const {
    return double_of(values[at(row * row_stride + head * head_stride + i)]);
  }
  double rope(std::int64_t row, std::int64_t head, std::int64_t i) const {
    return nope(row, head, shape.d_nope + i);
  }

  AttentionShape shape;
  std::int64_t rows;
  std::int64_t head_stride;
  std::int64_t row_stride;
  std::vector<bf16> values;
  DeviceArray<bf16> device;
  cuda::QueryRows view;
};

/// Means on the GPU, with one more group that must stay untouched.
struct TestMeans {
  TestMeans(const AttentionShape& shape_in, HeadReduce reduce_in, std::int64_t count_in)
      : shape(shape_in),
        reduce(reduce_in),
        count(count_in),
        nope_width(shape.heads * shape.d_nope),
        rope_width(shape.kv_heads * kept_heads(shape, reduce) * shape.d_rope),
        nope(nan_bf16((count + 1) * 2 * nope_width)),
        rope(nan_float((count + 1) * rope_width)) {
    view.nope = nope.data();
    view.rope = rope.data();
  }

  /// `rows_of(k)`: the rows whose mean group k has.
  template <typename RowsOf>
  void expect(const TestQueries& queries, const RowsOf& rows_of) const {
    std::vector<double> want_nope;
    std::vector<double> want_rope;
    const std::int64_t out_heads = shape.kv_heads * kept_heads(shape, reduce);
    const std::int64_t sharing = shape.heads / out_heads;
    for (std::int64_t k = 0; k < count; ++k) {
      const Range rows = rows_of(k);
      const auto size = static_cast<double>(rows.size());
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t i = 0; i < shape.d_nope; ++i) {
          double sum = 0;
          for (std::int64_t t = rows.begin; t < rows.end; ++t) sum += queries.nope(t, h, i);
          want_nope.push_back(sum / size);
        }
      }
      for (std::int64_t o = 0; o < out_heads; ++o) {
        for (std::int64_t i = 0; i < shape.d_rope; ++i) {
          double sum = 0;
          for (std::int64_t h = o * sharing; h < (o + 1) * sharing; ++h) {
            for (std::int64_t t = rows.begin; t < rows.end; ++t) sum += queries.rope(t, h, i);
          }
          want_rope.push_back(sum / size);
        }
      }
    }

    const std::vector<bf16> parts = nope.download();
    std::vector<float> whole;
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t i = 0; i < nope_width; ++i) {
        whole.push_back(static_cast<float>(double_of(parts[at(2 * k * nope_width + i)]) +
                                           double_of(parts[at((2 * k + 1) * nope_width + i)])));
      }
    }
    EXPECT_TRUE(values_near(whole, want_nope, 2e-5)) << "without position";  // 16 bits of each
    EXPECT_TRUE(is_nan_from(parts, count * 2 * nope_width));
    const std::vector<float> got = rope.download();
    EXPECT_TRUE(values_near(got, want_rope, 1e-5)) << "with position";
    EXPECT_TRUE(is_nan_from(got, count * rope_width));
  }

  AttentionShape shape;
  HeadReduce reduce;
  std::int64_t count;
  std::int64_t nope_width;
  std::int64_t rope_width;
  DeviceArray<bf16> nope;
  DeviceArray<float> rope;
  cuda::QueryMeans view;
};

const std::vector<AttentionShape>& mean_shapes() {
  static const std::vector<AttentionShape> shapes = {
      AttentionShape::mla(16, 128, 64, 512, 128), AttentionShape::mla(40, 64, 32, 256, 64),
      AttentionShape::mla(3, 8, 24, 32, 16),      AttentionShape::mla(3, 5, 6, 7, 4),
      AttentionShape::mla(2, 72, 600, 16, 8),     AttentionShape::gqa(28, 4, 128, 128),
      AttentionShape::gqa(9, 3, 64, 64),          AttentionShape::gqa(6, 2, 10, 5),
      AttentionShape::gqa(1, 1, 302, 5)};
  return shapes;
}

TEST(CudaQueryMeans, MeansOfQueriesAreMeansOfTheRangesTheLayoutNames) {
  LCA_NEEDS_GPU();
  struct Case {
    Layout layout;
    std::int64_t prompt, first_group, count;
  };
  const std::vector<Case> cases = {
      {layout_of(16, 32, 0, 16), 0, 0, 5},   // each query once
      {layout_of(16, 32, 5, 16), 0, 3, 2},   // not from the first group on
      {layout_of(4, 3, 0, 50), 0, 0, 6},     // overlapping, clipped at the start
      {layout_of(5, 1, 2, 3), 0, 1, 4},      // gaps between ranges
      {layout_of(16, 16, 0, 16), 90, 0, 1},  // a prompt's end
      {layout_of(1, 1, 0, 1), 0, 0, 7},
      {layout_of(3, 2, 0, 9), 11, 1, 4},  // the prompt ends among the groups
  };
  std::uint64_t seed = 100;
  for (const AttentionShape& shape : mean_shapes()) {
    for (const Case& c : cases) {
      for (const HeadReduce reduce : kReduces) {
        Random random(++seed);
        SCOPED_TRACE(shape_text(shape) + " case " + std::to_string(&c - cases.data()) + " reduce " +
                     std::to_string(static_cast<int>(reduce)) + " seed " + std::to_string(seed));
        const Range first = c.layout.summary_range(c.first_group, c.prompt);
        const Range last = c.layout.summary_range(c.first_group + c.count - 1, c.prompt);
        const std::int64_t slack = seed % 2 == 0 ? 0 : 8;
        const TestQueries queries(random, shape, first.begin, last.end - first.begin, slack);
        const TestMeans means(shape, reduce, c.count);
        cuda::query_means(shape, reduce, c.layout, c.prompt, queries.view, c.first_group, c.count,
                          means.view, gpu_queue());
        means.expect(queries, [&](std::int64_t k) -> Range {
          const Range range = c.layout.summary_range(c.first_group + k, c.prompt);
          return {range.begin - first.begin, range.end - first.begin};
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaQueryMeans, RopeRotatesQueriesInPlaceAndMeansAreOfRotatedOnes) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 500;
  for (const AttentionShape& shape : mean_shapes()) {
    for (const bool interleaved : {false, true}) {
      for (const std::int64_t group : {1, 3, 16}) {
        Random random(++seed);
        SCOPED_TRACE(shape_text(shape) + " interleaved " + std::to_string(interleaved) + " g " +
                     std::to_string(group) + " seed " + std::to_string(seed));
        constexpr std::int64_t kCount = 3;
        const std::int64_t rows = kCount * group + group / 2;  // a last piece without a mean
        TestQueries queries(random, shape, 64, rows, seed % 2 == 0 ? 0 : 8);
        const std::int64_t half = shape.d_rope / 2;
        std::vector<float> cosine;
        std::vector<float> sine;
        for (std::int64_t i = 0; i < rows * half; ++i) {
          const double angle = 6.3 * random.unit();
          cosine.push_back(static_cast<float>(std::cos(angle)));
          sine.push_back(static_cast<float>(std::sin(angle)));
        }
        const DeviceArray<float> device_cosine(cosine);
        const DeviceArray<float> device_sine(sine);
        const TestMeans means(shape, HeadReduce::mean, kCount);
        cuda::rope_query_means(shape, layout_of(group, 8, 0, group), queries.view,
                               device_cosine.data(), device_sine.data(), interleaved, means.view,
                               gpu_queue());

        const std::vector<bf16> before = queries.values;
        queries.values = queries.device.download();
        std::vector<double> want;
        for (const bf16 value : before) want.push_back(double_of(value));
        for (std::int64_t t = 0; t < rows; ++t) {
          for (std::int64_t h = 0; h < shape.heads; ++h) {
            const std::int64_t base =
                t * queries.row_stride + h * queries.head_stride + shape.d_nope;
            for (std::int64_t i = 0; i < half; ++i) {
              double& x = want[at(base + (interleaved ? 2 * i : i))];
              double& y = want[at(base + (interleaved ? 2 * i + 1 : half + i))];
              const double c = double_of(cosine[at(t * half + i)]);
              const double s = double_of(sine[at(t * half + i)]);
              const double rotated = x * c - y * s;
              y = y * c + x * s;
              x = rotated;
            }
          }
        }
        // Slack stays NaN; everything else is near.
        for (std::size_t i = 0; i < want.size(); ++i) {
          if (!std::isnan(want[i])) continue;
          ASSERT_TRUE(std::isnan(double_of(queries.values[i]))) << "slack written at " << i;
          want[i] = 0;
          queries.values[i] = bf16_of(0);
        }
        ASSERT_TRUE(values_near(queries.values, want, 4.1e-3)) << "rotated queries";
        means.expect(queries, [&](std::int64_t k) -> Range {
          return {k * group, (k + 1) * group};
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaQueryMeans, AbsorbedMeansMatchASumOverHeads) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 900;
  for (const AttentionShape& shape :
       {AttentionShape::mla(16, 128, 64, 512, 128), AttentionShape::mla(5, 64, 32, 256, 64),
        AttentionShape::mla(3, 5, 6, 7, 4), AttentionShape::mla(2, 40, 8, 24, 8)}) {
    for (const std::int64_t count : {1, 3, 5, 19}) {
      for (const HeadReduce reduce : {HeadReduce::mean, HeadReduce::max}) {
        Random random(++seed);
        SCOPED_TRACE(shape_text(shape) + " count " + std::to_string(count) + " reduce " +
                     std::to_string(static_cast<int>(reduce)) + " seed " + std::to_string(seed));
        const std::int64_t kept = kept_heads(shape, reduce);
        const std::int64_t inner = shape.heads * shape.d_nope;
        const std::int64_t sharing = shape.heads / kept;
        // The low part is as small beside the high one as rounding makes it.
        std::vector<bf16> nope = random_bf16(random, count * 2 * inner);
        for (std::int64_t k = 0; k < count; ++k) {
          for (std::int64_t i = 0; i < inner; ++i) {
            bf16& low = nope[at((2 * k + 1) * inner + i)];
            low = bf16_of(0.002 * double_of(low));
          }
        }
        const std::vector<float> rope = random_float(random, count * kept * shape.d_rope);
        const std::vector<bf16> w = random_bf16(random, inner * shape.d_latent, 0.1);
        const std::int64_t width = shape.d_latent + shape.d_rope;
        ASSERT_EQ(cuda::summary_width(shape, reduce), kept * width);

        const DeviceArray<bf16> device_nope(nope);
        const DeviceArray<float> device_rope(rope);
        const DeviceArray<bf16> device_w(w);
        const DeviceArray<float> summary(nan_float((count + 1) * kept * width));
        TestProducts products;
        cuda::summary_absorb(shape, reduce, {device_nope.data(), device_rope.data()}, count,
                             device_w.data(), summary.data(), products.space(), gpu_queue());

        std::vector<double> want;
        for (std::int64_t k = 0; k < count; ++k) {
          for (std::int64_t o = 0; o < kept; ++o) {
            std::vector<double> sum(at(shape.d_latent));
            for (std::int64_t i = o * sharing * shape.d_nope; i < (o + 1) * sharing * shape.d_nope;
                 ++i) {
              const double q = double_of(nope[at(2 * k * inner + i)]) +
                               double_of(nope[at((2 * k + 1) * inner + i)]);
              for (std::int64_t c = 0; c < shape.d_latent; ++c) {
                sum[at(c)] += q * double_of(w[at(i * shape.d_latent + c)]);
              }
            }
            want.insert(want.end(), sum.begin(), sum.end());
            for (std::int64_t i = 0; i < shape.d_rope; ++i) {
              want.push_back(double_of(rope[at((k * kept + o) * shape.d_rope + i)]));
            }
          }
        }
        const std::vector<float> got = summary.download();
        ASSERT_TRUE(values_near(got, want, 2e-5));
        ASSERT_TRUE(is_nan_from(got, count * kept * width));
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
