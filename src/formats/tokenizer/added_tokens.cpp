#include "formats/tokenizer/added_tokens.h"

#include "formats/tokenizer/utf8.h"

#include <algorithm>

namespace lca {
namespace {

std::uint64_t edge_of(std::uint32_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

/// Where the last character of a text that is not empty begins.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u) --at;
  return at;
}

bool ends_in_word(std::string_view text) {
  return !text.empty() && is_word(utf8_step(text.substr(last_character(text))).code);
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word(utf8_step(text).code);
}

/// Length of the white space at the end, and at the beginning.
std::size_t space_behind(std::string_view text) {
  const std::size_t whole = text.size();
  while (!text.empty()) {
    const std::size_t at = last_character(text);
    if (!is_white_space(utf8_step(text.substr(at)).code)) break;
    text = text.substr(0, at);
  }
  return whole - text.size();
}

std::size_t space_before(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!is_white_space(step.code)) break;
    at += step.bytes;
  }
  return at;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view spelling) {
  if (spelling.empty()) return;
  std::uint32_t node = 0;
  for (const char byte : spelling) {
    const auto next = static_cast<std::uint32_t>(ends_.size());
    const auto [edge, is_new] = edges_.emplace(edge_of(node, byte), next);
    if (is_new) ends_.push_back(-1);
    node = edge->second;
  }
  if (ends_[node] >= 0) return;
  ends_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::int32_t AddedTokenFinder::longest_at(std::string_view text, std::size_t& size) const {
  std::int32_t found = -1;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(edge_of(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] < 0) continue;
    found = ends_[node];
    size = i + 1;
  }
  return found;
}

void AddedTokenFinder::cut(std::string_view text, bool is_first, bool parse_special,
                           std::vector<Fragment>& fragments) const {
  std::size_t done = 0;
  const auto push = [&](std::size_t begin, std::size_t end, std::int32_t id) {
    fragments.push_back({text.substr(begin, end - begin), id, is_first && begin == 0});
  };
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    std::size_t size = 0;
    const std::int32_t index = longest_at(text.substr(at), size);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    std::size_t begin = at;
    std::size_t end = at + size;
    at = end;
    if (token.is_special && !parse_special) continue;
    if (token.is_single_word &&
        (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
      continue;
    }
    if (token.strips_left) begin -= space_behind(text.substr(done, begin - done));
    if (token.strips_right) end += space_before(text.substr(end));
    if (done < begin) push(done, begin, -1);
    push(begin, end, token.id);
    at = end;
    done = end;
  }
  if (done < text.size()) push(done, text.size(), -1);
}

}  // namespace lca
