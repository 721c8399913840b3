// The part that all programs begin with: strings, numbers, literals, white space, any value.

#include "server/grammar/program.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

namespace {

// States of a string. 0 is between characters.
enum CharState : std::uint8_t {
  kBetween,
  kEscape,  // after a backslash
  kTail1,   // one byte 80..bf to come, then two, …
  kTail2,
  kTail3,
  kAfterE0,  // a second byte that excludes long forms, surrogates, and what is beyond U+10FFFF
  kAfterEd,
  kAfterF0,
  kAfterF4,
  kHex1,  // one hexadecimal digit to come, then two, …
  kHex2,
  kHex3,
  kHex4,
  kHexAfterD,  // \ud: 0..7 is a character, 8..b half of one
  kHigh2,      // \ud8: two digits, then the other half must follow
  kHigh1,
  kLowBackslash,
  kLowU,
  kLowD,
  kLowAfterD,
  kKeyZero2,  // \u0 of a key's control character
  kKeyZero3,
  kKeyControl0,  // \u000
  kKeyControl1,  // \u001
};
static_assert(kKeyControl1 + 1 == kCharStates);

using Row = CharStep[256];

void row_add(Row& row, int first, int last, CharStep::Kind kind, std::uint8_t next) {
  for (int i = first; i <= last; ++i) row[i] = {kind, next};
}

void row_add(Row& row, std::string_view letters, CharStep::Kind kind, std::uint8_t next) {
  for (const char letter : letters) row[static_cast<std::uint8_t>(letter)] = {kind, next};
}

CharTables char_tables_make() {
  CharTables made{};
  for (auto& table : made.step) {
    row_add(table[kBetween], 0x20, 0x7f, CharStep::begin, kBetween);
    row_add(table[kBetween], "\\", CharStep::begin, kEscape);
    row_add(table[kBetween], "\"", CharStep::close, kBetween);
    row_add(table[kBetween], 0xc2, 0xdf, CharStep::begin, kTail1);
    row_add(table[kBetween], 0xe1, 0xef, CharStep::begin, kTail2);
    row_add(table[kBetween], 0xe0, 0xe0, CharStep::begin, kAfterE0);
    row_add(table[kBetween], 0xed, 0xed, CharStep::begin, kAfterEd);
    row_add(table[kBetween], 0xf0, 0xf0, CharStep::begin, kAfterF0);
    row_add(table[kBetween], 0xf1, 0xf3, CharStep::begin, kTail3);
    row_add(table[kBetween], 0xf4, 0xf4, CharStep::begin, kAfterF4);
    row_add(table[kTail1], 0x80, 0xbf, CharStep::follow, kBetween);
    row_add(table[kTail2], 0x80, 0xbf, CharStep::follow, kTail1);
    row_add(table[kTail3], 0x80, 0xbf, CharStep::follow, kTail2);
    row_add(table[kAfterE0], 0xa0, 0xbf, CharStep::follow, kTail1);
    row_add(table[kAfterEd], 0x80, 0x9f, CharStep::follow, kTail1);
    row_add(table[kAfterF0], 0x90, 0xbf, CharStep::follow, kTail2);
    row_add(table[kAfterF4], 0x80, 0x8f, CharStep::follow, kTail2);
  }

  auto& value = made.step[kValueChars];
  constexpr std::string_view hex = "0123456789abcdefABCDEF";
  row_add(value[kEscape], "\"\\/bfnrt", CharStep::follow, kBetween);
  row_add(value[kEscape], "u", CharStep::follow, kHex4);
  row_add(value[kHex4], hex, CharStep::follow, kHex3);
  row_add(value[kHex4], "dD", CharStep::follow, kHexAfterD);
  row_add(value[kHex3], hex, CharStep::follow, kHex2);
  row_add(value[kHex2], hex, CharStep::follow, kHex1);
  row_add(value[kHex1], hex, CharStep::follow, kBetween);
  row_add(value[kHexAfterD], "01234567", CharStep::follow, kHex2);
  row_add(value[kHexAfterD], "89abAB", CharStep::follow, kHigh2);
  row_add(value[kHigh2], hex, CharStep::follow, kHigh1);
  row_add(value[kHigh1], hex, CharStep::follow, kLowBackslash);
  row_add(value[kLowBackslash], "\\", CharStep::follow, kLowU);
  row_add(value[kLowU], "u", CharStep::follow, kLowD);
  row_add(value[kLowD], "dD", CharStep::follow, kLowAfterD);
  row_add(value[kLowAfterD], "cdefCDEF", CharStep::follow, kHex2);

  // Keys: an escape only where nothing else can be written, so that a name has one spelling.
  auto& key = made.step[kKeyChars];
  row_add(key[kEscape], "\"\\bfnrt", CharStep::follow, kBetween);
  row_add(key[kEscape], "u", CharStep::follow, kKeyZero3);
  row_add(key[kKeyZero3], "0", CharStep::follow, kKeyZero2);
  row_add(key[kKeyZero2], "0", CharStep::follow, kHex2);
  row_add(key[kHex2], "0", CharStep::follow, kKeyControl0);
  row_add(key[kHex2], "1", CharStep::follow, kKeyControl1);
  row_add(key[kKeyControl0], "01234567bef", CharStep::follow, kBetween);
  row_add(key[kKeyControl1], "0123456789abcdef", CharStep::follow, kBetween);
  return made;
}

Edge digit_to(std::uint32_t next, std::uint8_t first = '0', std::uint8_t last = '9') {
  return {first, last, next};
}

/// One to `most` digits, then `next`.
std::uint32_t digits_up_to(ProgramBuilder& builder, int most, std::uint32_t next) {
  std::uint32_t at = next;
  for (int i = 0; i < most; ++i) {
    const Edge edge = digit_to(at);
    const std::uint32_t digit = builder.bytes({&edge, 1});
    at = i + 1 == most ? digit : builder.split({next, digit});
  }
  return at;
}

/// A number whose value is always finite, so that every parser takes it: up to 20 digits before the
/// point and 24 behind it; an exponent, at most 307, where one digit is before the point.
std::uint32_t number_make(ProgramBuilder& builder, std::uint32_t ret) {
  const std::uint32_t one = builder.bytes(std::array{digit_to(ret)});
  const std::uint32_t any_two = builder.bytes(std::array{digit_to(one)});
  const std::uint32_t to_seven = builder.bytes(std::array{digit_to(ret, '0', '7')});
  const std::uint32_t large = builder.bytes(
      std::array{digit_to(any_two, '0', '2'), digit_to(builder.byte('0', to_seven), '3', '3')});
  const std::uint32_t up = builder.split({digits_up_to(builder, 2, ret), large});
  const std::uint32_t down = digits_up_to(builder, 3, ret);
  const std::uint32_t sign = builder.split({up, builder.byte('+', up), builder.byte('-', down)});
  const std::uint32_t exponent =
      builder.bytes(std::array{Edge{'e', 'e', sign}, Edge{'E', 'E', sign}});
  const std::uint32_t fraction = builder.byte('.', digits_up_to(builder, 24, ret));
  const std::uint32_t end = builder.split({ret, exponent});
  const std::uint32_t short_fraction = builder.byte('.', digits_up_to(builder, 24, end));
  const std::uint32_t after_one = builder.split({end, short_fraction});
  const std::uint32_t after_many = builder.split({ret, fraction});
  const std::uint32_t many = digits_up_to(builder, 19, after_many);
  const std::uint32_t after_first = builder.split({after_one, many});
  const std::uint32_t unsigned_number =
      builder.bytes(std::array{digit_to(after_one, '0', '0'), digit_to(after_first, '1', '9')});
  return builder.split({unsigned_number, builder.byte('-', unsigned_number)});
}

struct BuiltinPart {
  Builtins nodes;
  Program program;
};

BuiltinPart builtin_part_make() {
  ProgramBuilder builder{ProgramBuilder::Empty{}};
  Builtins& base = builder.base;
  base.ret = builder.node(Op::ret, 0, 0, 0);
  for (std::uint32_t table = 0; table < kCharTables; ++table) {
    base.chars[table] = builder.size();
    for (std::uint32_t state = 0; state < kCharStates; ++state) {
      builder.node(Op::chars, table, state, 0);
    }
  }
  constexpr int blanks = 40;
  std::uint32_t blank = base.ret;
  for (int i = 0; i < blanks; ++i) {
    const std::uint32_t one =
        builder.bytes(std::array{Edge{' ', ' ', blank}, Edge{'\t', '\t', blank}});
    blank = builder.split({base.ret, one});
  }
  base.space = builder.bytes(std::array{Edge{' ', ' ', base.ret}, Edge{'\n', '\n', blank}});
  base.digits[0] = base.ret;
  for (std::size_t i = 1; i < std::size(base.digits); ++i) {
    base.digits[i] = builder.bytes(std::array{digit_to(base.digits[i - 1])});
  }
  base.number = number_make(builder, base.ret);
  base.boolean = builder.split({builder.text("true", base.ret), builder.text("false", base.ret)});
  base.null = builder.text("null", base.ret);
  base.integer = builder.integer(kIntegerMin, kIntegerUsualMax);
  base.any = builder.reserve();
  base.object = builder.object_of(base.any);
  builder.define_split(
      base.any, std::array{base.object, builder.array(base.any, 0, kUnlimited),
                           builder.string(kUnlimited), base.number, base.boolean, base.null});
  const Builtins nodes = base;
  return {nodes, builder.finish(nodes.any)};
}

const BuiltinPart& builtin_part() {
  static const BuiltinPart made = builtin_part_make();
  return made;
}

// Digits of a range of numbers that all have the same length. `low` and `high` are the bounds where
// all digits so far were those of the bound, else empty.
struct DigitRange {
  std::string_view low;
  std::string_view high;
};

std::uint32_t digits_between(ProgramBuilder& builder, DigitRange range, std::size_t length) {
  if (length == 0) return builder.base.ret;
  if (range.low.empty() && range.high.empty()) return builder.base.digits[length];
  const auto first = static_cast<std::uint8_t>(range.low.empty() ? '0' : range.low.front());
  const auto last = static_cast<std::uint8_t>(range.high.empty() ? '9' : range.high.front());
  const auto rest = [](std::string_view bound) { return bound.empty() ? bound : bound.substr(1); };
  const auto next = [&](bool at_low, bool at_high) {
    return digits_between(builder,
                          {at_low ? rest(range.low) : std::string_view{},
                           at_high ? rest(range.high) : std::string_view{}},
                          length - 1);
  };
  std::vector<Edge> edges;
  const bool low = !range.low.empty();
  const bool high = !range.high.empty();
  if (low && high && first == last) {
    edges.push_back({first, last, next(true, true)});
    return builder.bytes(edges);
  }
  if (low) edges.push_back({first, first, next(true, false)});
  const int from = first + (low ? 1 : 0);
  const int to = last - (high ? 1 : 0);
  if (from <= to) {
    edges.push_back(
        {static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to), next(false, false)});
  }
  if (high) edges.push_back({last, last, next(false, true)});
  return builder.bytes(edges);
}

std::string digits_of(Integer value) {
  std::string made;
  do {
    made.insert(made.begin(), static_cast<char>('0' + static_cast<int>(value % 10)));
    value /= 10;
  } while (value > 0);
  return made;
}

/// Numbers from `low` to `high`, both at least 0, without a sign.
void magnitudes_add(ProgramBuilder& builder, Integer low, Integer high,
                    std::vector<std::uint32_t>& targets) {
  Integer smallest = 0;  // with so many digits
  Integer largest = 9;
  for (std::size_t length = 1; length <= 20; ++length) {
    const Integer from = std::max(low, smallest);
    const Integer to = std::min(high, largest);
    if (from <= to) {
      const std::string first = digits_of(from);
      const std::string last = digits_of(to);
      targets.push_back(digits_between(builder, {first, last}, length));
    }
    smallest = largest + 1;
    largest = largest * 10 + 9;
  }
}

}  // namespace

std::uint32_t ProgramBuilder::integer(Integer low, Integer high) {
  std::vector<std::uint32_t> targets;
  low = std::max(low, kIntegerMin);
  high = std::min(high, kIntegerMax);
  if (high >= 0) magnitudes_add(*this, std::max<Integer>(low, 0), high, targets);
  if (low < 0) {
    std::vector<std::uint32_t> negative;
    magnitudes_add(*this, std::max<Integer>(-high, 1), -low, negative);
    targets.push_back(byte('-', split(negative)));
  }
  return split(targets);
}

const Builtins& builtins() { return builtin_part().nodes; }
const Program& builtin_program() { return builtin_part().program; }

const CharTables& char_tables() {
  static const CharTables made = char_tables_make();
  return made;
}

}  // namespace lca::server
