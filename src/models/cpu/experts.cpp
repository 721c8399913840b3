#include "models/cpu/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/elementwise.h"

namespace lca {

void feed_forward(Context& context, const FeedForwardWeights& weights, ProductType type,
                  Activations& activations, const float* x, std::span<const std::int64_t> runs,
                  float* out) {
  const std::int64_t rows = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  const std::int64_t width = weights.gate.out();
  float* gate = activations.gate.prepare(rows * width);
  float* up = activations.up.prepare(rows * width);
  const LinearCall calls[] = {{&weights.gate, gate}, {&weights.up, up}};
  linear_group(context, calls, type, x, runs);
  swiglu(context, gate, up, rows * width);
  linear(context, weights.down, type, gate, runs, out);
}

namespace {

/// Kept from call to call, so that decoding a token allocates nothing.
struct ChoosingScratch {
  std::vector<float> scores, best;
  std::vector<std::int64_t> order;
  std::vector<bool> allowed;
};

}  // namespace

void experts_choose(const ExpertConfig& config, const float* logits,
                    std::span<ExpertChoice> chosen) {
  thread_local ChoosingScratch scratch;
  std::vector<float>& scores = scratch.scores;
  std::vector<std::int64_t>& order = scratch.order;
  scores.assign(logits, logits + config.count);
  const float highest = *std::ranges::max_element(scores);
  double sum = 0;
  for (float& score : scores) sum += score = std::exp(score - highest);
  for (float& score : scores) score = static_cast<float>(score / sum);

  scratch.allowed.assign(scores.size(), true);
  if (config.router == Router::group_limited) {
    // Only experts of the groups with the best single expert can be chosen.
    const std::int64_t size = config.count / config.groups;
    std::vector<float>& best = scratch.best;
    best.clear();
    for (std::int64_t group = 0; group < config.groups; ++group) {
      const auto begin = scores.begin() + group * size;
      best.push_back(*std::max_element(begin, begin + size));
    }
    order.resize(best.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
      const float x = best[static_cast<std::size_t>(a)];
      const float y = best[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    });
    scratch.allowed.assign(scores.size(), false);
    for (std::int64_t i = 0; i < config.top_groups; ++i) {
      const std::int64_t first = order[static_cast<std::size_t>(i)] * size;
      std::fill_n(scratch.allowed.begin() + first, size, true);
    }
  }

  order.clear();
  for (std::int64_t e = 0; e < config.count; ++e) {
    if (scratch.allowed[static_cast<std::size_t>(e)]) order.push_back(e);
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

namespace {

/// One token: all its experts read the same activations, so that their first products are one call.
void experts_of_one(Context& context, const DecoderLayer& layer, ProductType type,
                    Activations& activations, const float* x, float* out) {
  // Summed in the order of the experts, as in a batch: the result must not depend on other rows.
  std::ranges::sort(activations.choices, {}, &ExpertChoice::expert);
  const std::span<const ExpertChoice> chosen(activations.choices);
  const std::int64_t hidden = layer.router.in();
  const std::int64_t width = layer.experts[0].gate.out();
  const std::int64_t count = std::ssize(chosen);
  float* gate = activations.gate.prepare(count * width);
  float* up = activations.up.prepare(count * width);
  float* result = activations.expert.prepare(hidden);
  constexpr std::int64_t kAtOnce = kLargestGroup / 2;
  std::array<LinearCall, kLargestGroup> calls;
  const std::int64_t one = 1;
  for (std::int64_t first = 0; first < count; first += kAtOnce) {
    std::size_t used = 0;
    for (std::int64_t i = first; i < std::min(count, first + kAtOnce); ++i) {
      const FeedForwardWeights& expert =
          layer.experts[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)].expert)];
      calls[used++] = {&expert.gate, gate + i * width};
      calls[used++] = {&expert.up, up + i * width};
    }
    linear_group(context, std::span(calls).first(used), type, x, {&one, 1});
  }
  swiglu(context, gate, up, count * width);
  for (std::int64_t i = 0; i < count; ++i) {
    const ExpertChoice& choice = chosen[static_cast<std::size_t>(i)];
    linear(context, layer.experts[static_cast<std::size_t>(choice.expert)].down, type,
           gate + i * width, 1, result);
    add_scaled(context, choice.weight, result, hidden, out);
  }
}

/// Sorts the choices of all tokens by expert.
void sort_visits(const ExpertConfig& config, std::int64_t rows, Activations& activations) {
  std::vector<std::int64_t>& begin = activations.visits_begin;
  begin.assign(static_cast<std::size_t>(config.count) + 1, 0);
  for (const ExpertChoice& choice : activations.choices) {
    ++begin[static_cast<std::size_t>(choice.expert) + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  activations.visits.resize(activations.choices.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < config.per_token; ++i) {
      const ExpertChoice& choice =
          activations.choices[static_cast<std::size_t>(row * config.per_token + i)];
      std::int64_t& at = begin[static_cast<std::size_t>(choice.expert)];
      activations.visits[static_cast<std::size_t>(at++)] = {row, choice.weight};
    }
  }
  // begin[e] now is the end of expert e, which is the beginning of expert e + 1.
  std::rotate(begin.begin(), begin.end() - 1, begin.end());
  begin[0] = 0;
}

/// How many of an expert's visits come from each run, runs without visits left out, so that each
/// run is multiplied as it would be alone.
std::span<const std::int64_t> visit_runs(std::span<const ExpertVisit> visits,
                                         std::span<const std::int64_t> runs,
                                         Activations& activations) {
  std::vector<std::int64_t>& counts = activations.visit_runs;
  counts.clear();
  std::size_t run = 0;
  std::int64_t end = runs[0];
  std::int64_t count = 0;
  for (const ExpertVisit& visit : visits) {
    while (visit.row >= end) {
      if (count > 0) counts.push_back(count);
      count = 0;
      end += runs[++run];
    }
    ++count;
  }
  counts.push_back(count);
  return counts;
}

}  // namespace

void experts_forward(Context& context, const DecoderLayer& layer, const ExpertConfig& config,
                     ProductType type, Activations& activations, const float* x,
                     std::span<const std::int64_t> runs, float* out) {
  const std::int64_t rows = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  const std::int64_t hidden = layer.router.in();
  float* logits = activations.router.prepare(rows * config.count);
  linear(context, layer.router, ProductType::f32, x, runs, logits);

  if (layer.feed_forward.gate.empty()) {
    std::fill_n(out, rows * hidden, 0.0F);
  } else {
    feed_forward(context, layer.feed_forward, type, activations, x, runs, out);
  }

  const auto per_token = static_cast<std::size_t>(config.per_token);
  activations.choices.resize(static_cast<std::size_t>(rows) * per_token);
  for (std::int64_t row = 0; row < rows; ++row) {
    experts_choose(config, logits + row * config.count,
                   std::span(activations.choices)
                       .subspan(static_cast<std::size_t>(row) * per_token, per_token));
  }
  if (rows == 1) {
    experts_of_one(context, layer, type, activations, x, out);
    return;
  }
  sort_visits(config, rows, activations);
  float* gathered = activations.gathered.prepare(rows * hidden);
  float* result = activations.expert.prepare(rows * hidden);
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    const auto begin = static_cast<std::size_t>(activations.visits_begin[e]);
    const auto end = static_cast<std::size_t>(activations.visits_begin[e + 1]);
    const auto visits = std::span(activations.visits).subspan(begin, end - begin);
    if (visits.empty()) continue;
    const auto copied = static_cast<std::size_t>(hidden) * sizeof(float);
    for (std::size_t i = 0; i < visits.size(); ++i) {
      std::memcpy(gathered + static_cast<std::int64_t>(i) * hidden, x + visits[i].row * hidden,
                  copied);
    }
    feed_forward(context, layer.experts[e], type, activations, gathered,
                 visit_runs(visits, runs, activations), result);
    for (std::size_t i = 0; i < visits.size(); ++i) {
      add_scaled(context, visits[i].weight, result + static_cast<std::int64_t>(i) * hidden, hidden,
                 out + visits[i].row * hidden);
    }
  }
}

}  // namespace lca
