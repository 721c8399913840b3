// The choice of experts on the GPU against the CPU's, ties included, and the order of sorted rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/support.h"
#include "models/cpu/experts.h"
#include "ops/cuda/route.h"

namespace lca::test {
namespace {

struct RouteCase {
  int experts = 8, per_token = 2, rows = 1, hidden = 16;
  int groups = 0, top_groups = 1;
  bool normalise = false;
  float scale = 1;
};

/// Logits are whole numbers of few values, which every sum gets exactly: many ties.
void expect_as_on_cpu(const RouteCase& c, std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << c.experts << " experts, " << c.per_token << " a row, "
                                    << c.rows << " rows, " << c.groups << " groups");
  Random random(seed);
  std::vector<float> router(static_cast<std::size_t>(c.experts * c.hidden));
  for (float& value : router) value = static_cast<float>(random.integer(-1, 1));
  std::vector<bf16> x(static_cast<std::size_t>(c.rows) * static_cast<std::size_t>(c.hidden));
  for (bf16& value : x) value = bf16_of(static_cast<double>(random.integer(-1, 1)));
  const auto choices = static_cast<std::int64_t>(c.rows) * c.per_token;
  const DeviceArray<float> router_device(router);
  const DeviceArray<bf16> x_device(x);
  const DeviceArray<float> logits(nan_float(std::int64_t{c.rows} * c.experts));
  const DeviceArray<float> weights(nan_float(choices));
  const DeviceArray<int> chosen(std::vector<int>(static_cast<std::size_t>(choices), -1));

  cuda::RouteRule rule;
  rule.experts = c.experts;
  rule.per_token = c.per_token;
  rule.group_limited = c.groups > 0;
  rule.groups = std::max(c.groups, 1);
  rule.top_groups = c.top_groups;
  rule.normalise = c.normalise;
  rule.scale = c.scale;
  cuda::Route route;
  route.x = x_device.data();
  route.router = router_device.data();
  route.rows = c.rows;
  route.hidden = c.hidden;
  route.logits = logits.data();
  route.chosen = chosen.data();
  route.weights = weights.data();
  cuda::route_choose(rule, route, gpu_queue());
  const std::vector<int> got = chosen.download();
  const std::vector<float> got_weights = weights.download();

  ExpertConfig config;
  config.count = c.experts;
  config.per_token = c.per_token;
  config.router = c.groups > 0 ? Router::group_limited : Router::greedy;
  config.groups = std::max(c.groups, 1);
  config.top_groups = c.top_groups;
  config.normalise = c.normalise;
  config.scale = c.scale;
  std::vector<float> own(static_cast<std::size_t>(c.experts));
  std::vector<ExpertChoice> expected(static_cast<std::size_t>(c.per_token));
  for (int row = 0; row < c.rows; ++row) {
    for (int e = 0; e < c.experts; ++e) {
      float sum = 0;
      for (int k = 0; k < c.hidden; ++k) {
        sum += router[static_cast<std::size_t>(e * c.hidden + k)] *
               static_cast<float>(double_of(x[static_cast<std::size_t>(row * c.hidden + k)]));
      }
      own[static_cast<std::size_t>(e)] = sum;
    }
    experts_choose(config, own.data(), expected);
    for (int i = 0; i < c.per_token; ++i) {
      const auto at = static_cast<std::size_t>(row * c.per_token + i);
      const ExpertChoice& choice = expected[static_cast<std::size_t>(i)];
      ASSERT_EQ(got[at], choice.expert) << "row " << row << " choice " << i;
      ASSERT_NEAR(got_weights[at], choice.weight, 1e-5f * choice.weight + 1e-12f);
    }
  }
}

TEST(CudaRoute, ChoosesAsTheCpuDoes) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 0;
  for (const int experts : {1, 7, 64, 160, 512}) {
    for (const int rows : {1, 6, 63, 65, 300}) {
      for (const int hidden : {4, 17, 40}) {
        RouteCase c;
        c.experts = experts;
        c.per_token = std::min(experts, 1 + static_cast<int>(seed % 8));
        c.rows = rows;
        c.hidden = hidden;
        c.normalise = seed % 2 == 0;
        c.scale = seed % 3 == 0 ? 16.0f : 1.0f;
        expect_as_on_cpu(c, ++seed);
      }
    }
  }
}

TEST(CudaRoute, LimitsTheChoiceToGroupsAsTheCpuDoes) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 500;
  for (const int rows : {1, 33, 200}) {
    for (const int groups : {1, 2, 8, 40}) {
      for (const int top : {1, 2, 3}) {
        RouteCase c;
        c.experts = 160;
        c.groups = groups;
        c.top_groups = std::min(top, groups);
        c.per_token = std::min(6, c.top_groups * (160 / groups));
        c.rows = rows;
        c.normalise = seed % 2 == 0;
        expect_as_on_cpu(c, ++seed);
      }
    }
  }
}

TEST(CudaRoute, SortsRowsByExpertAndKeepsTheirOrder) {
  LCA_NEEDS_GPU();
  Random random(9);
  for (const int rows : {1, 5, 700, 3000}) {
    for (const int shared : {0, 2}) {
      cuda::RouteRule rule;
      rule.experts = 12;
      rule.per_token = 3;
      const int visits = rule.per_token + shared;
      std::vector<int> chosen(static_cast<std::size_t>(rows * rule.per_token));
      for (int row = 0; row < rows; ++row) {
        // The last experts stay empty.
        const auto first = static_cast<int>(random.integer(0, 7));
        for (int i = 0; i < rule.per_token; ++i) {
          chosen[static_cast<std::size_t>(row * rule.per_token + i)] = (first + i * 3) % 10;
        }
      }
      const DeviceArray<int> chosen_device(chosen);
      const DeviceArray<int> begin(
          std::vector<int>(static_cast<std::size_t>(rule.experts + shared + 1), -1));
      const DeviceArray<int> place(std::vector<int>(static_cast<std::size_t>(rows * visits), -1));
      const DeviceArray<int> source(std::vector<int>(static_cast<std::size_t>(rows * visits), -1));
      cuda::route_sort(rule, shared, chosen_device.data(), rows,
                       {begin.data(), place.data(), source.data()}, gpu_queue());
      const std::vector<int> got_begin = begin.download();
      const std::vector<int> got_place = place.download();
      const std::vector<int> got_source = source.download();
      int next = 0;
      for (int e = 0; e < rule.experts + shared; ++e) {
        ASSERT_EQ(got_begin[static_cast<std::size_t>(e)], next) << "expert " << e;
        for (int row = 0; row < rows; ++row) {
          for (int i = 0; i < visits; ++i) {
            const int own = i < rule.per_token
                                ? chosen[static_cast<std::size_t>(row * rule.per_token + i)]
                                : rule.experts + i - rule.per_token;
            if (own != e) continue;
            ASSERT_EQ(got_place[static_cast<std::size_t>(row * visits + i)], next);
            ASSERT_EQ(got_source[static_cast<std::size_t>(next)], row);
            ++next;
          }
        }
      }
      ASSERT_EQ(got_begin.back(), next);
    }
  }
}

}  // namespace
}  // namespace lca::test
