#pragma once
/// What a host measures: rates that tell how long something takes, and times for the metrics.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace lca::server {

/// Times by size; the last count has no bound. `counts` are not cumulative.
struct TimeHistogram {
  static constexpr std::array<double, 14> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10,   60};
  std::array<std::int64_t, kBounds.size() + 1> counts{};
  double sum = 0;
  std::int64_t count = 0;

  void add(double seconds) {
    const auto at = std::ranges::lower_bound(kBounds, seconds) - kBounds.begin();
    ++counts[static_cast<std::size_t>(at)];
    sum += seconds;
    ++count;
  }
};

/// Amounts per second, where later ones count more. 0: nothing measured yet.
class Rate {
 public:
  void add(double amount, double seconds) {
    constexpr double kKeep = 0.8;
    amount_ = kKeep * amount_ + amount;
    seconds_ = kKeep * seconds_ + seconds;
  }
  double value() const { return seconds_ > 0 ? amount_ / seconds_ : 0; }

 private:
  double amount_ = 0, seconds_ = 0;
};

}  // namespace lca::server
