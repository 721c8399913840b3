#include "models/rope.h"

#include "attention/rotate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lca {
namespace {

/// YaRN's attention temperature for a scaling factor.
double yarn_mscale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

/// YaRN: high frequencies are kept, low ones divided by the factor, those between interpolated.
void yarn_stretch(std::vector<double>& frequencies, const RopeConfig& config) {
  const auto width = static_cast<double>(config.width);
  // The pair that makes `rotations` full rotations over the original length.
  const auto pair_of = [&](double rotations) {
    const auto length = static_cast<double>(config.original_length);
    return width * std::log(length / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.base));
  };
  double low = pair_of(config.beta_fast);
  double high = pair_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - ramp) + ramp / config.factor;
  }
}

/// Llama 3: low frequencies are divided by the factor, high ones kept, those between interpolated.
void llama3_stretch(std::vector<double>& frequencies, const RopeConfig& config) {
  const auto length = static_cast<double>(config.original_length);
  const double low = config.low_frequency_factor;
  const double high = config.high_frequency_factor;
  for (double& frequency : frequencies) {
    const double rotations =
        length * frequency / (2 * std::numbers::pi);  // over the original length
    if (rotations < low) {
      frequency /= config.factor;
    } else if (rotations <= high) {
      const double smooth = (rotations - low) / (high - low);
      frequency *= (1 - smooth) / config.factor + smooth;
    }
  }
}

double multiplier_of(const RopeConfig& config) {
  const bool scales = config.kind == RopeKind::yarn || config.kind == RopeKind::longrope;
  if (!scales) return 1;
  if (config.attention_factor) return *config.attention_factor;
  if (config.kind == RopeKind::longrope) {
    if (config.factor <= 1) return 1;
    return std::sqrt(1 + std::log(config.factor) /
                             std::log(static_cast<double>(config.original_length)));
  }
  const double mscale = config.mscale.value_or(0);
  const double mscale_all = config.mscale_all_dim.value_or(0);
  if (mscale == 0 || mscale_all == 0) return yarn_mscale(config.factor, 1);
  return yarn_mscale(config.factor, mscale) / yarn_mscale(config.factor, mscale_all);
}

void divide_by(std::vector<double>& frequencies, const std::vector<double>& divisors) {
  for (std::size_t i = 0; i < frequencies.size() && i < divisors.size(); ++i) {
    frequencies[i] /= divisors[i];
  }
}

}  // namespace

Rope::Rope(const RopeConfig& config)
    : config_(config),
      multiplier_(multiplier_of(config)),
      frequencies_(rotation_plain(config.width, config.base).frequencies) {
  switch (config.kind) {
    case RopeKind::standard:
    case RopeKind::dynamic:
      break;
    case RopeKind::linear:
      for (double& frequency : frequencies_) frequency /= config.factor;
      break;
    case RopeKind::yarn:
      yarn_stretch(frequencies_, config);
      break;
    case RopeKind::longrope:
      long_frequencies_ = frequencies_;
      divide_by(frequencies_, config.short_factors);
      divide_by(long_frequencies_, config.long_factors);
      break;
    case RopeKind::llama3:
      llama3_stretch(frequencies_, config);
      break;
  }
  divide_by(frequencies_, config.frequency_divisors);
}

bool Rope::depends_on_length() const {
  if (config_.kind == RopeKind::dynamic) return true;
  return config_.kind == RopeKind::longrope && frequencies_ != long_frequencies_;
}

double Rope::multiplier(std::int64_t /*length*/) const { return multiplier_; }

const std::vector<double>* Rope::fixed_frequencies(std::int64_t length) const {
  if (length <= config_.original_length) return &frequencies_;
  if (config_.kind == RopeKind::longrope) return &long_frequencies_;
  return config_.kind == RopeKind::dynamic ? nullptr : &frequencies_;
}

std::vector<double> Rope::frequencies(std::int64_t length) const {
  if (const std::vector<double>* fixed = fixed_frequencies(length)) return *fixed;
  // The base grows with the length, which scales the lowest frequency most.
  const auto width = static_cast<double>(config_.width);
  const double stretch =
      config_.factor * static_cast<double>(length) / static_cast<double>(config_.original_length) -
      (config_.factor - 1);
  const double base = config_.base * std::pow(stretch, width / (width - 2));
  std::vector<double> result = rotation_plain(config_.width, base).frequencies;
  divide_by(result, config_.frequency_divisors);
  return result;
}

void Rope::table(std::int64_t first, std::int64_t count, std::int64_t length, float* cos,
                 float* sin) const {
  const std::vector<double>* fixed = fixed_frequencies(length);
  const std::vector<double> made = fixed == nullptr ? frequencies(length) : std::vector<double>();
  const std::vector<double>& frequency = fixed == nullptr ? made : *fixed;
  const double scale = multiplier(length);
  for (std::int64_t row = 0; row < count; ++row) {
    const auto position = static_cast<double>(first + row);
    for (const double radians : frequency) {
      const double angle = position * radians;
      *cos++ = static_cast<float>(std::cos(angle) * scale);
      *sin++ = static_cast<float>(std::sin(angle) * scale);
    }
  }
}

void rope_apply(float* rows, std::int64_t count, std::int64_t heads, std::int64_t stride_row,
                std::int64_t stride_head, std::int64_t width, RopeLayout layout, const float* cos,
                const float* sin) {
  const std::int64_t pairs = width / 2;
  for (std::int64_t row = 0; row < count; ++row) {
    const float* c = cos + row * pairs;
    const float* s = sin + row * pairs;
    for (std::int64_t head = 0; head < heads; ++head) {
      float* x = rows + row * stride_row + head * stride_head;
      if (layout == RopeLayout::halves) {
        float* y = x + pairs;
        for (std::int64_t i = 0; i < pairs; ++i) {
          const float a = x[i];
          const float b = y[i];
          x[i] = a * c[i] - b * s[i];
          y[i] = b * c[i] + a * s[i];
        }
      } else {
        for (std::int64_t i = 0; i < pairs; ++i) {
          const float a = x[2 * i];
          const float b = x[2 * i + 1];
          x[2 * i] = a * c[i] - b * s[i];
          x[2 * i + 1] = b * c[i] + a * s[i];
        }
      }
    }
  }
}

}  // namespace lca
