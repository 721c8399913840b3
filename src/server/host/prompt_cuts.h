#pragma once
/// Where a prompt is cut into chunks when beginnings of prompts are kept.
///
/// A cut follows from the tokens alone: before a token that begins a turn, and at every multiple of
/// a distance. Two prompts that begin alike have the same cuts there, so that a prompt that is read
/// from a kept beginning passes the model in the chunks in which it would pass it from the start,
/// and gets the same logits to the bit.

#include <lca/chat.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lca::server {

/// Tokens that structure a conversation; text never encodes to them.
struct TurnTokens {
  std::vector<std::int32_t> begins;  ///< of a turn: the cut is before them
  std::vector<std::int32_t> ends;    ///< where no token begins a turn: the cut is after them
  /// Turns that the template writes by itself before the first message (a default system message).
  std::int64_t added = 0;
};

TurnTokens turn_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat);

/// Positions where turns begin, the first token not counted, ascending.
std::vector<std::int64_t> turn_starts(std::span<const std::int32_t> tokens,
                                      const TurnTokens& turns);

/// All cuts of a prompt, ascending, its end not among them.
std::vector<std::int64_t> prompt_cuts(std::span<const std::int32_t> tokens, const TurnTokens& turns,
                                      std::int64_t distance);

/// Of the cuts, those worth keeping: the end of the first turn, which other conversations share;
/// the last three turns; in the last message, or where there are no turns, the last two cuts of the
/// steady distance, one of which lies before the question about a document; and `branch`, where an
/// earlier prompt parted.
std::vector<std::int64_t> marks_wanted(std::span<const std::int32_t> tokens,
                                       std::span<const std::int64_t> cuts, const TurnTokens& turns,
                                       std::int64_t distance, std::int64_t branch);

/// `tokens` with the ids of `known` wherever the text between two special tokens is the same: a
/// reply that comes back as text gets the ids it was generated with. Stops at the first difference.
std::vector<std::int32_t> tokens_align(const Tokenizer& tokenizer, std::vector<std::int32_t> tokens,
                                       std::span<const std::int32_t> known);

}  // namespace lca::server
