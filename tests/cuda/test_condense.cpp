// Scoring and pooling on the GPU against plain loops in double precision on the same bf16 values.
// Every output starts as NaN, and so does what lies beyond the inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/rotate.h"
#include "cuda/condense_support.h"

namespace lca::test {
namespace {

constexpr std::array kPools = {Pool::weighted, Pool::mean, Pool::max, Pool::select};
constexpr std::array kMasses = {Mass::none, Mass::count, Mass::score};

struct CondenseCase {
  AttentionShape shape;
  Settings settings;
  std::int64_t count = 0;
  bool one_summary = false;
  double score_size = 1;  ///< how far scores spread, about
  bool equal = false;     ///< all tokens of a group are the same
  Rotation rotation;      ///< entry positions where it has frequencies
  std::int64_t first_group = 0;
};

std::string case_text(const CondenseCase& c, std::uint64_t seed) {
  return shape_text(c.shape) + " g " + std::to_string(c.settings.group) + " count " +
         std::to_string(c.count) + " reduce " +
         std::to_string(static_cast<int>(c.settings.head_reduce)) + " pools " +
         std::to_string(static_cast<int>(c.settings.semantic_pool)) + "/" +
         std::to_string(static_cast<int>(c.settings.positional_pool)) + " mass " +
         std::to_string(static_cast<int>(c.settings.mass)) + " one " +
         std::to_string(c.one_summary) + " rotated " +
         std::to_string(c.rotation.frequencies.size()) + " from group " +
         std::to_string(c.first_group) + " seed " + std::to_string(seed);
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
  // Rows after the last group do not belong to it: NaN, in case they are read.
  const auto spare = [&](std::vector<bf16> rows, std::int64_t width) {
    rows.insert(rows.end(), at(2 * kv_heads * width), bf16_of(kNan));
    return DeviceArray<bf16>(rows);
  };
  const DeviceArray<bf16> device_semantic = spare(semantic, d_s);
  const DeviceArray<bf16> device_positional = spare(positional, d_p);
  const double size = c.score_size / (factor * std::sqrt(static_cast<double>(scored)));
  std::vector<float> summary = random_float(random, summaries * kv_heads * kept * scored, size);
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
  job.semantic = cuda::head_rows(device_semantic.data(), kv_heads, d_s);
  job.positional = cuda::head_rows(device_positional.data(), kv_heads, d_p);
  job.summary = device_summary.data();
  job.one_summary = c.one_summary;
  job.count = c.count;
  const DeviceArray<std::uint64_t> steps(rotation_steps(c.rotation));
  const bool rotated = steps.size() > 0;
  if (rotated) job.rotation = {steps.data(), static_cast<int>(steps.size()), c.rotation.layout};
  job.first_group = c.first_group;
  job.out_semantic = cuda::out_rows(out_semantic.data(), kv_heads, d_s);
  job.out_positional = cuda::out_rows(out_positional.data(), kv_heads, d_p);
  job.out_bias = c.settings.mass == Mass::score ? out_bias.data() : nullptr;
  cuda::condense(job, gpu_queue());
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
      const bool exact = std::is_same_v<decltype(value(0, 0)), bf16>;
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
        if (got.empty()) continue;
        const bf16 have = got[at(item * width + i)];
        const double error = std::fabs(double_of(have) - pooled[at(i)]);
        if (how == Pool::select && tie) {
          EXPECT_FALSE(std::isnan(double_of(have)))
              << part << " group " << group << " column " << i;
        } else if (how == Pool::select && exact) {
          const bf16 want = bf16_of(pooled[at(i)]);
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
    // Scores and mass stay at token positions; what is kept does not have to.
    const auto pooled_p = pool(c.settings.positional_pool, d_p, value_p,
                               rotated ? std::vector<bf16>() : got_positional, "positional");
    if (rotated) {
      std::vector<double> rows;
      for (std::int64_t t = 0; t < g; ++t) {
        for (std::int64_t i = 0; i < d_p; ++i) rows.push_back(double_of(value_p(t, i)));
        // From s + j·g + t to s + j.
        const std::int64_t j = c.first_group + group;
        rotate_row(c.rotation, j - (j * g + t), rows.data() + t * d_p);
      }
      pool(
          c.settings.positional_pool, d_p,
          [&](std::int64_t t, std::int64_t i) { return rows[at(t * d_p + i)]; }, got_positional,
          "rotated");
    }
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

TEST(CudaCondense, EntryPositionsRotateEveryMemberBeforeItIsPooled) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 6500;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 16, 64, 512, 16), AttentionShape::mla(2, 16, 32, 256, 16),
        AttentionShape::gqa(8, 4, 128, 128), AttentionShape::gqa(9, 3, 64, 64),
        AttentionShape::mla(3, 4, 6, 21, 4), AttentionShape::gqa(2, 1, 130, 33)}) {
    for (const std::int64_t group : {1, 5, 8, 16, 32, 100}) {
      for (const Pool positional : kPools) {
        CondenseCase c;
        c.shape = shape;
        c.settings.group = group;
        c.settings.semantic_pool = seed % 2 == 0 ? Pool::weighted : Pool::select;
        c.settings.positional_pool = positional;
        c.settings.mass = seed % 3 == 0 ? Mass::none : Mass::score;
        c.settings.head_reduce = kReduces[seed % 3];
        c.count = 3;
        c.one_summary = seed % 2 == 0;
        // Far into documents of two million tokens, where float32 angles would mean nothing.
        c.first_group = seed % 4 == 0 ? 0 : (std::int64_t{1} << 21) / group - 3;
        const std::int64_t width = shape.d_positional();
        c.rotation = rotation_plain(seed % 5 == 0 ? width - 2 : width);
        c.rotation.layout = seed % 7 < 3 ? RopeLayout::halves : RopeLayout::adjacent;
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
  job.semantic = cuda::head_rows(device_semantic.data(), 1, 512);
  job.positional = cuda::head_rows(device_positional.data(), 1, 64);
  job.summary = device_summary.data();
  job.count = 1;
  job.out_semantic = cuda::out_rows(out_semantic.data(), 1, 512);
  job.out_positional = cuda::out_rows(out_positional.data(), 1, 64);
  cuda::condense(job, gpu_queue());
  const std::vector<bf16> got = out_positional.download();
  for (std::int64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(double_of(got[at(i)]), double_of(positional[at(5 * 64 + i)])) << "column " << i;
  }
}

}  // namespace
}  // namespace lca::test
