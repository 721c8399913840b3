#pragma once
/// Word lists of RULER's tasks: keys of needles, and the words of cwe.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lca::eval {

/// Words by kind, in the order of their files.
struct WordLists {
  std::vector<std::string> nouns, adjectives, verbs;
  /// Many words, for lists that need more than the three have together; may be empty.
  std::vector<std::string> many;
  bool built_in = false;
};

/// The words that come with the program: enough for cwe up to some 16K tokens.
WordLists words_built_in();

/// nounlist.txt, adjectivelist.txt and verblist.txt of a folder, one word a line (the package
/// wonderwords has them in its folder assets), and RULER's english_words.json where it is there.
/// Throws Error naming the file that is missing, empty or wrong.
WordLists words_load(const std::filesystem::path& folder);

/// Every adjective-noun in the order in which Python sorts the set of them, without a list of them
/// all.
class KeyWords {
 public:
  explicit KeyWords(const WordLists& lists);
  std::size_t size() const { return size_; }
  std::string at(std::size_t index) const;

 private:
  // Adjectives whose keys stand together. Where one of them with its hyphen begins another ("well",
  // "well-known"), their keys mix, and all are listed.
  struct Block {
    std::size_t first = 0;  // key of the block
    std::string adjective;  // with its hyphen
    std::vector<std::string> keys;
  };
  std::vector<std::string> nouns_;
  std::vector<Block> blocks_;
  std::size_t size_ = 0;
};

}  // namespace lca::eval
