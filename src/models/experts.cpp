#include "models/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/elementwise.h"

namespace lca {

void feed_forward(Context& context, const FeedForwardWeights& weights, ProductType type,
                  Activations& activations, const float* x, std::int64_t rows, float* out) {
  const std::int64_t width = weights.gate.out();
  float* gate = activations.gate.prepare(rows * width);
  float* up = activations.up.prepare(rows * width);
  const LinearCall calls[] = {{&weights.gate, gate}, {&weights.up, up}};
  linear_group(context, calls, type, x, rows);
  swiglu(context, gate, up, rows * width);
  linear(context, weights.down, type, gate, rows, out);
}

void experts_choose(const ExpertConfig& config, const float* logits,
                    std::span<ExpertChoice> chosen) {
  std::vector<float> scores(logits, logits + config.count);
  const float highest = *std::ranges::max_element(scores);
  double sum = 0;
  for (float& score : scores) sum += score = std::exp(score - highest);
  for (float& score : scores) score = static_cast<float>(score / sum);

  std::vector<bool> allowed(scores.size(), true);
  if (config.router == Router::group_limited) {
    // Only experts of the groups with the best single expert stay in the race.
    const std::int64_t size = config.count / config.groups;
    std::vector<float> best;
    for (std::int64_t group = 0; group < config.groups; ++group) {
      const auto begin = scores.begin() + group * size;
      best.push_back(*std::max_element(begin, begin + size));
    }
    std::vector<std::int64_t> order(best.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater{},
                             [&](std::int64_t g) { return best[static_cast<std::size_t>(g)]; });
    allowed.assign(scores.size(), false);
    for (std::int64_t i = 0; i < config.top_groups; ++i) {
      const std::int64_t first = order[static_cast<std::size_t>(i)] * size;
      std::fill_n(allowed.begin() + first, size, true);
    }
  }

  std::vector<std::int64_t> order;
  for (std::int64_t e = 0; e < config.count; ++e) {
    if (allowed[static_cast<std::size_t>(e)]) order.push_back(e);
  }
  const auto better = [&](std::int64_t a, std::int64_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + std::ssize(chosen), order.end(), better);
  float total = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] = {order[i], scores[static_cast<std::size_t>(order[i])]};
    total += chosen[i].weight;
  }
  for (ExpertChoice& choice : chosen) {
    if (config.normalise) choice.weight /= total;
    choice.weight *= static_cast<float>(config.scale);
  }
}

void experts_forward(Context& context, const DecoderLayer& layer, const ExpertConfig& config,
                     ProductType type, Activations& activations, const float* x, std::int64_t rows,
                     float* out) {
  const std::int64_t hidden = layer.router.in();
  float* logits = activations.router.prepare(rows * config.count);
  linear(context, layer.router, ProductType::f32, x, rows, logits);

  if (layer.feed_forward.gate.empty()) {
    std::fill_n(out, rows * hidden, 0.0F);
  } else {
    feed_forward(context, layer.feed_forward, type, activations, x, rows, out);
  }

  struct Visit {
    std::int64_t row;
    float weight;
  };
  std::vector<std::vector<Visit>> visits(static_cast<std::size_t>(config.count));
  std::vector<ExpertChoice> chosen(static_cast<std::size_t>(config.per_token));
  for (std::int64_t row = 0; row < rows; ++row) {
    experts_choose(config, logits + row * config.count, chosen);
    for (const ExpertChoice& choice : chosen) {
      visits[static_cast<std::size_t>(choice.expert)].push_back({row, choice.weight});
    }
  }
  for (std::size_t e = 0; e < visits.size(); ++e) {
    if (visits[e].empty()) continue;
    const auto count = static_cast<std::int64_t>(visits[e].size());
    float* gathered = activations.gathered.prepare(rows * hidden);
    float* result = activations.expert.prepare(rows * hidden);
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(gathered + i * hidden, x + visits[e][static_cast<std::size_t>(i)].row * hidden,
                  static_cast<std::size_t>(hidden) * sizeof(float));
    }
    feed_forward(context, layer.experts[e], type, activations, gathered, count, result);
    for (std::int64_t i = 0; i < count; ++i) {
      const Visit& visit = visits[e][static_cast<std::size_t>(i)];
      add_scaled(context, visit.weight, result + i * hidden, hidden, out + visit.row * hidden);
    }
  }
}

}  // namespace lca
