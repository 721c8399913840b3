// Condensation on the GPU against plain loops in double precision on the same bf16 values: means of
// queries, absorption, scoring and pooling, pages. Every output starts as NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/cuda/condense.h"
#include "cuda/support.h"

namespace lca {
namespace {

using cuda::GroupPool;
using cuda::GroupType;
using test::bf16;
using test::bf16_of;
using test::DeviceArray;
using test::double_of;
using test::kNan;
using test::nan_bf16;
using test::nan_float;
using test::Random;
using test::random_bf16;

constexpr std::array kReduces = {HeadReduce::mean, HeadReduce::sum, HeadReduce::max};
constexpr std::array kPools = {Pool::weighted, Pool::mean, Pool::max, Pool::select};
constexpr std::array kMasses = {Mass::none, Mass::count, Mass::score};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::string shape_text(const AttentionShape& shape) {
  return (shape.form == Form::mla ? "mla H " : "gqa H ") + std::to_string(shape.heads) + " KV " +
         std::to_string(shape.kv_heads) + " d_n " + std::to_string(shape.d_nope) + " d_r " +
         std::to_string(shape.d_rope) + " d_c " + std::to_string(shape.d_latent) + " d_v " +
         std::to_string(shape.d_value);
}

/// Heads that a summary keeps apart, per KV head, and heads that it adds up for each.
std::int64_t kept_heads(const AttentionShape& shape, HeadReduce reduce) {
  return reduce == HeadReduce::max ? shape.heads_per_kv() : 1;
}

/// Compares value by value with |Δ| ≤ tolerance · (1 + |expected|); the first that is not, NaN
/// included, is named.
template <typename T>
::testing::AssertionResult values_near(const std::vector<T>& got, const std::vector<double>& want,
                                       double tolerance) {
  if (got.size() < want.size()) return ::testing::AssertionFailure() << "too few values";
  double worst = 0;
  std::int64_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(double_of(got[i]) - want[i]) / (1 + std::fabs(want[i]));
    if (!(error <= tolerance)) {
      if (wrong++ == 0) first = i;
    }
    worst = std::fmax(worst, error);  // ignores NaN, which is counted above
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << wrong << " of " << want.size() << " values are wrong, worst error " << worst
         << "; first at " << first << ": got " << double_of(got[first]) << ", want " << want[first];
}

template <typename T>
bool is_nan_from(const std::vector<T>& values, std::int64_t begin) {
  return std::all_of(values.begin() + begin, values.end(),
                     [](T value) { return std::isnan(double_of(value)); });
}

// --- means of queries ----------------------------------------------------------------------------

/// Queries of one document as a model lays them: [rows][H][d_n + d_r], both parts in one row, with
/// `slack` values between heads that nobody may read.
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

/// Means on the GPU, with room for one more group that must stay untouched.
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

Layout layout_of(std::int64_t group, std::int64_t window, std::int64_t sink, std::int64_t queries) {
  Settings settings;
  settings.group = group;
  settings.window = window;
  settings.sink = sink;
  settings.summary_queries = queries;
  return Layout(settings);
}

const std::vector<AttentionShape>& mean_shapes() {
  static const std::vector<AttentionShape> shapes = {
      AttentionShape::mla(16, 128, 64, 512, 128), AttentionShape::mla(40, 64, 32, 256, 64),
      AttentionShape::mla(3, 8, 24, 32, 16),      AttentionShape::mla(3, 5, 6, 7, 4),
      AttentionShape::mla(2, 72, 600, 16, 8),     AttentionShape::gqa(28, 4, 128, 128),
      AttentionShape::gqa(9, 3, 64, 64),          AttentionShape::gqa(6, 2, 10, 5),
      AttentionShape::gqa(1, 1, 302, 5)};
  return shapes;
}

TEST(CudaCondense, MeansOfQueriesAreMeansOfTheRangesTheLayoutNames) {
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
                          means.view, nullptr);
        means.expect(queries, [&](std::int64_t k) -> Range {
          const Range range = c.layout.summary_range(c.first_group + k, c.prompt);
          return {range.begin - first.begin, range.end - first.begin};
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaCondense, RopeTurnsQueriesInPlaceAndMeansAreOfTurnedOnes) {
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
                               nullptr);

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
              const double turned = x * c - y * s;
              y = y * c + x * s;
              x = turned;
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
        ASSERT_TRUE(values_near(queries.values, want, 4.1e-3)) << "turned queries";
        means.expect(queries, [&](std::int64_t k) -> Range {
          return {k * group, (k + 1) * group};
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaCondense, AbsorbedMeansMatchASumOverHeads) {
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
        const std::vector<float> rope = test::random_float(random, count * kept * shape.d_rope);
        const std::vector<bf16> w = random_bf16(random, inner * shape.d_latent, 0.1);
        const std::int64_t width = shape.d_latent + shape.d_rope;
        ASSERT_EQ(cuda::summary_width(shape, reduce), kept * width);

        const DeviceArray<bf16> device_nope(nope);
        const DeviceArray<float> device_rope(rope);
        const DeviceArray<bf16> device_w(w);
        const DeviceArray<float> summary(nan_float((count + 1) * kept * width));
        cuda::summary_absorb(shape, reduce, {device_nope.data(), device_rope.data()}, count,
                             device_w.data(), summary.data(), nullptr);

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

// --- scoring and pooling -------------------------------------------------------------------------

struct CondenseCase {
  AttentionShape shape;
  Settings settings;
  std::int64_t count = 0;
  bool one_summary = false;
  double score_size = 1;  ///< how far scores spread, about
  bool equal = false;     ///< all tokens of a group are the same
};

std::string case_text(const CondenseCase& c, std::uint64_t seed) {
  return shape_text(c.shape) + " g " + std::to_string(c.settings.group) + " count " +
         std::to_string(c.count) + " reduce " +
         std::to_string(static_cast<int>(c.settings.head_reduce)) + " pools " +
         std::to_string(static_cast<int>(c.settings.semantic_pool)) + "/" +
         std::to_string(static_cast<int>(c.settings.positional_pool)) + " mass " +
         std::to_string(static_cast<int>(c.settings.mass)) + " one " +
         std::to_string(c.one_summary) + " seed " + std::to_string(seed);
}

/// Runs one case and checks all outputs. Groups whose two best scores are too near to tell are
/// counted in `near`; where `select` depends on them they are left out, NaN never is.
void condense_check(const CondenseCase& c, std::uint64_t seed, std::int64_t& near) {
  SCOPED_TRACE(case_text(c, seed));
  Random random(seed);
  const AttentionShape& shape = c.shape;
  const std::int64_t g = c.settings.group;
  const std::int64_t kv_heads = shape.kv_heads;
  const std::int64_t d_s = shape.d_semantic();
  const std::int64_t d_p = shape.d_positional();
  const bool mla = shape.form == Form::mla;
  const std::int64_t kept = kept_heads(shape, c.settings.head_reduce);
  const std::int64_t scored = (mla ? d_s : 0) + d_p;
  const std::int64_t summaries = c.one_summary ? 1 : c.count;
  const double heads = static_cast<double>(shape.heads_per_kv());
  const double scale = 0.25;
  const double factor = c.settings.head_reduce == HeadReduce::mean ? scale / heads : scale;

  std::vector<bf16> semantic = random_bf16(random, c.count * g * kv_heads * d_s);
  std::vector<bf16> positional = random_bf16(random, c.count * g * kv_heads * d_p);
  if (c.equal) {
    const auto repeat = [&](std::vector<bf16>& rows, std::int64_t width) {
      for (std::int64_t i = 0; i < c.count * g * width; ++i) {
        const std::int64_t group = i / (g * width);
        rows[at(i)] = rows[at(group * g * width + i % width)];
      }
    };
    repeat(semantic, kv_heads * d_s);
    repeat(positional, kv_heads * d_p);
  }
  // Rows after the last group are another's: NaN, in case they are read.
  const auto spare = [&](std::vector<bf16> rows, std::int64_t width) {
    rows.insert(rows.end(), at(2 * kv_heads * width), bf16_of(kNan));
    return DeviceArray<bf16>(rows);
  };
  const DeviceArray<bf16> device_semantic = spare(semantic, d_s);
  const DeviceArray<bf16> device_positional = spare(positional, d_p);
  const double size = c.score_size / (factor * std::sqrt(static_cast<double>(scored)));
  std::vector<float> summary =
      test::random_float(random, summaries * kv_heads * kept * scored, size);
  const std::vector<float> known = summary;
  summary.insert(summary.end(), 64, kNan);
  const DeviceArray<float> device_summary(summary);

  const DeviceArray<bf16> out_semantic(nan_bf16((c.count + 1) * kv_heads * d_s));
  const DeviceArray<bf16> out_positional(nan_bf16((c.count + 1) * kv_heads * d_p));
  const DeviceArray<float> out_bias(nan_float((c.count + 1) * kv_heads));
  cuda::Condense job;
  job.shape = shape;
  job.settings = c.settings;
  job.scale = static_cast<float>(scale);
  job.semantic = device_semantic.data();
  job.positional = device_positional.data();
  job.summary = device_summary.data();
  job.one_summary = c.one_summary;
  job.count = c.count;
  job.out_semantic = out_semantic.data();
  job.out_positional = out_positional.data();
  job.out_bias = c.settings.mass == Mass::score ? out_bias.data() : nullptr;
  cuda::condense(job, nullptr);
  const std::vector<bf16> got_semantic = out_semantic.download();
  const std::vector<bf16> got_positional = out_positional.download();
  const std::vector<float> got_bias = out_bias.download();

  for (std::int64_t item = 0; item < c.count * kv_heads; ++item) {
    const std::int64_t group = item / kv_heads;
    const std::int64_t kv = item % kv_heads;
    const float* query =
        known.data() + ((c.one_summary ? 0 : group) * kv_heads + kv) * kept * scored;
    const auto value_s = [&](std::int64_t t, std::int64_t i) {
      return semantic[at(((group * g + t) * kv_heads + kv) * d_s + i)];
    };
    const auto value_p = [&](std::int64_t t, std::int64_t i) {
      return positional[at(((group * g + t) * kv_heads + kv) * d_p + i)];
    };
    const auto score_of = [&](const auto& s, const auto& p) {
      double best = -std::numeric_limits<double>::infinity();
      for (std::int64_t h = 0; h < kept; ++h) {
        double sum = 0;
        for (std::int64_t i = 0; i < scored; ++i) {
          const std::int64_t in_p = mla ? i - d_s : i;
          sum += double_of(query[h * scored + i]) * (in_p < 0 ? s(i) : p(in_p));
        }
        best = std::max(best, factor * sum);
      }
      return best;
    };
    std::vector<double> scores;
    for (std::int64_t t = 0; t < g; ++t) {
      scores.push_back(score_of([&](std::int64_t i) { return double_of(value_s(t, i)); },
                                [&](std::int64_t i) { return double_of(value_p(t, i)); }));
    }
    const auto best = std::max_element(scores.begin(), scores.end());
    const std::int64_t chosen = best - scores.begin();
    double second = -std::numeric_limits<double>::infinity();
    double total = 0;
    for (auto score = scores.begin(); score != scores.end(); ++score) {
      if (score != best) second = std::max(second, *score);
      total += std::exp(*score - *best);
    }
    const bool tie = !c.equal && *best - second < 1e-3 * std::max(1.0, std::fabs(*best));
    near += tie ? 1 : 0;

    const auto pool = [&](Pool how, std::int64_t width, const auto& value,
                          const std::vector<bf16>& got, const char* part) {
      std::vector<double> pooled(at(width));
      for (std::int64_t i = 0; i < width; ++i) {
        double weighted = 0;
        double sum = 0;
        double largest = -std::numeric_limits<double>::infinity();
        for (std::int64_t t = 0; t < g; ++t) {
          const double x = double_of(value(t, i));
          weighted += std::exp(scores[at(t)] - *best) / total * x;
          sum += x;
          largest = std::max(largest, x);
        }
        pooled[at(i)] = how == Pool::weighted ? weighted
                        : how == Pool::mean   ? sum / static_cast<double>(g)
                        : how == Pool::max    ? largest
                                              : double_of(value(chosen, i));
        const bf16 have = got[at(item * width + i)];
        const double error = std::fabs(double_of(have) - pooled[at(i)]);
        if (how == Pool::select && tie) {
          EXPECT_FALSE(std::isnan(double_of(have)))
              << part << " group " << group << " column " << i;
        } else if (how == Pool::select) {
          const bf16 want = value(chosen, i);
          EXPECT_EQ(std::memcmp(&have, &want, sizeof have), 0)
              << part << " group " << group << " kv " << kv << " column " << i << ": got "
              << double_of(have) << ", want " << double_of(want) << " of token " << chosen;
        } else {
          EXPECT_TRUE(error <= 4.1e-3 * std::fabs(pooled[at(i)]) + 1e-4 * c.score_size)
              << part << " group " << group << " kv " << kv << " column " << i << ": got "
              << double_of(have) << ", want " << pooled[at(i)];
        }
        if (::testing::Test::HasFailure()) return pooled;  // the first wrong value is enough
      }
      return pooled;
    };
    const auto pooled_s = pool(c.settings.semantic_pool, d_s, value_s, got_semantic, "semantic");
    const auto pooled_p =
        pool(c.settings.positional_pool, d_p, value_p, got_positional, "positional");
    if (::testing::Test::HasFailure()) return;
    if (c.settings.mass == Mass::score) {
      const double own = score_of([&](std::int64_t i) { return pooled_s[at(i)]; },
                                  [&](std::int64_t i) { return pooled_p[at(i)]; });
      const double want = std::log(total) + *best - own;
      const bool selects =
          c.settings.semantic_pool == Pool::select || c.settings.positional_pool == Pool::select;
      const double have = double_of(got_bias[at(item)]);
      ASSERT_FALSE(std::isnan(have)) << "bias of group " << group << " kv " << kv;
      if (!(tie && selects)) {
        ASSERT_NEAR(have, want, 2e-4 * std::max({1.0, std::fabs(*best), std::fabs(own)}))
            << "bias of group " << group << " kv " << kv;
      }
    }
  }
  EXPECT_TRUE(is_nan_from(got_semantic, c.count * kv_heads * d_s));
  EXPECT_TRUE(is_nan_from(got_positional, c.count * kv_heads * d_p));
  EXPECT_TRUE(is_nan_from(got_bias, c.settings.mass == Mass::score ? c.count * kv_heads : 0));
}

TEST(CudaCondense, EveryPoolReductionAndMassMatchesPlainLoops) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 2000;
  std::int64_t groups = 0;
  std::int64_t near = 0;
  for (const AttentionShape& shape :
       {AttentionShape::mla(3, 4, 5, 21, 4), AttentionShape::gqa(6, 2, 18, 7),
        AttentionShape::mla(4, 16, 32, 256, 16), AttentionShape::gqa(4, 2, 64, 64)}) {
    for (const HeadReduce reduce : kReduces) {
      for (const Pool semantic : kPools) {
        for (const Pool positional : kPools) {
          for (const Mass mass : kMasses) {
            CondenseCase c;
            c.shape = shape;
            c.settings.head_reduce = reduce;
            c.settings.semantic_pool = semantic;
            c.settings.positional_pool = positional;
            c.settings.mass = mass;
            c.settings.group = shape.d_semantic() < 64 ? 5 : 16;
            c.count = 3;
            c.one_summary = seed % 2 == 0;
            condense_check(c, ++seed, near);
            if (::testing::Test::HasFailure()) return;
            groups += c.count * shape.kv_heads;
          }
        }
      }
    }
  }
  EXPECT_LT(static_cast<double>(near), 0.06 * static_cast<double>(groups));
}

TEST(CudaCondense, EveryWidthAndGroupSizeMatchesPlainLoops) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 4000;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 16, 64, 512, 16), AttentionShape::mla(2, 16, 32, 256, 16),
        AttentionShape::gqa(8, 4, 128, 128), AttentionShape::gqa(3, 1, 128, 128),
        AttentionShape::gqa(9, 3, 64, 64), AttentionShape::mla(2, 3, 2, 3, 2),
        AttentionShape::gqa(2, 1, 130, 33), AttentionShape::mla(1, 8, 8, 1000, 8)}) {
    for (const std::int64_t group : {1, 3, 4, 8, 16, 32, 100}) {
      for (const bool one : {false, true}) {
        for (const bool paper : {false, true}) {
          CondenseCase c;
          c.shape = shape;
          c.settings.group = group;
          c.settings.semantic_pool = paper ? Pool::weighted : Pool::select;
          c.settings.mass = paper ? Mass::none : Mass::score;
          c.count = one ? 5 : 4;
          c.one_summary = one;
          std::int64_t near = 0;
          condense_check(c, ++seed, near);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(CudaCondense, WideMlaCoversEveryPool) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 6000;
  for (const std::int64_t group : {8, 16}) {
    for (const Pool semantic : kPools) {
      for (const Pool positional : kPools) {
        CondenseCase c;
        c.shape = AttentionShape::mla(2, 16, 64, 512, 16);
        c.settings.group = group;
        c.settings.semantic_pool = semantic;
        c.settings.positional_pool = positional;
        c.settings.mass = Mass::score;
        c.count = 3;
        std::int64_t near = 0;
        condense_check(c, ++seed, near);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaCondense, EqualAndHugeScoresStayNumbersAndTiesGoToTheFirst) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 7000;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 16, 64, 512, 16), AttentionShape::gqa(4, 2, 64, 64),
        AttentionShape::mla(3, 4, 5, 21, 4)}) {
    for (const HeadReduce reduce : {HeadReduce::mean, HeadReduce::max}) {
      CondenseCase c;
      c.shape = shape;
      c.settings.head_reduce = reduce;
      c.settings.mass = Mass::score;
      c.count = 4;
      std::int64_t near = 0;
      c.equal = true;  // all weights are 1/g, and the row of the first token is any of them
      condense_check(c, ++seed, near);
      c.equal = false;
      c.settings.semantic_pool = Pool::select;
      c.score_size = 1e4;
      condense_check(c, ++seed, near);
      if (::testing::Test::HasFailure()) return;
    }
  }

  // Scores that tie exactly although rows differ: the summary sees one column alone.
  const AttentionShape shape = AttentionShape::mla(1, 8, 64, 512, 8);
  Random random(++seed);
  std::vector<bf16> semantic = random_bf16(random, 16 * 512);
  const std::vector<bf16> positional = random_bf16(random, 16 * 64);
  for (std::int64_t t = 0; t < 16; ++t) semantic[at(t * 512 + 7)] = bf16_of(t == 5 || t == 11);
  std::vector<float> summary(576);
  summary[7] = 3;
  const DeviceArray<bf16> device_semantic(semantic);
  const DeviceArray<bf16> device_positional(positional);
  const DeviceArray<float> device_summary(summary);
  const DeviceArray<bf16> out_semantic(nan_bf16(512));
  const DeviceArray<bf16> out_positional(nan_bf16(64));
  cuda::Condense job;
  job.shape = shape;
  job.scale = 1;
  job.semantic = device_semantic.data();
  job.positional = device_positional.data();
  job.summary = device_summary.data();
  job.count = 1;
  job.out_semantic = out_semantic.data();
  job.out_positional = out_positional.data();
  cuda::condense(job, nullptr);
  const std::vector<bf16> got = out_positional.download();
  for (std::int64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(double_of(got[at(i)]), double_of(positional[at(5 * 64 + i)])) << "column " << i;
  }
}

// --- pages ---------------------------------------------------------------------------------------

/// A pool of pages for one session, poisoned, with pages in no order.
struct TestPool {
  TestPool(Random& random, const AttentionShape& shape_in, GroupType type, std::int64_t longest,
           bool with_bias)
      : shape(shape_in) {
    const std::int64_t used = (longest + cuda::kPageRows - 1) / cuda::kPageRows;
    const std::int64_t page_count = used + 3;
    std::vector<std::int32_t> order(at(page_count));
    for (std::int64_t i = 0; i < page_count; ++i) order[at(i)] = static_cast<std::int32_t>(i);
    for (std::int64_t i = page_count - 1; i > 0; --i) {
      std::swap(order[at(i)], order[at(random.integer(0, i))]);
    }
    order.resize(at(used));
    pages = DeviceArray<std::int32_t>(order);
    const std::int64_t rows = page_count * cuda::kPageRows * shape.kv_heads;
    const bool mla = shape.form == Form::mla;
    scales = mla ? (shape.d_latent + cuda::kScaleBlock - 1) / cuda::kScaleBlock : 1;
    // 0xff in every byte: NaN as bf16 and as e4m3.
    semantic = DeviceArray<std::uint8_t>(
        std::vector<std::uint8_t>(at(rows * shape.d_semantic() * 2), 0xff));
    positional = DeviceArray<std::uint8_t>(
        std::vector<std::uint8_t>(at(rows * shape.d_positional() * 2), 0xff));
    semantic_scale = DeviceArray<float>(nan_float(rows * scales));
    positional_scale = DeviceArray<float>(nan_float(rows));
    bias = DeviceArray<float>(nan_float(rows));
    view.type = type;
    view.semantic = semantic.data();
    view.positional = positional.data();
    if (type != GroupType::bf16) {
      view.semantic_scale = semantic_scale.data();
      if (!mla) view.positional_scale = positional_scale.data();
    }
    if (with_bias) view.bias = bias.data();
  }

  AttentionShape shape;
  std::int64_t scales = 1;
  DeviceArray<std::int32_t> pages;
  DeviceArray<std::uint8_t> semantic;
  DeviceArray<std::uint8_t> positional;
  DeviceArray<float> semantic_scale;
  DeviceArray<float> positional_scale;
  DeviceArray<float> bias;
  GroupPool view;
};

/// Half the distance between neighbours that `type` has around `value` in a block of `largest`, and
/// the rounding of scale, quotient and bf16.
double quantised_error(GroupType type, double value, double largest) {
  if (type == GroupType::bf16) return 0;
  const double rounding = 4.1e-3 * std::fabs(value) + 1e-6 * largest;
  if (type == GroupType::int8) return 0.501 * largest / 127 + rounding;
  const double scale = largest / 448;
  // e4m3: 3 bits after the first; below 2^-6 steps stay 2^-9.
  const double magnitude = std::max(std::fabs(value) / std::max(scale, 1e-300), 0x1p-6);
  const double step = std::exp2(std::floor(std::log2(magnitude)) - 3);
  return 0.502 * std::max(step, 0x1p-9) * 2 * 0.5 * scale * 1.001 + rounding;
}

TEST(CudaCondense, PagesGiveBackWhatWasAppendedWithinTheirPrecision) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8000;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 16, 64, 512, 16), AttentionShape::mla(2, 16, 32, 256, 16),
        AttentionShape::mla(2, 4, 6, 130, 4), AttentionShape::mla(2, 4, 3, 77, 4),
        AttentionShape::gqa(8, 4, 128, 128), AttentionShape::gqa(3, 3, 64, 36),
        AttentionShape::gqa(2, 2, 131, 7)}) {
    for (const GroupType type : {GroupType::bf16, GroupType::fp8, GroupType::int8}) {
      for (const bool with_bias : {false, true}) {
        Random random(++seed);
        SCOPED_TRACE(shape_text(shape) + " type " + std::to_string(static_cast<int>(type)) +
                     " bias " + std::to_string(with_bias) + " seed " + std::to_string(seed));
        constexpr std::int64_t kFirst = 61;  // two appends, across a page's end
        constexpr std::int64_t kCount = 80;
        const std::int64_t kv = shape.kv_heads;
        const std::int64_t d_s = shape.d_semantic();
        const std::int64_t d_p = shape.d_positional();
        const TestPool pool(random, shape, type, kFirst + kCount, with_bias);
        std::vector<bf16> semantic = random_bf16(random, (kFirst + kCount) * kv * d_s);
        std::vector<bf16> positional = random_bf16(random, (kFirst + kCount) * kv * d_p);
        for (std::int64_t i = 0; i < kv * d_s; ++i) {
          semantic[at(70 * kv * d_s + i)] = bf16_of(0);      // all zero: scale 0
          semantic[at(71 * kv * d_s + i)] = bf16_of(1e-39);  // tiny: nothing may overflow
          bf16& large = semantic[at(72 * kv * d_s + i)];
          large = bf16_of(1e30 * double_of(large));
        }
        for (std::int64_t i = 0; i < kv * d_p; ++i) positional[at(70 * kv * d_p + i)] = bf16_of(0);
        const std::vector<float> bias = test::random_float(random, (kFirst + kCount) * kv);
        const DeviceArray<bf16> in_semantic(semantic);
        const DeviceArray<bf16> in_positional(positional);
        const DeviceArray<float> in_bias(bias);
        for (const auto& [first, count] : {std::pair{std::int64_t{0}, kFirst}, {kFirst, kCount}}) {
          cuda::groups_append(shape, pool.view, pool.pages.data(), first, count,
                              in_semantic.data() + first * kv * d_s,
                              in_positional.data() + first * kv * d_p,
                              with_bias ? in_bias.data() + first * kv : nullptr, nullptr);
        }

        constexpr std::int64_t kFrom = 3;
        constexpr std::int64_t kRead = kFirst + kCount - kFrom;
        const DeviceArray<bf16> out_semantic(nan_bf16((kRead + 1) * kv * d_s));
        const DeviceArray<bf16> out_positional(nan_bf16((kRead + 1) * kv * d_p));
        const DeviceArray<float> out_bias(nan_float((kRead + 1) * kv));
        cuda::groups_gather(shape, pool.view, pool.pages.data(), kFrom, kRead, out_semantic.data(),
                            out_positional.data(), out_bias.data(), nullptr);

        const auto compare = [&](const std::vector<bf16>& sent, const std::vector<bf16>& got,
                                 std::int64_t width, std::int64_t block, GroupType stored,
                                 const char* part) {
          for (std::int64_t i = 0; i < kRead * kv * width; ++i) {
            const std::int64_t from = kFrom * kv * width;
            const std::int64_t row = i / width * width;
            const std::int64_t begin = row + (i - row) / block * block;
            double largest = 0;
            for (std::int64_t k = begin; k < std::min(begin + block, row + width); ++k) {
              largest = std::max(largest, std::fabs(double_of(sent[at(from + k)])));
            }
            const double want = double_of(sent[at(from + i)]);
            const double have = double_of(got[at(i)]);
            // Below float's normal numbers a scale has few bits; only that nothing breaks counts.
            const double allowed = largest < 1e-30 ? 1e-37 : quantised_error(stored, want, largest);
            ASSERT_TRUE(std::fabs(have - want) <= allowed)
                << part << " representative " << kFrom + i / (kv * width) << " column " << i % width
                << ": got " << have << ", want " << want << " within " << allowed;
          }
          ASSERT_TRUE(is_nan_from(got, kRead * kv * width)) << part;
        };
        const bool mla = shape.form == Form::mla;
        compare(semantic, out_semantic.download(), d_s, mla ? cuda::kScaleBlock : d_s, type,
                "semantic");
        compare(positional, out_positional.download(), d_p, d_p, mla ? GroupType::bf16 : type,
                "positional");
        if (::testing::Test::HasFailure()) return;
        const std::vector<float> got_bias = out_bias.download();
        for (std::int64_t i = 0; i < kRead * kv; ++i) {
          ASSERT_EQ(got_bias[at(i)], with_bias ? bias[at(kFrom * kv + i)] : 0.0f) << "bias " << i;
        }
        ASSERT_TRUE(is_nan_from(got_bias, kRead * kv));

        // Rows that no representative has stay untouched.
        std::int64_t untouched = 0;
        for (const float value : pool.bias.download()) untouched += std::isnan(value) ? 1 : 0;
        const auto all = static_cast<std::int64_t>(pool.bias.size());
        ASSERT_EQ(untouched, with_bias ? all - (kFirst + kCount) * kv : all);
      }
    }
  }
}

}  // namespace
}  // namespace lca
