#pragma once
/// Byte pair encoding of one word: by a list of merges, or by the scores of the merged tokens.

#include "formats/tokenizer/vocabulary.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Pairs of tokens, the token they become, and the order in which they do.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t id = -1;  ///< -1: the pair does not merge
  };

  /// Room for `count` merges.
  void reserve(std::size_t count);
  /// Adds the next merge, or replaces an earlier one of the same pair.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  std::size_t slot_of(std::uint64_t key) const;

  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  std::size_t size_ = 0;
};

/// What `tokenizer.json` calls the model "BPE", and the merging of GGUF's "llama" by scores.
class BpeModel {
 public:
  explicit BpeModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  /// Adds a merge of two tokens by their spelling; throws Error beginning with `where` for what is
  /// not in the vocabulary.
  void merge_add(std::string_view left, std::string_view right, std::string_view where);
  void merges_reserve(std::size_t count) { merges_.reserve(count); }
  /// Merges by the best score of the merged token instead; one score an id, tokens that must not
  /// come out of merging have none.
  void scores_set(std::vector<std::optional<float>> scores) { scores_ = std::move(scores); }
  /// Looks up the tokens <0x00> to <0xFF>; characters that are not in the vocabulary become those.
  void byte_fallback_set();
  /// Whether every byte has such a token.
  bool byte_fallback_whole() const;

  bool ignore_merges = false;  ///< a word that is a token becomes that token at once
  bool fuse_unknown = false;
  bool has_unknown = false;   ///< characters without a token become `unknown`
  std::int32_t unknown = -1;  ///< -1: encoding such a character throws Error
  std::string where;          ///< begins that error

  /// Appends the ids of `word`, which is UTF-8 and spelled as the vocabulary spells it.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  struct Symbol {
    std::int32_t id = -1;
    std::int32_t previous = -1, next = -1;
    std::uint32_t begin = 0, size = 0;  // in the word; size 0: merged into the one before
  };

  void symbols_by_vocabulary(std::string_view word, std::vector<std::int32_t>& ids) const;
  void fallback(std::string_view character, std::vector<std::int32_t>& ids,
                std::int32_t& pending) const;
  void merge_short(std::vector<std::int32_t>& ids, std::size_t first) const;
  void merge_long(std::vector<std::int32_t>& ids, std::size_t first) const;
  void encode_by_scores(std::string_view word, std::vector<std::int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  MergeTable merges_;
  std::vector<std::optional<float>> scores_;
  std::array<std::int32_t, 256> bytes_{};
  bool has_byte_fallback_ = false;
};

}  // namespace lca
