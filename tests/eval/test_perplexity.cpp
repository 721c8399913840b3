// Perplexity and the distance from a base model: rows of logits, windows, means with intervals, and
// whole runs on a tiny model against plain double loops.

#include "eval/cluster_mean.h"
#include "eval/everyday.h"
#include "eval/logit_rows.h"
#include "eval/perplexity.h"
#include "formats/byte_files.h"
#include "support/small_session.h"
#include "tiny_loaded.h"

#include <lca/generate.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace lca::test {
namespace {

using eval::Cluster;
using eval::TextWindow;

std::vector<float> random_row(std::int64_t count, std::uint64_t seed, double size) {
  const std::vector<double> values = TinyModel::noise(count, seed, size);
  return {values.begin(), values.end()};
}

double log_sum_exp_plain(const std::vector<float>& row) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float x : row) most = std::max(most, double{x});
  for (const float x : row) sum += std::exp(double{x} - most);
  return most + std::log(sum);
}

double kl_plain(const std::vector<float>& p, const std::vector<float>& q) {
  const double a = log_sum_exp_plain(p), b = log_sum_exp_plain(q);
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    kl += std::exp(double{p[i]} - a) * (double{p[i]} - a - double{q[i]} + b);
  }
  return kl;
}

TEST(LogitRows, AreThoseOfPlainLoops) {
  for (const std::int64_t count : {1, 2, 3, 7, 16, 17, 63, 64, 1023, 1025, 4999, 49152}) {
    for (const double size : {0.01, 3.0, 40.0}) {
      const auto seed = static_cast<std::uint64_t>(count);
      const std::vector<float> p = random_row(count, seed, size);
      std::vector<float> q = random_row(count, seed + 1, size);
      EXPECT_NEAR(eval::log_sum_exp(p), log_sum_exp_plain(p), 2e-6) << count << " " << size;
      EXPECT_NEAR(eval::divergence_of(p, q).kl, kl_plain(p, q), 2e-6 * (1 + size)) << count;
      for (std::size_t i = 0; i < q.size(); ++i)
        q[i] = p[i] + 0.01F * q[i] / static_cast<float>(size);
      EXPECT_NEAR(eval::divergence_of(p, q).kl, kl_plain(p, q), 1e-6) << count;
      EXPECT_NEAR(eval::divergence_of(p, p).kl, 0, 1e-6) << count;
    }
  }
  const std::vector<float> row = {1, 3, 3, 2};
  EXPECT_EQ(eval::likeliest(row), 1);
}

TEST(LogitRows, ForbiddenTokensCountNothingAndNaNIsSeen) {
  std::vector<float> row = random_row(100, 3, 2);
  const double before = eval::log_sum_exp(row);
  row.push_back(-std::numeric_limits<float>::infinity());
  EXPECT_NEAR(eval::log_sum_exp(row), before, 1e-6);
  for (const std::size_t at : {std::size_t{0}, std::size_t{50}, std::size_t{100}}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> broken = random_row(101, 3, 2);
      broken[at] = bad;
      EXPECT_FALSE(std::isfinite(eval::log_sum_exp(broken))) << at << " " << bad;
      EXPECT_FALSE(std::isfinite(eval::divergence_of(broken, row).kl)) << at << " " << bad;
      EXPECT_FALSE(std::isfinite(eval::divergence_of(random_row(101, 4, 2), broken).kl)) << at;
    }
  }
}

TEST(ClusterMean, StudentsQuantilesAreThoseOfTables) {
  for (const auto& [freedom, value] : std::map<double, double>{
           {1, 12.7062}, {2, 4.3027}, {3, 3.1824}, {10, 2.2281}, {59, 2.0010}, {1000, 1.9623}}) {
    EXPECT_NEAR(eval::student_quantile(0.975, freedom), value, 1e-3) << freedom;
  }
  EXPECT_NEAR(eval::student_quantile(0.95, 4), 2.1318, 1e-3);
}

TEST(ClusterMean, OfEqualClustersItIsTheUsualInterval) {
  const std::vector<Cluster> clusters = {{10, 5}, {15, 5}, {20, 5}, {11, 5}};  // means 2, 3, 4, 2.2
  const eval::ClusterMean mean = eval::cluster_mean(clusters);
  EXPECT_DOUBLE_EQ(mean.mean, 2.8);
  EXPECT_EQ(mean.count, 20);
  const double spread = std::sqrt((0.64 + 0.04 + 1.44 + 0.36) / 3);
  EXPECT_NEAR(*mean.error, spread / 2, 1e-12);
  EXPECT_NEAR(*mean.low, 2.8 - 3.18245 * spread / 2, 1e-4);
  EXPECT_NEAR(*mean.high, 2.8 + 3.18245 * spread / 2, 1e-4);
}

TEST(ClusterMean, IsOverPredictionsAndKnowsNoIntervalOfOne) {
  const std::vector<Cluster> two = {{1, 1}, {9, 3}};
  EXPECT_DOUBLE_EQ(eval::cluster_mean(two).mean, 2.5);
  const eval::ClusterMean one = eval::cluster_mean(std::span(two).first(1));
  EXPECT_FALSE(one.error || one.low || one.high);
  EXPECT_TRUE(std::isnan(eval::cluster_mean({}).mean));
}

TEST(TextWindows, AreInsideTheirDocumentsFirstOnesFirst) {
  const std::vector<std::int64_t> sizes = {10, 3, 4, 25};
  using Windows = std::vector<TextWindow>;
  EXPECT_EQ(eval::text_windows(sizes, 4, 4, 1), (Windows{{0, 0}, {2, 0}, {3, 0}}));
  EXPECT_EQ(eval::text_windows(sizes, 4, 4, 2), (Windows{{0, 0}, {2, 0}, {3, 0}, {0, 4}, {3, 4}}));
  EXPECT_EQ(eval::text_windows(sizes, 4, 3, 0).size(), 3u + 1 + 8);
  EXPECT_EQ(eval::text_windows(sizes, 26, 1, 0).size(), 0u);
  EXPECT_EQ(eval::text_windows(sizes, 25, std::int64_t{1} << 60, 0), (Windows{{3, 0}}));
}

TEST(PositionRanges, CoverAllPredictionsOnce) {
  const std::vector<std::int64_t> ends = {4, 8};
  for (std::int64_t length = 2; length < 12; ++length) {
    std::int64_t next = 1;
    for (const eval::PositionRange& range : eval::position_ranges(ends, length)) {
      EXPECT_EQ(range.from, next);
      EXPECT_GT(range.to, range.from);
      next = range.to;
    }
    EXPECT_EQ(next, length);
  }
}

struct ReadBench {
  ReadBench() {
    model = tiny_loaded(tiny);
    options.session.settings = {small_settings()};
  }

  /// Logits of all positions, read alone.
  std::vector<float> logits(std::span<const std::int32_t> ids, const SessionOptions& settings) {
    std::vector<float> all;
    Session session(model, context, settings);
    session.prefill(ids, {}, [&](std::int64_t, std::int64_t count, const float* rows) {
      all.insert(all.end(), rows, rows + count * TinyModel::kVocabulary);
    });
    return all;
  }

  TinyModel tiny;
  std::shared_ptr<const Model> model;
  Context context{2};
  eval::ReadOptions options;
};

TEST(PerplexityRun, SumsAreThoseOfEachWindowReadAlone) {
  ReadBench bench;
  const std::vector<std::vector<std::int32_t>> documents = {
      some_tokens(100, TinyModel::kVocabulary, 1), some_tokens(61, TinyModel::kVocabulary, 2)};
  constexpr std::int64_t kLength = 30;
  const std::vector<std::int64_t> sizes = {100, 61}, ends = {8, 20};
  const std::vector<TextWindow> windows = eval::text_windows(sizes, kLength, 25, 0);
  const auto ranges = eval::position_ranges(ends, kLength);
  ASSERT_EQ(windows.size(), 5u);
  // Chunks in which two windows fit, one does not, and all do; `prompt` reads each by itself.
  for (const std::int64_t chunk : {0, 64, 16}) {
    for (const Settings& settings : {small_settings(), prompt_settings()}) {
      bench.options.session = {{settings}, chunk};
      std::int64_t read = 0;
      bench.options.progress = [&](std::int64_t tokens) { read = tokens; };
      std::size_t done = 0;
      eval::perplexity_run(
          bench.model, bench.context, documents, windows, kLength, ranges,
          [&](std::size_t index, const eval::WindowScore& score, const Session& session) {
            EXPECT_EQ(index, done++);
            EXPECT_EQ(session.length(), kLength);
            const auto ids = std::span(documents[windows[index].document])
                                 .subspan(static_cast<std::size_t>(windows[index].from), kLength);
            const std::vector<float> logits = bench.logits(ids, bench.options.session);
            ASSERT_EQ(score.sums.size(), 3u);
            for (std::size_t r = 0; r < 3; ++r) {
              double sum = 0;
              for (std::int64_t t = ranges[r].from; t < ranges[r].to; ++t) {
                const std::span row(logits.data() + (t - 1) * TinyModel::kVocabulary,
                                    TinyModel::kVocabulary);
                sum -= double{logprobs_of(row, ids[static_cast<std::size_t>(t)]).logprob};
              }
              EXPECT_NEAR(score.sums[r], sum, 1e-4);
            }
          },
          bench.options);
      EXPECT_EQ(done, windows.size());
      EXPECT_EQ(read, static_cast<std::int64_t>(windows.size()) * kLength);
    }
  }
}

TEST(PerplexityRun, AStopIsNoticed) {
  ReadBench bench;
  std::stop_source stop;
  bench.options.stop = stop.get_token();
  stop.request_stop();
  const std::vector<std::vector<std::int32_t>> documents = {
      some_tokens(50, TinyModel::kVocabulary, 1)};
  const std::vector<TextWindow> windows = {{0, 0}};
  expect_error(
      [&] {
        eval::perplexity_run(
            bench.model, bench.context, documents, windows, 50, eval::position_ranges({}, 50),
            [](std::size_t, const eval::WindowScore&, const Session&) { ADD_FAILURE(); },
            bench.options);
      },
      {}, ErrorKind::cancelled);
}

TEST(EverydayRun, IsTheDivergenceOfBothModelsOverTheReply) {
  ReadBench bench;
  Context other_context(1);
  Settings dense;
  dense.method = MethodKind::dense;
  Settings window = small_settings(MethodKind::window);
  const eval::EverydayArm base{bench.model, bench.context, {{dense}}};
  std::vector<eval::EverydayText> texts;
  for (std::uint32_t i = 0; i < 5; ++i) {
    texts.push_back({some_tokens(20 + 9 * i, TinyModel::kVocabulary, i), 5 + i, i % 2 == 0});
  }
  std::vector<std::size_t> which(texts.size());
  std::iota(which.begin(), which.end(), 0u);
  for (const Settings& settings : {dense, window}) {
    const eval::EverydayArm other{bench.model, other_context, {{settings}}};
    std::size_t done = 0;
    eval::everyday_run(
        base, other, which, [&](std::size_t i) -> const eval::EverydayText& { return texts[i]; },
        [&](std::size_t i, const eval::EverydayScore& score) {
          EXPECT_EQ(i, done++);
          const eval::EverydayText& text = texts[i];
          const std::vector<float> p = bench.logits(text.ids, base.session);
          const std::vector<float> q = bench.logits(text.ids, other.session);
          double kl = 0, base_nll = 0, nll = 0;
          std::int64_t tokens = 0, agreed = 0;
          const auto row = [](const std::vector<float>& all, std::int64_t t) {
            const auto begin = all.begin() + t * TinyModel::kVocabulary;
            return std::vector<float>(begin, begin + TinyModel::kVocabulary);
          };
          const auto size = std::ssize(text.ids);
          for (std::int64_t t = text.prompt; t < size + (text.ended ? 1 : 0); ++t) {
            const std::vector<float> a = row(p, t - 1), b = row(q, t - 1);
            const std::int32_t token =
                t < size ? text.ids[static_cast<std::size_t>(t)] : eval::likeliest(a);
            kl += kl_plain(a, b);
            base_nll -= double{logprobs_of(a, token).logprob};
            nll -= double{logprobs_of(b, token).logprob};
            agreed += eval::likeliest(b) == token;
            ++tokens;
          }
          EXPECT_EQ(score.tokens, tokens);
          EXPECT_EQ(score.agreed, agreed);
          EXPECT_NEAR(score.kl, kl, 1e-4);
          EXPECT_NEAR(score.base_nll, base_nll, 1e-3);
          EXPECT_NEAR(score.other_nll, nll, 1e-3);
          if (settings == dense) {
            EXPECT_NEAR(score.kl, 0, 1e-5);
          } else if (size > 30) {
            EXPECT_GT(score.kl, 1e-3);
          }
        },
        {});
    EXPECT_EQ(done, texts.size());
  }
}

}  // namespace
}  // namespace lca::test
