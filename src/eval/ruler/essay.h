#pragma once
/// Text that needles are hidden in: words, and where its sentences end.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::eval {

/// A text of any length: its words, again from the first where more are asked for than it has.
class Essay {
 public:
  /// White space of any kind separates words.
  explicit Essay(std::string_view text);
  /// Text files one after the other; a .json file holds {"text": …} (RULER's
  /// PaulGrahamEssays.json). Throws Error naming the file that is missing, wrong or empty.
  static Essay load(std::span<const std::filesystem::path> files);

  std::size_t words() const { return words_.size(); }
  /// Sentences of the first `count` words, at least one word; the last may be cut.
  std::vector<std::string> sentences(std::size_t count) const;

 private:
  std::vector<std::string> words_;
  std::vector<bool> ends_;  // whether a sentence ends with the word, as the next one follows
};

}  // namespace lca::eval
