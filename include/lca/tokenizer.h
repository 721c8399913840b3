#pragma once
/// Text to token ids and back.

#include <lca/file_access.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// What `Tokenizer::encode` makes of a text.
struct EncodeOptions {
  bool add_special = false;   ///< begin and end tokens as the checkpoint asks for
  bool parse_special = true;  ///< text that spells a special token becomes that token
};

/// An immutable tokenizer. Thread-safe: any number of threads may use one at the same time. Copies
/// are cheap and share their tables.
class Tokenizer {
 public:
  /// Opens a tokenizer without its model: a Hugging Face folder, a tokenizer.json, or a GGUF file
  /// (one that holds nothing but a vocabulary, too). Throws Error naming what is missing or wrong.
  static Tokenizer open(const std::filesystem::path& path, FileAccess access = FileAccess::map);

  /// Ids of `text`. Bytes that are not UTF-8 count as U+FFFD, one for each bad sequence. Throws
  /// Error where the tokenizer's regular expressions take too many steps for the text.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Text of `ids`, always UTF-8: what is not becomes U+FFFD. Special tokens are left out unless
  /// asked for; an id out of range throws Error. `StreamDecoder` does the same id by id.
  std::string decode(std::span<const std::int32_t> ids, bool with_special = false) const;

  /// Number of ids: one more than the largest.
  std::int64_t size() const;
  /// The id whose token is spelled so, special or not.
  std::optional<std::int32_t> find(std::string_view token) const;
  /// The token as the file spells it ("Ġthe", "▁the"); empty where the id has none.
  std::string_view token(std::int32_t id) const;
  /// The bytes the token stands for in the middle of a text (" the"), maybe a part of a character.
  /// An id out of range throws Error.
  std::string_view bytes(std::int32_t id) const;
  /// False for an id out of range.
  bool is_special(std::int32_t id) const;

  /// Ids that `add_special` puts before and after a text.
  const std::vector<std::int32_t>& prefix() const;
  const std::vector<std::int32_t>& suffix() const;
  std::optional<std::int32_t> begin_token() const;
  std::optional<std::int32_t> end_token() const;

  /// One line: "byte-level BPE, 49152 tokens".
  std::string describe() const;
  /// What the file leaves open and was guessed, one line each; usually empty.
  const std::vector<std::string>& warnings() const;

  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);
  const State& state() const { return *state_; }

 private:
  friend class StreamDecoder;
  std::shared_ptr<const State> state_;
};

/// Decodes ids one by one and withholds the bytes of a character until it is whole. Concatenated,
/// what it returns is `Tokenizer::decode` of all ids. One thread at a time.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_special = false);
  /// The text that is certain after one more id; may be empty.
  std::string push(std::int32_t id);
  /// What was withheld: U+FFFD for the bytes that are no character.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer::State> state_;
  bool with_special_;
  bool first_ = true;
  std::size_t strip_left_;  // spaces that may still be removed from the front of the text
  std::string pending_;
};

}  // namespace lca
