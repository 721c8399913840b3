#include "engine/sampler.h"

#include "core/error.h"
#include "ops/likeliest.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace lca {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A number in [0, 1) that depends on seed and index only (the output step of SplitMix64), the same
/// on every machine.
double uniform(std::uint64_t seed, std::uint64_t index) {
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;
  // Seeds are mixed first: consecutive seeds must not give the same numbers shifted by one step.
  const std::uint64_t bits = mix(mix(seed + kStep) + (index + 1) * kStep);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check_range(const char* name, double value, double minimum, double maximum) {
  if (!(value >= minimum && value <= maximum)) {
    fail_input("{} must be from {} to {}, not {}", name, minimum, maximum, value);
  }
}

void check_count(const char* name, std::int64_t value) {
  if (value < 0) fail_input("{} must be 0 or more, not {}", name, value);
}

}  // namespace

void Sampling::validate() const {
  check_range("repetition_penalty", repetition_penalty, 0.01, 100);
  check_count("repetition_window", repetition_window);
  check_range("temperature", temperature, 0, 1000);
  check_count("top_k", top_k);
  check_range("top_p", top_p, 0, 1);
  check_range("min_p", min_p, 0, 1);
}

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling) { sampling.validate(); }

std::int32_t Sampler::pick(std::span<const float> logits, std::span<const std::int32_t> history,
                           std::int64_t position) {
  if (logits.empty()) fail_internal("the model produced no logits");
  if (logits.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail_internal("the model produced more logits than there are token ids");
  }
  const std::span<const float> scores = penalise(logits, history);
  const std::int32_t best = likeliest_token(scores);
  if (best < 0) fail_internal("the model produced NaN");
  const float best_score = scores[static_cast<std::size_t>(best)];
  if (sampling_.temperature == 0 || best_score == -kInfinity) return best;
  collect(scores, best_score);
  if (sampling_.top_p < 1) keep_top_p();
  if (sampling_.min_p > 0) {
    std::erase_if(candidates_, [this](const Candidate& c) { return c.weight < sampling_.min_p; });
  }
  return draw(position);
}

/// Lowers the logits of recent tokens, once for each token however often it occurs.
std::span<const float> Sampler::penalise(std::span<const float> logits,
                                         std::span<const std::int32_t> history) {
  if (sampling_.repetition_penalty == 1 || history.empty()) return logits;
  const auto window = static_cast<std::size_t>(sampling_.repetition_window);
  if (window != 0 && history.size() > window) history = history.last(window);
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  scores_.assign(logits.begin(), logits.end());
  for (const std::int32_t id : history) {
    const auto index = static_cast<std::size_t>(id);
    if (id < 0 || index >= logits.size()) continue;
    scores_[index] = logits[index] < 0 ? logits[index] * penalty : logits[index] / penalty;
  }
  return scores_;
}

/// The tokens that top-k keeps, by id, with their weights; ties with the k-th best are kept.
void Sampler::collect(std::span<const float> scores, float best) {
  float threshold = -kInfinity;
  const auto top_k = static_cast<std::uint64_t>(sampling_.top_k);
  if (top_k != 0 && top_k < scores.size()) {
    values_.assign(scores.begin(), scores.end());
    const auto last = values_.begin() + static_cast<std::ptrdiff_t>(top_k - 1);
    std::nth_element(values_.begin(), last, values_.end(), std::greater<>());
    threshold = *last;
  }
  candidates_.clear();
  candidates_.reserve(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] < threshold || scores[i] == -kInfinity) continue;
    double weight = 1;
    if (scores[i] != best) {  // avoids infinity − infinity
      const double below = static_cast<double>(scores[i]) - static_cast<double>(best);
      weight = std::exp(below / sampling_.temperature);
    }
    candidates_.push_back({weight, static_cast<std::int32_t>(i)});
  }
}

/// Keeps the likeliest tokens until their probability reaches top-p; at least one.
void Sampler::keep_top_p() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const auto is_worse = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
  };
  // A heap yields the likeliest tokens without sorting the long tail.
  std::ranges::make_heap(candidates_, is_worse);
  const double wanted = sampling_.top_p * total;
  double mass = 0;
  auto end = candidates_.end();
  do {
    std::pop_heap(candidates_.begin(), end, is_worse);
    --end;
    mass += end->weight;
  } while (mass < wanted && end != candidates_.begin());
  candidates_.erase(candidates_.begin(), end);
}

std::int32_t Sampler::draw(std::int64_t position) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = uniform(sampling_.seed, static_cast<std::uint64_t>(position)) * total;
  double sum = 0;
  std::int32_t last = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.weight;
    if (target < sum) return candidate.id;
    if (candidate.weight > 0) last = candidate.id;
  }
  return last;  // the product was rounded up to the total
}

}  // namespace lca
