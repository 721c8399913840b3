#include "server/host/reply_book.h"

#include <algorithm>

namespace lca::server {

std::size_t ReplyBook::Reply::bytes() const {
  constexpr std::size_t kNodes = 128;  // of the two maps, about
  return sizeof(Reply) + kNodes + ids.capacity() * sizeof(std::int32_t) + text.capacity();
}

void ReplyBook::drop(Replies::iterator at) {
  bytes_ -= at->second.bytes();
  ages_.erase(at->second.age);
  replies_.erase(at);
}

void ReplyBook::add(std::span<const std::int32_t> prompt, std::span<const std::int32_t> reply,
                    const Tokenizer& tokenizer) {
  const auto is_odd = [&](std::int32_t id) {
    return id >= tokenizer.size() || tokenizer.is_special(id);
  };
  if (reply.empty() || std::ranges::any_of(reply, is_odd)) return;
  const std::string text = tokenizer.decode(reply);
  PrefixHash hash;
  for (const std::int32_t token : prompt) hash.push(token);
  Reply made{std::pmr::vector<std::int32_t>(reply.begin(), reply.end(), &pool_),
             std::pmr::string(std::string_view(text), &pool_), hash.value(), next_++};
  const auto [first, last] = replies_.equal_range(prompt.size());
  for (auto at = first; at != last; ++at) {
    if (at->second.hash != made.hash || at->second.text != made.text) continue;
    drop(at);
    break;
  }
  const auto self = replies_.emplace(prompt.size(), std::move(made));
  ages_.emplace(self->second.age, self);
  bytes_ += self->second.bytes();
  while (bytes_ > most_) drop(ages_.begin()->second);
}

std::vector<std::int32_t> ReplyBook::restore(std::vector<std::int32_t> tokens,
                                             const Tokenizer& tokenizer) const {
  PrefixHash hash;
  std::size_t read = 0;
  // Lengths ascend, and a reply that is put in place only changes what follows its prompt.
  for (auto at = replies_.begin(); at != replies_.end() && at->first < tokens.size(); ++at) {
    const Reply& reply = at->second;
    while (read < at->first) hash.push(tokens[read++]);
    if (reply.hash != hash.value()) continue;
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(read);
    const auto end = std::find_if(begin, tokens.end(),
                                  [&](std::int32_t id) { return tokenizer.is_special(id); });
    if (end == tokens.end() ||
        std::ranges::any_of(begin, end, [&](std::int32_t id) { return id >= tokenizer.size(); })) {
      continue;
    }
    const std::vector<std::int32_t> sent(begin, end);
    if (std::ranges::equal(sent, reply.ids) ||
        tokenizer.decode(sent) != std::string_view(reply.text))
      continue;
    std::vector<std::int32_t> made(tokens.begin(), begin);
    made.insert(made.end(), reply.ids.begin(), reply.ids.end());
    made.insert(made.end(), end, tokens.end());
    tokens = std::move(made);
  }
  return tokens;
}

}  // namespace lca::server
