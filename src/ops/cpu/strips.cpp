// A strip is the blocks of 16 rows one after another, each cut into pieces: headers and scales
// [number][16 rows]; where a weight has a fifth bit in a mask of its own, those bits [8 groups of
// four columns][64 bits]; quants [groups][16 rows][4 columns]. Nibbles keep ggml's order: the low
// ones are the first half of a block, or of a pair of runs. Quants of Q5_K and Q6_K share bytes as
// strip_weave.h says, [words][groups][16 rows][4 columns].

#include "ops/strips.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/cpu_level.h"
#include "core/workspace.h"
#include "ops/cpu/strip_kernels.h"
#include "ops/cpu/strip_weave.h"

namespace lca {
namespace {

constexpr std::size_t kRows = kStripRows;

/// Numbers of a row's block that a strip holds together, and where they are there.
struct Piece {
  std::size_t from = 0;    ///< byte in the block
  std::size_t count = 0;   ///< numbers
  std::size_t bytes = 0;   ///< of each; 0: 32 bits, one a column
  std::uint32_t flip = 0;  ///< of words: signed quants become unsigned
  // Of quants that share bytes: how, and where their bits above the nibbles are in the block.
  const Weave* weave = nullptr;
  std::size_t upper = 0;

  std::size_t row_bytes() const { return bytes == 0 ? 4 : count * bytes; }
};

/// The pieces of a type's block, in a strip's order; none where the type has no strips.
struct StripForm {
  std::array<Piece, 4> pieces;
  std::size_t count = 0;

  std::span<const Piece> all() const { return std::span(pieces).first(count); }
};

StripForm form_of(PackedType type) {
  switch (type) {
    case PackedType::q4_0:
      return {{{{0, 1, 2}, {2, 4, 4}}}, 2};
    case PackedType::q4_1:
      return {{{{0, 2, 2}, {4, 4, 4}}}, 2};
    case PackedType::q5_0:
      return {{{{0, 1, 2}, {2, 1, 0}, {6, 4, 4}}}, 3};
    case PackedType::q5_1:
      return {{{{0, 2, 2}, {4, 1, 0}, {8, 4, 4}}}, 3};
    case PackedType::q8_0:
      return {{{{0, 1, 2}, {2, 8, 4, 0x80808080U}}}, 2};
    case PackedType::q4_k:
      return {{{{0, 2, 2}, {4, 12, 1}, {16, 32, 4}}}, 3};
    case PackedType::q5_k:
      return {{{{0, 2, 2}, {4, 12, 1}, {48, 40, 4, 0, &kFiveBits, 16}}}, 3};
    case PackedType::q6_k:
      return {{{{208, 1, 2},
                {192, 16, 1},
                {0, 24, 4, 0, &kSixBits, 128},
                {64, 24, 4, 0, &kSixBits, 160}}},
              4};
    default:
      return {};
  }
}

std::size_t block_count(PackedType type, std::int64_t columns) {
  return static_cast<std::size_t>(columns / packed_type_info(type).block_values);
}

/// Copies one number; words are flipped on the way.
void number_copy(const std::byte* from, std::byte* to, const Piece& piece) {
  if (piece.flip == 0) {
    std::memcpy(to, from, piece.bytes);
    return;
  }
  std::uint32_t word;
  std::memcpy(&word, from, sizeof word);
  word ^= piece.flip;
  std::memcpy(to, &word, sizeof word);
}

/// A row's 32 bits into a strip's masks: half a byte in each of eight.
void bits_spread(const std::byte* from, std::byte* to, std::size_t row) {
  std::uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  for (std::size_t group = 0; group < 8; ++group) {
    std::byte& mask = to[group * 8 + row / 2];
    const auto nibble = static_cast<std::byte>(bits >> (4 * group) & 15U);
    mask = row % 2 == 0 ? nibble : mask | nibble << 4;
  }
}

void bits_gather(const std::byte* from, std::byte* to, std::size_t row) {
  std::uint32_t bits = 0;
  for (std::size_t group = 0; group < 8; ++group) {
    const auto both = std::to_integer<std::uint32_t>(from[group * 8 + row / 2]);
    bits |= (row % 2 == 0 ? both & 15U : both >> 4) << (4 * group);
  }
  std::memcpy(to, &bits, sizeof bits);
}

std::uint32_t word_at(const std::byte* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// Where ggml has the nibbles of a run: which of the words, 32 bytes apart, and which of its
/// halves.
struct NibblePlace {
  std::size_t at;
  int down;

  NibblePlace(const Weave& weave, int run)
      : at(static_cast<std::size_t>(weave.bits == 5 ? run / 2 : run % 2) * 32),
        down(4 * (weave.bits == 5 ? run % 2 : run / 2)) {}
};

/// Nibbles and upper bits of a row's block into the words of a strip. A template, as the table
/// read at run time takes twice as long.
template <const Weave& weave>
void quants_weave(const std::byte* block, std::byte* to, std::size_t row, const Piece& piece) {
  const int above = weave.bits - 4;
  for (std::size_t group = 0; group < 8; ++group) {
    const std::uint32_t upper = word_at(block + piece.upper + 4 * group);
    std::uint32_t quants[8] = {}, words[8];
#pragma GCC unroll 8
    for (int run = 0; run < weave.runs; ++run) {
      const NibblePlace place(weave, run);
      const std::uint32_t nibbles = word_at(block + piece.from + place.at + 4 * group);
      quants[run] = (nibbles >> place.down & in_bytes(15)) |
                    (upper >> (above * run) & in_bytes((1U << above) - 1)) << 4;
    }
    weave.join(quants, words);
    for (std::size_t w = 0; w < static_cast<std::size_t>(weave.words); ++w) {
      std::memcpy(to + ((w * 8 + group) * kRows + row) * 4, words + w, 4);
    }
  }
}

template <const Weave& weave>
void quants_unweave(const std::byte* from, std::byte* block, std::size_t row, const Piece& piece) {
  const int above = weave.bits - 4;
  for (std::size_t group = 0; group < 8; ++group) {
    std::uint32_t words[8] = {}, nibbles[4] = {}, upper = 0;
    for (std::size_t w = 0; w < static_cast<std::size_t>(weave.words); ++w) {
      words[w] = word_at(from + ((w * 8 + group) * kRows + row) * 4);
    }
#pragma GCC unroll 8
    for (int run = 0; run < weave.runs; ++run) {
      const NibblePlace place(weave, run);
      const std::uint32_t quant = weave.quant(words, run);
      nibbles[place.at / 32] |= (quant & in_bytes(15)) << place.down;
      upper |= (quant >> 4 & in_bytes((1U << above) - 1)) << (above * run);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(weave.runs) / 2; ++i) {
      std::memcpy(block + piece.from + 32 * i + 4 * group, nibbles + i, 4);
    }
    std::memcpy(block + piece.upper + 4 * group, &upper, sizeof upper);
  }
}

}  // namespace

const StripKernels& strips_in_use() {
#if defined(__x86_64__)
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  const CpuLevel level = cpu_level();
  if (level >= CpuLevel::avx512 && has_vnni && vnni::kStrips.dot != nullptr) return vnni::kStrips;
  if (level >= CpuLevel::avx2) return avx2::kStrips;
#elif defined(__aarch64__)
  const CpuLevel level = cpu_level();
  if (level >= CpuLevel::dotprod && neon_dotprod::kStrips.dot != nullptr) {
    return neon_dotprod::kStrips;
  }
  if (level >= CpuLevel::neon) return neon::kStrips;
#endif
  static constexpr StripKernels kNone;
  return kNone;
}

bool strips_supported(PackedType type) {
  return form_of(type).count > 0 && strips_in_use().dot != nullptr;
}

std::size_t strip_bytes(PackedType type, std::int64_t columns) {
  return align_up(block_count(type, columns) * packed_type_info(type).block_bytes * kRows);
}

void strip_arrange(const PackedMatrix& rows, std::int64_t strip, std::byte* to) {
  const StripForm form = form_of(rows.type);
  const std::size_t block_bytes = packed_type_info(rows.type).block_bytes;
  const std::int64_t first = strip * kStripRows;
  const auto count = static_cast<std::size_t>(std::min(kStripRows, rows.rows - first));
  if (count < kRows) std::memset(to, 0, strip_bytes(rows.type, rows.columns));
  const std::size_t blocks = block_count(rows.type, rows.columns);
  for (std::size_t block = 0; block < blocks; ++block) {
    for (const Piece& piece : form.all()) {
      for (std::size_t r = 0; r < count; ++r) {
        const std::byte* row = rows.row(first + static_cast<std::int64_t>(r)) + block * block_bytes;
        if (piece.weave != nullptr) {
          const bool five = piece.weave == &kFiveBits;
          (five ? quants_weave<kFiveBits> : quants_weave<kSixBits>)(row, to, r, piece);
          continue;
        }
        const std::byte* from = row + piece.from;
        if (piece.bytes == 0) bits_spread(from, to, r);
        for (std::size_t i = 0; i < piece.count && piece.bytes > 0; ++i) {
          number_copy(from + i * piece.bytes, to + (i * kRows + r) * piece.bytes, piece);
        }
      }
      to += piece.row_bytes() * kRows;
    }
  }
}

void strips_unpack_bf16(const PackedMatrix& strips, std::int64_t first, std::int64_t count,
                        bf16_bits* to) {
  for (std::int64_t row = 0; row < count; row += kStripRows) {
    const auto some = static_cast<int>(std::min(kStripRows, count - row));
    strips_in_use().unpack(strips, (first + row) / kStripRows, some, to + row * strips.columns);
  }
}

void strips_unpack_rounded(const PackedMatrix& strips, std::int64_t first, std::int64_t count,
                           float* to) {
  for (std::int64_t row = 0; row < count; row += kStripRows) {
    const auto some = static_cast<int>(std::min(kStripRows, count - row));
    strips_in_use().unpack_wide(strips, (first + row) / kStripRows, some,
                                to + row * strips.columns);
  }
}

void strip_row_restore(const PackedMatrix& strips, std::int64_t row, std::byte* to) {
  const StripForm form = form_of(strips.type);
  const std::size_t block_bytes = packed_type_info(strips.type).block_bytes;
  const std::size_t blocks = block_count(strips.type, strips.columns);
  const auto r = static_cast<std::size_t>(row % kStripRows);
  const std::byte* from = strips.data + static_cast<std::size_t>(row / kStripRows) *
                                            strip_bytes(strips.type, strips.columns);
  for (std::size_t block = 0; block < blocks; ++block, to += block_bytes) {
    for (const Piece& piece : form.all()) {
      std::byte* into = to + piece.from;
      if (piece.weave != nullptr) {
        const bool five = piece.weave == &kFiveBits;
        (five ? quants_unweave<kFiveBits> : quants_unweave<kSixBits>)(from, to, r, piece);
      }
      if (piece.bytes == 0) bits_gather(from, into, r);
      for (std::size_t i = 0; i < piece.count && piece.bytes > 0 && piece.weave == nullptr; ++i) {
        number_copy(from + (i * kRows + r) * piece.bytes, into + i * piece.bytes, piece);
      }
      from += piece.row_bytes() * kRows;
    }
  }
}

void strips_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride) {
  strips_in_use().dot(w, first, end, x, rows, out, stride);
}

bool strips_many_supported() { return strips_in_use().dot_many != nullptr; }

std::size_t strips_many_bytes(std::int64_t columns) { return StripKernels::panel_bytes(columns); }

void strips_dot_many(const PackedMatrix& w, std::int64_t first, std::int64_t end, const WordRows& x,
                     std::int64_t rows, float* out, std::int64_t stride, void* scratch) {
  strips_in_use().dot_many(w, first, end, x, rows, out, stride, scratch);
}

}  // namespace lca
