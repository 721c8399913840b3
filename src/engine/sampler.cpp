#include "engine/sampler.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

/// Values of a block whose largest is kept.
constexpr std::size_t kBlock = 64;

/// Four values at once, which every processor compares in one instruction: no dispatch.
using Quad = float __attribute__((vector_size(16)));
using QuadBits = std::int32_t __attribute__((vector_size(16)));

/// The largest value; NaN where a value is NaN.
float block_largest(std::span<const float> values) {
  Quad best[4];
  QuadBits odd[4];
  for (std::size_t part = 0; part < 4; ++part) {
    best[part] = Quad{} - kInfinity;
    odd[part] = QuadBits{};
  }
  std::size_t at = 0;
  for (; at + 16 <= values.size(); at += 16) {
    for (std::size_t part = 0; part < 4; ++part) {
      Quad value;
      std::memcpy(&value, values.data() + at + 4 * part, sizeof(value));
      best[part] = value > best[part] ? value : best[part];
      odd[part] |= value != value;
    }
  }
  float largest = -kInfinity;
  bool has_nan = false;
  for (std::size_t part = 0; part < 4; ++part) {
    for (int lane = 0; lane < 4; ++lane) {
      largest = std::max(largest, best[part][lane]);
      has_nan = has_nan || odd[part][lane] != 0;
    }
  }
  for (; at < values.size(); ++at) {
    largest = values[at] > largest ? values[at] : largest;
    has_nan = has_nan || std::isnan(values[at]);
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

std::span<const float> block_of(std::span<const float> values, std::size_t block) {
  const std::size_t first = block * kBlock;
  return values.subspan(first, std::min(kBlock, values.size() - first));
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
  const std::int32_t best = likeliest(scores);
  const float best_score = scores[static_cast<std::size_t>(best)];
  if (sampling_.temperature == 0 || best_score == -kInfinity) return best;
  collect(scores, best_score);
  if (sampling_.top_p < 1) keep_top_p();
  if (sampling_.min_p > 0) {
    std::erase_if(candidates_, [this](const Candidate& c) { return c.weight < sampling_.min_p; });
  }
  return draw(position);
}

/// The largest score, the lowest id on ties. Leaves the largest score of each block.
std::int32_t Sampler::likeliest(std::span<const float> scores) {
  largest_.resize((scores.size() + kBlock - 1) / kBlock);
  std::size_t best = 0;
  for (std::size_t block = 0; block < largest_.size(); ++block) {
    largest_[block] = block_largest(block_of(scores, block));
    if (std::isnan(largest_[block])) fail_internal("the model produced NaN");
    if (largest_[block] > largest_[best]) best = block;
  }
  const std::span<const float> row = block_of(scores, best);
  const auto at = std::ranges::find(row, largest_[best]);
  return static_cast<std::int32_t>(best * kBlock) + static_cast<std::int32_t>(at - row.begin());
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

/// The score of the k-th best token. At least k scores reach the k-th largest of the blocks'
/// largest ones, so that only those are looked at.
float Sampler::kth_score(std::span<const float> scores, std::size_t k) {
  const auto descend = [this](std::size_t count) {
    const auto last = values_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(values_.begin(), last, values_.end(), std::greater<>());
    return *last;
  };
  if (k > largest_.size()) {
    values_.assign(scores.begin(), scores.end());
    return descend(k);
  }
  values_ = largest_;
  const float bound = descend(k);
  values_.clear();
  for (std::size_t block = 0; block < largest_.size(); ++block) {
    if (largest_[block] < bound) continue;
    for (const float score : block_of(scores, block)) {
      if (score >= bound) values_.push_back(score);
    }
  }
  return descend(k);
}

/// The tokens that top-k keeps, by id, with their weights; ties with the k-th best are kept.
void Sampler::collect(std::span<const float> scores, float best) {
  float threshold = -kInfinity;
  const auto top_k = static_cast<std::uint64_t>(sampling_.top_k);
  if (top_k != 0 && top_k < scores.size()) {
    threshold = kth_score(scores, static_cast<std::size_t>(top_k));
  }
  // What min-p will leave out needs no weight, unless top-p counts it. The margin is wider than any
  // rounding of the exponential.
  double least = -kInfinity;
  if (sampling_.min_p > 0 && sampling_.top_p >= 1) least = std::log(sampling_.min_p) - 1e-6;
  candidates_.clear();
  candidates_.reserve(scores.size());
  for (std::size_t block = 0; block < largest_.size(); ++block) {
    if (largest_[block] < threshold || largest_[block] == -kInfinity) continue;
    const std::span<const float> row = block_of(scores, block);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i] < threshold || row[i] == -kInfinity) continue;
      double weight = 1;
      if (row[i] != best) {  // avoids infinity − infinity
        const double below = static_cast<double>(row[i]) - static_cast<double>(best);
        const double exponent = below / sampling_.temperature;
        if (exponent < least) continue;
        weight = std::exp(exponent);
      }
      candidates_.push_back({weight, static_cast<std::int32_t>(block * kBlock + i)});
    }
  }
}

/// Keeps the likeliest tokens until their probability reaches top-p; at least one. Only those above
/// a bound are sorted, which falls until they are enough.
void Sampler::keep_top_p() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double wanted = sampling_.top_p * total;
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  for (double bound = 0x1p-6;; bound = bound < 0x1p-60 ? 0 : bound * 0x1p-6) {
    sorted_.clear();
    for (const Candidate& candidate : candidates_) {
      if (candidate.weight >= bound) sorted_.push_back(candidate);
    }
    std::ranges::sort(sorted_, is_better);
    double mass = 0;
    std::size_t count = 0;
    do {
      mass += sorted_[count++].weight;
    } while (mass < wanted && count < sorted_.size());
    if (mass < wanted && bound > 0) continue;
    sorted_.resize(count);
    // From the least likely on, as the draw has always gone through them.
    candidates_.assign(sorted_.rbegin(), sorted_.rend());
    return;
  }
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
