#include "server/grammar/vocabulary.h"

#include <algorithm>

namespace lca::server {

Vocabulary::Vocabulary(std::span<const std::string_view> tokens) : size_(tokens.size()) {
  constexpr std::size_t most = 0xffff;  // what `depth` can hold; no reply needs a longer token
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty() && tokens[id].size() <= most) {
      order_.push_back(static_cast<std::int32_t>(id));
    }
  }
  const auto bytes_of = [&](std::int32_t id) { return tokens[static_cast<std::size_t>(id)]; };
  // char_traits<char> compares as unsigned bytes.
  std::stable_sort(order_.begin(), order_.end(), [&](std::int32_t one, std::int32_t other) {
    return bytes_of(one) < bytes_of(other);
  });
  std::vector<std::uint32_t> open;  // nodes from the root to the last token
  std::string_view last;
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const std::string_view token = bytes_of(order_[i]);
    const auto differs = std::mismatch(last.begin(), last.end(), token.begin(), token.end());
    const auto shared = static_cast<std::size_t>(differs.second - token.begin());
    while (open.size() > shared) {
      nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
      open.pop_back();
    }
    for (std::size_t k = shared; k < token.size(); ++k) {
      TreeNode made;
      made.tokens = i;
      made.parent = open.empty() ? kNone : open.back();
      made.depth = static_cast<std::uint16_t>(k + 1);
      made.byte = static_cast<std::uint8_t>(token[k]);
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back(made);
    }
    longest_ = std::max(longest_, static_cast<std::uint32_t>(token.size()));
    last = token;
  }
  for (const std::uint32_t node : open)
    nodes_[node].end = static_cast<std::uint32_t>(nodes_.size());
  TreeNode sentinel;
  sentinel.tokens = static_cast<std::uint32_t>(order_.size());
  nodes_.push_back(sentinel);
}

void Vocabulary::path(std::uint32_t node, std::string& bytes) const {
  bytes.clear();
  for (; node != kNone; node = nodes_[node].parent) {
    bytes.push_back(static_cast<char>(nodes_[node].byte));
  }
  std::reverse(bytes.begin(), bytes.end());
}

}  // namespace lca::server
