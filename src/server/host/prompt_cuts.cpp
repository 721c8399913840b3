#include "server/host/prompt_cuts.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lca::server {
namespace {

bool holds_token(const std::vector<std::int32_t>& list, std::int32_t token) {
  return std::ranges::find(list, token) != list.end();
}

/// The first special token from `at` on, or the end.
std::size_t special_next(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens,
                         std::size_t at) {
  while (at < tokens.size() && !tokenizer.is_special(tokens[at])) ++at;
  return at;
}

/// The text of tokens; those beyond the tokenizer's have none.
std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> known;
  for (const std::int32_t token : tokens) {
    if (token < tokenizer.size()) known.push_back(token);
  }
  return tokenizer.decode(known);
}

}  // namespace

TurnTokens turn_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  constexpr std::array<std::string_view, 4> kBegins = {"<|im_start|>", "<|start_header_id|>",
                                                       "<｜User｜>", "<｜Assistant｜>"};
  TurnTokens turns;
  for (const std::string_view text : kBegins) {
    if (const auto id = tokenizer.find(text)) turns.begins.push_back(*id);
  }
  if (turns.begins.empty()) turns.ends = chat.end_tokens();
  const std::vector<ChatMessage> one = {{ChatMessage::Role::user, "a"}};
  const std::vector<std::int32_t> ids = chat.prompt(one);
  if (!turns.begins.empty()) {
    const auto written =
        std::ranges::count_if(ids, [&](std::int32_t id) { return holds_token(turns.begins, id); });
    turns.added =
        std::max<std::int64_t>(0, written - 2);  // the message, and where the reply begins
  }
  return turns;
}

std::vector<std::int64_t> turn_starts(std::span<const std::int32_t> tokens,
                                      const TurnTokens& turns) {
  std::vector<std::int64_t> starts;
  // A token that begins every text is no turn of its own.
  const bool led = tokens.size() > 1 && holds_token(turns.begins, tokens[1]) &&
                   !holds_token(turns.begins, tokens[0]);
  for (std::size_t at = led ? 2 : 1; at < tokens.size(); ++at) {
    if (holds_token(turns.begins, tokens[at]) || holds_token(turns.ends, tokens[at - 1])) {
      starts.push_back(static_cast<std::int64_t>(at));
    }
  }
  return starts;
}

std::vector<std::int64_t> prompt_cuts(std::span<const std::int32_t> tokens, const TurnTokens& turns,
                                      std::int64_t distance) {
  std::vector<std::int64_t> cuts = turn_starts(tokens, turns);
  for (std::int64_t at = distance; at < std::ssize(tokens); at += distance) cuts.push_back(at);
  std::ranges::sort(cuts);
  const auto same = std::ranges::unique(cuts);
  cuts.erase(same.begin(), same.end());
  return cuts;
}

std::vector<std::int64_t> marks_wanted(std::span<const std::int32_t> tokens,
                                       std::span<const std::int64_t> cuts, const TurnTokens& turns,
                                       std::int64_t distance, std::int64_t branch) {
  const std::vector<std::int64_t> starts = turn_starts(tokens, turns);
  // After the last message the reply begins, a turn of its own.
  const std::int64_t message = starts.size() < 2 ? 0 : starts[starts.size() - 2];
  std::vector<std::int64_t> steady;
  for (const std::int64_t cut : cuts) {
    if (cut % distance == 0 && cut > message) steady.push_back(cut);
  }
  std::vector<std::int64_t> wanted;
  if (!starts.empty()) wanted.push_back(starts.front());
  const auto last = [&wanted](const std::vector<std::int64_t>& list, std::size_t count) {
    const std::size_t from = list.size() - std::min(count, list.size());
    wanted.insert(wanted.end(), list.begin() + static_cast<std::ptrdiff_t>(from), list.end());
  };
  last(starts, 3);
  last(steady, 2);
  if (branch > 0) wanted.push_back(branch);
  std::ranges::sort(wanted);
  const auto same = std::ranges::unique(wanted);
  wanted.erase(same.begin(), same.end());
  return wanted;
}

std::vector<std::int32_t> tokens_align(const Tokenizer& tokenizer, std::vector<std::int32_t> tokens,
                                       std::span<const std::int32_t> known) {
  std::vector<std::int32_t> made;
  const std::span<const std::int32_t> all(tokens);
  std::size_t at = 0;
  std::size_t from = 0;
  while (at < all.size() && from < known.size()) {
    const std::size_t end = special_next(tokenizer, all, at);
    const std::size_t until = special_next(tokenizer, known, from);
    const auto run = all.subspan(at, end - at);
    const auto other = known.subspan(from, until - from);
    if (!std::ranges::equal(run, other)) {
      // The session may end inside a text that goes on: then there is nothing to compare.
      if (text_of(tokenizer, run) != text_of(tokenizer, other)) break;
    }
    made.insert(made.end(), other.begin(), other.end());
    at = end;
    from = until;
    if (at == all.size() || from == known.size() || all[at] != known[from]) break;
    made.push_back(all[at]);
    ++at;
    ++from;
  }
  made.insert(made.end(), all.begin() + static_cast<std::ptrdiff_t>(at), all.end());
  return made;
}

}  // namespace lca::server
