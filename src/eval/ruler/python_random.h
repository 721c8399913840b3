#pragma once
/// The random numbers of Python's `random` and of numpy's `RandomState`, so that prompts are those
/// of RULER's own scripts at the same seed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::eval {

/// The Mersenne twister MT19937.
class Twister {
 public:
  /// As numpy.random.seed seeds it.
  explicit Twister(std::uint32_t seed);
  /// As random.seed seeds it: with the 32-bit words of a number, low ones first.
  explicit Twister(const std::vector<std::uint32_t>& words);
  std::uint32_t next();

 private:
  static constexpr std::size_t kSize = 624;
  void refill();

  std::array<std::uint32_t, kSize> state_;
  std::size_t at_ = kSize;
};

/// random.Random(seed).
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);

  /// 0 ≤ x < 1.
  double uniform();
  /// A number of `count` random bits, 1 … 64.
  std::uint64_t bits(int count);
  /// 0 … limit − 1; limit is at least 1.
  std::uint64_t below(std::uint64_t limit);
  /// lowest … highest.
  std::uint64_t between(std::uint64_t lowest, std::uint64_t highest) {
    return lowest + below(highest - lowest + 1);
  }
  /// A text of `count` letters: ''.join(random.choices(letters, k=count)).
  std::string letters(std::string_view letters, std::size_t count);
  /// random.sample(range(size), count); count ≤ size.
  std::vector<std::size_t> sample(std::size_t size, std::size_t count);
  /// str(uuid.UUID(int=random.getrandbits(128), version=4)).
  std::string uuid4();

  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i-- > 1;) std::swap(list[i], list[below(i + 1)]);
  }

 private:
  Twister twister_;
};

/// numpy.random.RandomState(seed).
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : twister_(seed) {}
  /// randint(lowest, limit): lowest … limit − 1.
  std::uint32_t between(std::uint32_t lowest, std::uint32_t limit);

 private:
  Twister twister_;
};

}  // namespace lca::eval
