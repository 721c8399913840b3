#pragma once
/// What a reply may be: JSON, JSON of a schema, or fixed text around them; byte by byte.

#include "server/grammar/program.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace lca::server {

class GrammarState;

/// An immutable grammar. Copies are cheap and share their tables; any number of threads may use
/// one.
class Grammar {
 public:
  /// Any JSON object.
  static Grammar json_object();
  /// Any JSON value.
  static Grammar json_value();
  /// JSON that satisfies a schema (docs/schemas.md). Throws Error naming a keyword that is not
  /// implemented and where it is, and for schemas that nothing satisfies or that are too large.
  static Grammar from_schema(const Json& schema);

  /// This text and no other; must not be empty.
  static Grammar literal(std::string_view text);
  /// One after the other, or one of them.
  static Grammar sequence(std::span<const Grammar> parts);
  static Grammar choice(std::span<const Grammar> parts);
  /// `item` at least once and at most `most` times, with `separator` between two.
  static Grammar repeat(const Grammar& item, const Grammar& separator,
                        std::uint32_t most = kUnlimited);

  /// Before the first byte.
  GrammarState start() const;
  const Program& program() const { return *program_; }
  std::size_t states() const { return program_->nodes.size(); }

 private:
  friend class GrammarState;
  explicit Grammar(Program program);
  std::shared_ptr<const Program> program_;
};

/// A call that has not returned, and where its callers go on.
struct Activation;
using ActivationPtr = std::shared_ptr<const Activation>;

/// One place the recogniser can be in.
struct Place {
  std::uint32_t node = 0;
  std::uint32_t value = 0;  ///< the register
  ActivationPtr activation;

  bool operator==(const Place&) const = default;
};

struct Activation {
  std::vector<Place> callers;
  std::uint32_t depth = 0;
};

/// How far a text has come. Copies are cheap: they share all that is nested.
class GrammarState {
 public:
  explicit GrammarState(const Grammar& grammar);

  /// Takes more bytes. False, and the state unchanged, where no text of the grammar goes on so.
  bool advance(std::string_view bytes);
  /// Whether the text is whole.
  bool may_end() const { return ends_; }
  /// Whether the text is whole and nothing can follow.
  bool must_end() const { return ends_ && places_.empty(); }

  const Program& program() const { return *program_; }
  /// Where it is, all at nodes that match a byte.
  const std::vector<Place>& places() const { return places_; }

  /// The state that is nowhere, for `step`.
  static GrammarState nowhere(const GrammarState& like);
  /// Makes this what follows `from` after one more byte; false if nothing does.
  bool step(const GrammarState& from, std::uint8_t byte);
  bool step(std::span<const Place> from, std::uint8_t byte);
  /// Makes this what follows where all of `from`, inside strings, have just read the closing quote.
  bool step_return(std::span<const Place> from);

 private:
  class Walk;
  explicit GrammarState(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
  std::vector<Place> places_;
  bool ends_ = false;
};

}  // namespace lca::server
