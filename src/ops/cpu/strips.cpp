// A strip is blocks of 32 columns one after another, each of three pieces: headers [scale, then
// minimum][16 rows]; where a weight has a fifth bit, those bits [8 groups of four columns][64
// bits]; quants [groups][16 rows][4 columns]. Nibbles keep ggml's order: the low ones are the first
// half of a block.

#include "ops/strips.h"

#include <algorithm>
#include <cstring>

#include "core/workspace.h"

namespace lca {

#if defined(__x86_64__)
namespace vnni {
/// avx512vnni.cpp
void strips_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride);
}  // namespace vnni
#endif

namespace {

constexpr std::int64_t kBlock = 32;

/// Where the pieces of a row's block lie, in bytes; the quants are the rest of it.
struct StripForm {
  std::size_t headers = 0;  // two bytes each
  std::size_t fifth = 0;    // bytes of fifth bits
  std::size_t words = 0;    // four-byte words of quants
  std::uint32_t flip = 0;   // signed quants become unsigned
};

StripForm form_of(PackedType type) {
  switch (type) {
    case PackedType::q4_0:
      return {2, 0, 4, 0};
    case PackedType::q4_1:
      return {4, 0, 4, 0};
    case PackedType::q5_0:
      return {2, 4, 4, 0};
    case PackedType::q5_1:
      return {4, 4, 4, 0};
    case PackedType::q8_0:
      return {2, 0, 8, 0x80808080u};
    default:
      return {};
  }
}

/// Where the pieces of a strip's block begin.
struct Pieces {
  StripForm form;
  std::size_t blocks, fifth, quants, bytes;

  Pieces(PackedType type, std::int64_t columns)
      : form(form_of(type)), blocks(static_cast<std::size_t>(columns / kBlock)) {
    fifth = form.headers * kStripRows;
    quants = fifth + form.fifth * kStripRows;
    bytes = quants + form.words * 4 * kStripRows;
  }
  std::size_t strip_bytes() const { return align_up(blocks * bytes); }
};

template <typename Word>
Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <typename Word>
void store(std::byte* to, Word word) {
  std::memcpy(to, &word, sizeof word);
}

}  // namespace

bool strips_supported(PackedType type) {
  return form_of(type).words > 0 && packed_dot_supported(type);
}

std::size_t strip_bytes(PackedType type, std::int64_t columns) {
  return Pieces(type, columns).strip_bytes();
}

void strip_arrange(const PackedMatrix& rows, std::int64_t strip, std::byte* to) {
  const Pieces pieces(rows.type, rows.columns);
  const StripForm& form = pieces.form;
  const std::size_t block_bytes = packed_type_info(rows.type).block_bytes;
  const std::int64_t first = strip * kStripRows;
  const auto count = static_cast<std::size_t>(std::min(kStripRows, rows.rows - first));
  if (count < kStripRows) std::memset(to, 0, pieces.strip_bytes());
  for (std::size_t block = 0; block < pieces.blocks; ++block, to += pieces.bytes) {
    for (std::size_t r = 0; r < count; ++r) {
      const std::byte* from = rows.row(first + static_cast<std::int64_t>(r)) + block * block_bytes;
      for (std::size_t header = 0; header < form.headers / 2; ++header, from += 2) {
        store(to + header * 32 + 2 * r, load<std::uint16_t>(from));
      }
      if (form.fifth > 0) {
        const auto bits = load<std::uint32_t>(from);
        from += sizeof bits;
        for (std::size_t group = 0; group < 8; ++group) {
          // Four bits of this row, in a mask of 64: half a byte.
          std::byte& mask = to[pieces.fifth + group * 8 + r / 2];
          const auto nibble = static_cast<std::byte>(bits >> (4 * group) & 15u);
          mask = r % 2 == 0 ? nibble : mask | nibble << 4;
        }
      }
      for (std::size_t word = 0; word < form.words; ++word) {
        store(to + pieces.quants + 64 * word + 4 * r,
              load<std::uint32_t>(from + 4 * word) ^ form.flip);
      }
    }
  }
}

void strip_restore(const PackedMatrix& strips, std::int64_t strip, std::int64_t count,
                   std::byte* to) {
  const Pieces pieces(strips.type, strips.columns);
  const StripForm& form = pieces.form;
  const std::byte* first = strips.data + static_cast<std::size_t>(strip) * pieces.strip_bytes();
  for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
    const std::byte* from = first;
    for (std::size_t block = 0; block < pieces.blocks; ++block, from += pieces.bytes) {
      for (std::size_t header = 0; header < form.headers / 2; ++header, to += 2) {
        store(to, load<std::uint16_t>(from + header * 32 + 2 * r));
      }
      if (form.fifth > 0) {
        std::uint32_t bits = 0;
        for (std::size_t group = 0; group < 8; ++group) {
          const auto both = std::to_integer<std::uint32_t>(from[pieces.fifth + group * 8 + r / 2]);
          bits |= (r % 2 == 0 ? both & 15u : both >> 4) << (4 * group);
        }
        store(to, bits);
        to += sizeof bits;
      }
      for (std::size_t word = 0; word < form.words; ++word, to += 4) {
        store(to, load<std::uint32_t>(from + pieces.quants + 64 * word + 4 * r) ^ form.flip);
      }
    }
  }
}

void strips_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride) {
#if defined(__x86_64__)
  vnni::strips_dot(w, first, end, x, rows, out, stride);
#else
  static_cast<void>(w), static_cast<void>(first), static_cast<void>(end), static_cast<void>(x);
  static_cast<void>(rows), static_cast<void>(out), static_cast<void>(stride);
#endif
}

}  // namespace lca
