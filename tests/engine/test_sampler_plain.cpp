// The sampler beside a plain one that looks at every token.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/sampler.h"

namespace lca {
namespace {

/// The rule as it is written down: everything is weighed, sorted and summed in full.
std::int32_t plain_pick(const Sampling& sampling, const std::vector<float>& logits, double drawn) {
  struct Item {
    double weight;
    std::int32_t id;
  };
  const float best = *std::ranges::max_element(logits);
  const auto first = std::ranges::find(logits, best) - logits.begin();
  if (sampling.temperature == 0) return static_cast<std::int32_t>(first);
  float threshold = -std::numeric_limits<float>::infinity();
  const auto top_k = static_cast<std::size_t>(sampling.top_k);
  if (top_k != 0 && top_k < logits.size()) {
    std::vector<float> sorted = logits;
    std::ranges::sort(sorted, std::greater<>());
    threshold = sorted[top_k - 1];
  }
  std::vector<Item> items;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < threshold || std::isinf(logits[i])) continue;
    const double below = static_cast<double>(logits[i]) - static_cast<double>(best);
    items.push_back({std::exp(below / sampling.temperature), static_cast<std::int32_t>(i)});
  }
  const auto total = [&items] {
    double sum = 0;
    for (const Item& item : items) sum += item.weight;
    return sum;
  };
  if (sampling.top_p < 1) {
    const double wanted = sampling.top_p * total();
    std::ranges::sort(items, [](const Item& a, const Item& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
    });
    double mass = 0;
    std::size_t count = 0;
    do {
      mass += items[count++].weight;
    } while (mass < wanted && count < items.size());
    items.resize(count);
    std::ranges::reverse(items);
  }
  std::erase_if(items, [&](const Item& item) { return item.weight < sampling.min_p; });
  const double target = drawn * total();
  double sum = 0;
  for (const Item& item : items) {
    sum += item.weight;
    if (target < sum) return item.id;
  }
  return items.back().id;
}

/// The number that seed and position give: where it lies among 2^17 equal tokens, to 2^-17.
double drawn_number(std::uint64_t seed, std::int64_t position) {
  static const std::vector<float> even(std::size_t{1} << 17, 0);
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = seed;
  return (Sampler(sampling).pick(even, {}, position) + 0.5) / 0x1p17;
}

TEST(SamplerPlain, TokensAreThoseOfThePlainRule) {
  std::mt19937 random(3);
  int compared = 0;
  for (int round = 0; round < 200; ++round) {
    const std::size_t size = 1 + random() % (round % 4 == 0 ? 20000 : 700);
    std::normal_distribution<float> spread(0, static_cast<float>(1 + random() % 5));
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = spread(random);
      if (random() % 7 == 0) logit = std::round(logit);  // ties
    }
    Sampling sampling;
    sampling.seed = random();
    sampling.temperature = random() % 5 == 0 ? 0 : 0.1 + 0.1 * (random() % 20);
    sampling.top_k = random() % 3 == 0 ? 0 : random() % 900;
    sampling.top_p = random() % 2 == 0 ? 1 : (random() % 1001) / 1000.0;
    sampling.min_p = random() % 3 != 0 ? 0 : (random() % 100) / 200.0;
    // The number is known to 2^-17: where both ends of that range agree, so must the sampler.
    const double drawn = drawn_number(sampling.seed, round);
    const std::int32_t low = plain_pick(sampling, logits, drawn - 0x1p-18);
    const std::int32_t high = plain_pick(sampling, logits, drawn + 0x1p-18);
    if (low != high) continue;
    ++compared;
    EXPECT_EQ(Sampler(sampling).pick(logits, {}, round), low) << "round " << round;
  }
  EXPECT_GT(compared, 150);
}

}  // namespace
}  // namespace lca
