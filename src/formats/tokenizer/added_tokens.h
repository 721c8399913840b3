#pragma once
/// Tokens that are found in the text before anything else happens to it.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lca {

struct AddedToken {
  std::int32_t id = 0;
  std::string text;
  bool is_special = false;      ///< left out of decoded text; found only where asked for
  bool is_single_word = false;  ///< not inside a word
  bool strips_left = false;     ///< takes white space before it along
  bool strips_right = false;    ///< the same after it
  bool is_normalised = false;   ///< looked for in the normalised text
};

/// A stretch of text: one of the tokens, or text between them.
struct Fragment {
  std::string_view text;
  std::int32_t id = -1;  ///< -1: just text
  bool is_first = false;
};

/// Finds a set of tokens in texts: the leftmost first, of those the longest.
class AddedTokenFinder {
 public:
  /// Tokens are looked for by `spelling`, which is their text or its normal form.
  void add(const AddedToken& token, std::string_view spelling);
  bool empty() const { return tokens_.empty(); }
  /// Cuts `text` (not empty) and appends the fragments; special tokens only with `parse_special`.
  void cut(std::string_view text, bool is_first, bool parse_special,
           std::vector<Fragment>& fragments) const;

 private:
  /// Index of the longest token at the front of `text`, or -1; sets `size`.
  std::int32_t longest_at(std::string_view text, std::size_t& size) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) to node, and the token that ends at a node.
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> ends_{-1};
};

}  // namespace lca
