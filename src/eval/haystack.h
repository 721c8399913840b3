#pragma once
/// Long text as token ids, into which facts are put between sentences. Texts are encoded once; a
/// sample copies ids.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/threads.h"
#include "eval/chat_prompt.h"
#include "eval/draw.h"

namespace lca::eval {

/// A sentence to be put at a share of the haystack.
struct HaystackFact {
  double depth = 0;  ///< share of haystack tokens before it, 0 … 1
  std::string sentence;
};

/// Tokens of a haystack with its facts, and where they are.
struct HaystackPiece {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> begins, ends;  ///< of each fact, in the order they were given
  std::int64_t own = 0;                    ///< tokens that are not of facts
};

class Haystack {
 public:
  /// White space of every text becomes single spaces. No text: short sentences that repeat. Throws
  /// Error (bad input) where the texts hold almost nothing. `pool`: threads that encode them.
  Haystack(const ChatPrompt& prompt, std::span<const std::string> texts,
           ThreadPool* pool = nullptr);

  /// At most `tokens` tokens that begin and, where one is near, end with a sentence, the facts
  /// among them. They come from text number `text` (modulo their number), at a place that `draw`
  /// decides, and go on with the next text where that one ends. Each fact is between the two
  /// sentences that are nearest to its depth. Throws Error (bad input) where the facts leave no
  /// place for text.
  HaystackPiece piece(std::int64_t tokens, std::span<const HaystackFact> facts, std::uint64_t text,
                      Draw& draw) const;

  std::size_t texts() const { return begins_.size(); }
  /// Of all texts.
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  bool is_built_in() const { return built_in_; }

 private:
  /// The word that begins a piece, without the space before it.
  struct FirstWord {
    std::int64_t count = 0;  ///< tokens of the text that it stands for
    std::vector<std::int32_t> ids;
    std::int64_t longer() const { return static_cast<std::int64_t>(ids.size()) - count; }
  };
  FirstWord first_word(std::int64_t first) const;
  std::int64_t start(std::int64_t tokens, std::uint64_t text, Draw& draw) const;
  std::size_t at(std::int64_t place) const;
  std::int64_t cut_near(std::int64_t first, std::int64_t count, std::int64_t wanted) const;
  void text_add(const std::vector<std::int32_t>& ids);

  ChatPrompt prompt_;
  std::vector<std::int32_t> ids_;     // of all texts, one after another
  std::vector<std::uint8_t> cuts_;    // of each id: what begins with it
  std::vector<std::int64_t> begins_;  // of the texts
  std::vector<std::int64_t> starts_;  // ids that begin a sentence
  bool built_in_ = false;
};

/// The built-in text.
std::string_view haystack_noise();

/// `text` with each run of white space as one space, none at the ends.
std::string text_squeezed(std::string_view text);

}  // namespace lca::eval
