#pragma once
/// Random numbers that are the same on every machine and standard library.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace lca::test {

/// SplitMix64: small, seedable, good enough to draw test inputs.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  /// Uniform in [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// Uniform in first … last.
  std::int64_t integer(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(unit() * static_cast<double>(last - first + 1));
  }

  bool chance(double probability) { return unit() < probability; }

  /// Standard normal.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return radius * std::cos(6.283185307179586 * unit());
  }

  /// One of the values; a value that is listed twice is twice as likely.
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return *std::next(values.begin(), integer(0, static_cast<std::int64_t>(values.size()) - 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace lca::test
