#include "eval/ruler/python_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_set>

namespace lca::eval {
namespace {

constexpr std::size_t kTwisterMiddle = 397;
constexpr std::uint32_t kTwisterMatrix = 0x9908b0df;
constexpr std::uint32_t kTwisterUpper = 0x80000000;
constexpr std::uint32_t kArraySeed = 19650218;

std::vector<std::uint32_t> seed_words(std::uint64_t seed) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) words.push_back(static_cast<std::uint32_t>(seed >> 32));
  return words;
}

}  // namespace

Twister::Twister(std::uint32_t seed) {
  state_[0] = seed;
  for (std::uint32_t i = 1; i < kSize; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
}

Twister::Twister(const std::vector<std::uint32_t>& words) : Twister(kArraySeed) {
  std::size_t i = 1;
  const auto advance = [&] {
    if (++i < kSize) return;
    state_[0] = state_[kSize - 1];
    i = 1;
  };
  const auto mixed = [&](std::uint32_t factor) {
    return state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * factor);
  };
  std::size_t j = 0;
  for (std::size_t left = std::max(kSize, words.size()); left > 0; --left) {
    state_[i] = mixed(1664525u) + words[j] + static_cast<std::uint32_t>(j);
    advance();
    j = (j + 1) % words.size();
  }
  for (std::size_t left = kSize - 1; left > 0; --left) {
    state_[i] = mixed(1566083941u) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = kTwisterUpper;
}

void Twister::refill() {
  for (std::size_t i = 0; i < kSize; ++i) {
    const std::uint32_t y =
        (state_[i] & kTwisterUpper) | (state_[(i + 1) % kSize] & ~kTwisterUpper);
    state_[i] = state_[(i + kTwisterMiddle) % kSize] ^ (y >> 1) ^ ((y & 1u) * kTwisterMatrix);
  }
  at_ = 0;
}

std::uint32_t Twister::next() {
  if (at_ == kSize) refill();
  std::uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

PythonRandom::PythonRandom(std::uint64_t seed) : twister_(seed_words(seed)) {}

double PythonRandom::uniform() {
  const std::uint32_t high = twister_.next() >> 5;
  const std::uint32_t low = twister_.next() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

std::uint64_t PythonRandom::bits(int count) {
  if (count <= 32) return twister_.next() >> (32 - count);
  const std::uint64_t low = twister_.next();
  return low | (std::uint64_t{twister_.next() >> (64 - count)} << 32);
}

std::uint64_t PythonRandom::below(std::uint64_t limit) {
  const auto width = static_cast<int>(std::bit_width(limit));
  std::uint64_t drawn = bits(width);
  while (drawn >= limit) drawn = bits(width);
  return drawn;
}

std::string PythonRandom::letters(std::string_view letters, std::size_t count) {
  std::string text;
  const auto size = static_cast<double>(letters.size());
  while (text.size() < count) text += letters[static_cast<std::size_t>(uniform() * size)];
  return text;
}

std::vector<std::size_t> PythonRandom::sample(std::size_t size, std::size_t count) {
  std::vector<std::size_t> drawn(count);
  // Python keeps a list of what is left where that is smaller than a set of what was drawn.
  double set_size = 21;
  if (count > 5) {
    set_size += std::pow(4.0, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4.0)));
  }
  if (static_cast<double>(size) <= set_size) {
    std::vector<std::size_t> left(size);
    std::iota(left.begin(), left.end(), std::size_t{0});
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t j = below(size - i);
      drawn[i] = left[j];
      left[j] = left[size - i - 1];
    }
    return drawn;
  }
  std::unordered_set<std::size_t> seen;
  for (std::size_t& each : drawn) {
    do {
      each = below(size);
    } while (!seen.insert(each).second);
  }
  return drawn;
}

std::string PythonRandom::uuid4() {
  std::array<std::uint32_t, 4> words;  // low ones first
  for (std::uint32_t& word : words) word = twister_.next();
  words[2] = (words[2] & 0xffff0fffu) | 0x4000u;      // version 4
  words[1] = (words[1] & 0x3fffffffu) | 0x80000000u;  // variant of RFC 4122
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}", words[3], words[2] >> 16,
                     words[2] & 0xffffu, words[1] >> 16, words[1] & 0xffffu, words[0]);
}

std::uint32_t NumpyRandom::between(std::uint32_t lowest, std::uint32_t limit) {
  const std::uint32_t range = limit - 1 - lowest;
  if (range == 0) return lowest;
  const std::uint32_t mask = ~std::uint32_t{0} >> std::countl_zero(range);
  std::uint32_t drawn = twister_.next() & mask;
  while (drawn > range) drawn = twister_.next() & mask;
  return lowest + drawn;
}

}  // namespace lca::eval
