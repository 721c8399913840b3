#pragma once
/// A grammar compiled to a graph: nodes that match bytes, and nodes that decide without reading.
///
/// A recogniser is in a set of places, each a node, a register and an activation. A call makes an
/// activation, a return goes on at every caller of it. No callee matches the empty text, and
/// nothing calls before it has read a byte, so that an activation has all its callers once the byte
/// that led to it has been read: the stacks form a shared graph whose size does not explode with
/// nesting.

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::server {

using Json = nlohmann::ordered_json;

inline constexpr std::uint32_t kUnlimited = 0xffffffff;
/// Calls that may be open at once. Where it would be exceeded only what fits can follow.
inline constexpr std::uint32_t kMaxCalls = 256;
/// The height of a node from which no return can be reached.
inline constexpr std::uint32_t kNever = 0xffffffff;

enum class Op : std::uint8_t {
  bytes,   ///< one byte: edges [a, a + b)
  chars,   ///< inside a string: table a, state b; returns at its closing quote
  split,   ///< goes on at each of targets [a, a + b)
  call,    ///< calls node a with register b, then goes on at c
  set,     ///< register = a, goes on at c
  item,    ///< if the register is below a, adds 1 (at most to b) and goes on at c
  enough,  ///< if the register is at least a, goes on at c
  ret,     ///< returns to the callers, or ends the text
};

struct Node {
  Op op = Op::split;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  std::uint32_t height = kNever;  ///< calls that a shortest way to the return has open at once
};

struct Edge {
  std::uint8_t first = 0;
  std::uint8_t last = 0;
  std::uint32_t next = 0;
};

/// A prefix of the names an additional property must not have, in canonical form. Prefix 0 is none.
struct NamePrefix {
  std::vector<std::pair<std::uint8_t, std::uint32_t>> next;
  bool whole = false;
};

struct Program {
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<std::uint32_t> targets;
  std::vector<NamePrefix> names;
  std::uint32_t start = 0;

  /// The prefix after one more byte.
  std::uint32_t name_next(std::uint32_t prefix, std::uint8_t byte) const {
    for (const auto& [value, next] : names[prefix].next) {
      if (value == byte) return next;
    }
    return 0;
  }
};

// --- strings ------------------------------------------------------------------------------------

/// What a byte does in a state of a string.
struct CharStep {
  enum Kind : std::uint8_t { refuse, follow, begin, close };  ///< `begin`: of one more character
  Kind kind = refuse;
  std::uint8_t next = 0;
};

inline constexpr std::uint32_t kCharStates = 24;
/// Values: any JSON string, register = characters that may follow. Keys: canonical strings (what
/// needs no escape has none), register = a NamePrefix.
enum CharTable : std::uint8_t { kValueChars, kKeyChars, kCharTables };

struct CharTables {
  CharStep step[kCharTables][kCharStates][256];
};
const CharTables& char_tables();

// --- the part that all programs begin with
// --------------------------------------------------------

struct Builtins {
  std::uint32_t ret = 0;
  std::uint32_t chars[kCharTables] = {};  ///< node of state 0; the others follow
  std::uint32_t space = 0;  ///< one blank, or a line break and up to 40 blanks or tabs
  std::uint32_t number = 0;
  std::uint32_t integer = 0;  ///< of 64 bits, signed
  std::uint32_t boolean = 0;
  std::uint32_t null = 0;
  std::uint32_t any = 0;
  std::uint32_t object = 0;       ///< any object
  std::uint32_t digits[24] = {};  ///< so many digits, then the return
};

/// Wide enough for the bounds of signed and unsigned 64-bit integers.
__extension__ using Integer = __int128;
inline constexpr Integer kIntegerMin = -(Integer{1} << 63);
inline constexpr Integer kIntegerMax = (Integer{1} << 64) - 1;
/// Where the schema does not say more: what every reader's integers hold.
inline constexpr Integer kIntegerUsualMax = (Integer{1} << 63) - 1;

/// Makes programs. Nodes may be reserved and defined later.
class ProgramBuilder {
 public:
  static constexpr std::size_t kMaxNodes = 250'000;

  /// Begins with the builtins.
  ProgramBuilder();
  /// Begins with nothing; `base` is filled by what makes the builtins.
  struct Empty {};
  explicit ProgramBuilder(Empty) { program_.names.emplace_back(); }

  Builtins base;

  std::uint32_t reserve();
  std::uint32_t size() const { return static_cast<std::uint32_t>(program_.nodes.size()); }
  void define_split(std::uint32_t node, std::span<const std::uint32_t> targets);
  void define_bytes(std::uint32_t node, std::span<const Edge> edges);

  std::uint32_t bytes(std::span<const Edge> edges);
  std::uint32_t byte(char value, std::uint32_t next);
  std::uint32_t text(std::string_view text, std::uint32_t next);
  std::uint32_t split(std::span<const std::uint32_t> targets);
  std::uint32_t split(std::initializer_list<std::uint32_t> targets);
  std::uint32_t node(Op op, std::uint32_t a, std::uint32_t b, std::uint32_t c);
  /// Calls `callee`, then `next`.
  std::uint32_t call(std::uint32_t callee, std::uint32_t next, std::uint32_t value = 0) {
    return node(Op::call, callee, value, next);
  }
  /// One blank or none, then `next`: a value's beginning. No line break there, or a model that
  /// likes white space spends its first tokens on it.
  std::uint32_t begin(std::uint32_t next);
  /// White space or none, then `next`.
  std::uint32_t maybe_space(std::uint32_t next);
  /// A value string of at most so many characters, then the return.
  std::uint32_t string(std::uint32_t max_length);
  /// An integer from `low` to `high`, then the return.
  std::uint32_t integer(Integer low, Integer high);
  /// An object of properties whose values are all `value`, then the return.
  std::uint32_t object_of(std::uint32_t value);
  /// A list between brackets, then the return.
  std::uint32_t array(std::uint32_t item, std::uint32_t min, std::uint32_t max);
  /// A key, a colon, and a value; then `next`.
  std::uint32_t any_property(std::uint32_t value, std::uint32_t names, std::uint32_t next);
  /// A set of names; the result is the register of `any_property`.
  std::uint32_t names(std::span<const std::string_view> canonical);
  /// Copies another program's own nodes; the result is its start here.
  std::uint32_t append(const Program& other);

  /// Computes heights. The builder is empty then.
  Program finish(std::uint32_t start);

 private:
  Program program_;
};

const Builtins& builtins();
const Program& builtin_program();

}  // namespace lca::server
