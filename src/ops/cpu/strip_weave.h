#pragma once
/// How quants of 5 and 6 bits share bytes in a strip, so that few instructions take them apart.
///
/// A byte has space for one quant and two or three bits more; those of several bytes make another
/// quant. It is the exclusive or of these bytes, each moved down to where its bits belong. What
/// else comes along (quants, of neighbours too, as vectors are moved by 32 bits) is not masked, but
/// made up for when the bits are chosen: one mask for a quant instead of one for each piece of it.

#include <array>
#include <cstddef>
#include <cstdint>

namespace lca {

/// Four bytes of the same value.
constexpr std::uint32_t in_bytes(unsigned value) { return value * 0x01010101U; }

struct Weave {
  /// A word that a run is made of; `gives`: the bits of the run that it is there for.
  struct Part {
    int word = 0, down = 0;
    unsigned gives = 0;
  };

  int bits = 0, runs = 0, words = 0;
  std::array<std::array<Part, 3>, 8> parts = {};  ///< of each run; ends where nothing is given

  /// The words of `runs` quants each, four columns in a word. A run's bits are chosen after those
  /// of the runs before it, which they may not change.
  [[gnu::always_inline]] constexpr void join(const std::uint32_t* quants, std::uint32_t* to) const {
    for (int w = 0; w < words; ++w) to[w] = 0;
#pragma GCC unroll 8
    for (int run = 0; run < runs; ++run) {
      const std::uint32_t missing = quants[run] ^ quant(to, run);
#pragma GCC unroll 3
      for (const Part& part : parts[static_cast<std::size_t>(run)]) {
        to[part.word] ^= (missing & in_bytes(part.gives)) << part.down;
      }
    }
  }
  [[gnu::always_inline]] constexpr std::uint32_t quant(const std::uint32_t* from, int run) const {
    std::uint32_t sum = 0;
#pragma GCC unroll 3
    for (const Part& part : parts[static_cast<std::size_t>(run)]) {
      if (part.gives != 0) sum ^= from[part.word] >> part.down;
    }
    return sum & in_bytes((1U << bits) - 1);
  }
};

/// Q5_K's eight runs, in five words; those that have no word of their own come last, when all words
/// are in cache.
inline constexpr Weave kFiveBits = {5,
                                    8,
                                    5,
                                    {{{{{0, 0, 31}}},
                                      {{{1, 0, 31}}},
                                      {{{2, 0, 31}}},
                                      {{{3, 0, 31}}},
                                      {{{4, 0, 31}}},
                                      {{{0, 3, 28}, {1, 6, 3}}},
                                      {{{1, 2, 8}, {2, 5, 7}, {3, 1, 16}}},
                                      {{{3, 6, 3}, {4, 3, 28}}}}}};

/// The four runs of half a block of Q6_K, in three words.
inline constexpr Weave kSixBits = {
    6,
    4,
    3,
    {{{{{0, 0, 63}}}, {{{1, 0, 63}}}, {{{2, 0, 63}}}, {{{0, 6, 3}, {1, 4, 12}, {2, 2, 48}}}}}};

}  // namespace lca
