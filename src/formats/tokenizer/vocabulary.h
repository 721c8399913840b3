#pragma once
/// Token spellings by id and ids by spelling.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lca {

/// Filled with `add`, then fixed with `index`. Ids may have holes.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;  // the lookups point into it
  Vocabulary& operator=(const Vocabulary&) = delete;

  void add(std::string_view token, std::int64_t id);
  /// Makes the lookups work; throws Error beginning with `where` for ids that are negative or far
  /// beyond the number of tokens. Of two tokens with one spelling the last stays (`first_stays`:
  /// the first).
  void index(std::string_view where, bool first_stays = false);

  /// The id of a spelling, or -1.
  std::int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  /// The spelling of an id; empty where it has none.
  std::string_view token(std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= places_.size()) return {};
    const Place& place = places_[static_cast<std::size_t>(id)];
    return std::string_view(text_).substr(place.begin, place.size);
  }
  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  /// Bytes of all tokens together.
  std::size_t bytes() const { return text_.size(); }
  /// Bytes of the longest token.
  std::size_t longest() const { return longest_; }

 private:
  struct Place {
    std::uint64_t begin = 0;
    std::uint32_t size = 0;
  };
  struct Entry {
    std::int64_t id = 0;
    Place place;
  };

  std::string text_;  // all tokens one after the other
  std::vector<Entry> entries_;
  std::vector<Place> places_;  // by id
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::size_t longest_ = 0;
};

/// The largest id a file with `tokens` tokens may use: gaps are allowed, numbers that would only
/// cost memory are not.
constexpr std::int64_t largest_token_id(std::int64_t tokens) { return 2 * tokens + 65536; }

}  // namespace lca
