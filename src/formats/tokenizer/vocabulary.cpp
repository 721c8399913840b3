#include "formats/tokenizer/vocabulary.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>

namespace lca {

void Vocabulary::add(std::string_view token, std::int64_t id) {
  entries_.push_back({id, {text_.size(), static_cast<std::uint32_t>(token.size())}});
  text_ += token;
  longest_ = std::max(longest_, token.size());
}

void Vocabulary::index(std::string_view where, bool first_stays) {
  const std::int64_t limit = largest_token_id(static_cast<std::int64_t>(entries_.size()));
  std::int64_t largest = -1;
  for (const Entry& entry : entries_) {
    if (entry.id < 0 || entry.id > limit) {
      fail_input(
          "{}: token \"{}\" has the id {}, in a vocabulary of {} tokens", where,
          text_printable(std::string_view(text_).substr(entry.place.begin, entry.place.size)),
          entry.id, entries_.size());
    }
    largest = std::max(largest, entry.id);
  }
  places_.resize(static_cast<std::size_t>(largest + 1));
  ids_.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    const auto token = std::string_view(text_).substr(entry.place.begin, entry.place.size);
    const auto id = static_cast<std::int32_t>(entry.id);
    places_[static_cast<std::size_t>(id)] = entry.place;
    if (!ids_.emplace(token, id).second && !first_stays) ids_[token] = id;
  }
  entries_.clear();
  entries_.shrink_to_fit();
}

}  // namespace lca
