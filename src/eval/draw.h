#pragma once
/// Random numbers that are the same on every machine, and a stream of its own for each sample.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace lca::eval {

/// A stream of random numbers (SplitMix64) that its names decide: a seed, a task, a sample.
class Draw {
 public:
  Draw(std::initializer_list<std::uint64_t> names) {
    for (const std::uint64_t name : names) state_ = mix(state_ ^ mix(name + kStep));
  }

  std::uint64_t next() { return mix(state_ += kStep); }

  /// A whole number from 0 to `count` − 1, all alike; `count` ≥ 1.
  std::uint64_t below(std::uint64_t count) {
    const std::uint64_t uneven = (0 - count) % count;  // 2⁶⁴ mod count: values to be drawn again
    for (;;) {
      const std::uint64_t value = next();
      if (value >= uneven) return value % count;
    }
  }
  /// A number from 0 to below 1.
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

  static std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

  std::uint64_t state_ = 0;
};

}  // namespace lca::eval
