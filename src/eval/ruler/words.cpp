#include "eval/ruler/words.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/ruler/source_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace lca::eval {
namespace {

std::vector<std::string> words_of_lines(const std::filesystem::path& path) {
  const std::string text = source_read(path);
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t next = end + 1;
    while (end > at && std::string_view(" \t\r\v\f").find(text[end - 1]) != std::string_view::npos)
      --end;
    if (end > at) words.push_back(text.substr(at, end - at));
    at = next;
  }
  if (words.empty()) fail_input("{}: holds no words", path_printable(path.string()));
  return words;
}

std::vector<std::string> words_of_json(const std::filesystem::path& path) {
  const nlohmann::ordered_json file = source_json(path, source_read(path));
  std::vector<std::string> words;
  if (!file.is_object()) fail_input("{}: is no object of words", path_printable(path.string()));
  for (const auto& value : file) {
    if (!value.is_string()) fail_input("{}: is no object of words", path_printable(path.string()));
    words.push_back(value.get<std::string>());
  }
  return words;
}

void sort_unique(std::vector<std::string>& list) {
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

WordLists words_load(const std::filesystem::path& folder) {
  WordLists lists;
  lists.nouns = words_of_lines(folder / "nounlist.txt");
  lists.adjectives = words_of_lines(folder / "adjectivelist.txt");
  lists.verbs = words_of_lines(folder / "verblist.txt");
  const std::filesystem::path many = folder / "english_words.json";
  if (std::filesystem::exists(many)) lists.many = words_of_json(many);
  return lists;
}

KeyWords::KeyWords(const WordLists& lists) : nouns_(lists.nouns) {
  sort_unique(nouns_);
  std::vector<std::string> adjectives = lists.adjectives;
  for (std::string& each : adjectives) each += '-';
  sort_unique(adjectives);
  for (std::size_t at = 0; at < adjectives.size();) {
    std::size_t end = at + 1;
    while (end < adjectives.size() && adjectives[end].starts_with(adjectives[at])) ++end;
    Block block{size_, adjectives[at], {}};
    if (end > at + 1) {
      for (std::size_t i = at; i < end; ++i) {
        for (const std::string& noun : nouns_) block.keys.push_back(adjectives[i] + noun);
      }
      sort_unique(block.keys);
    }
    size_ += block.keys.empty() ? nouns_.size() : block.keys.size();
    blocks_.push_back(std::move(block));
    at = end;
  }
}

std::string KeyWords::at(std::size_t index) const {
  const auto after = std::ranges::upper_bound(blocks_, index, {}, &Block::first);
  const Block& block = *std::prev(after);
  const std::size_t place = index - block.first;
  return block.keys.empty() ? block.adjective + nouns_[place] : block.keys[place];
}

}  // namespace lca::eval
