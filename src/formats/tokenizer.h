#pragma once
/// Text to token ids and back, from `tokenizer.json` or a GGUF file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// The tokenizer tables of a GGUF file, as they lie there.
struct GgufTokenizer {
  std::string model;  ///< "gpt2" (byte-level BPE) or "llama" (SentencePiece-style BPE)
  std::string
      pre;  ///< name of the pre-tokenizer: "smollm", "qwen2", "deepseek-llm", "llama-bpe", …
  std::vector<std::string_view> tokens;
  std::vector<double> scores;  ///< empty, or one a token
  std::vector<std::int64_t>
      types;  ///< empty, or one a token: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::vector<std::string_view> merges;
  std::optional<std::int64_t> begin, end, unknown;
  std::optional<bool> add_begin, add_end, add_space_prefix;
};

struct EncodeOptions {
  bool add_special = false;   ///< begin/end tokens as the checkpoint asks for
  bool parse_special = true;  ///< text that spells a special token becomes that token
};

/// An immutable tokenizer; any number of threads may use it.
class Tokenizer {
 public:
  /// Reads `tokenizer.json`; throws Error beginning with `where`. `config` is the text of
  /// `tokenizer_config.json` beside it, empty where there is none.
  static Tokenizer from_json(std::string_view text, std::string_view where,
                             std::string_view config = {}, std::string_view config_where = {});
  /// From a GGUF file's tables, which are copied.
  static Tokenizer from_gguf(const GgufTokenizer& tables, std::string_view where);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Ids of `text`. Bytes that are not UTF-8 count as U+FFFD, one for each bad sequence.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Text of `ids` (always UTF-8: what is not becomes U+FFFD); special tokens are left out unless
  /// asked for. Ids out of range throw Error.
  std::string decode(std::span<const std::int32_t> ids, bool with_special = false) const;

  /// Number of ids: one more than the largest.
  std::int64_t size() const;
  /// The id whose token is spelled so, special or not.
  std::optional<std::int32_t> find(std::string_view token) const;
  /// The token as the file spells it; empty where the id has none.
  std::string_view token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// Ids `add_special` puts in front and behind.
  const std::vector<std::int32_t>& prefix() const;
  const std::vector<std::int32_t>& suffix() const;
  std::optional<std::int32_t> begin_token() const;
  std::optional<std::int32_t> end_token() const;
  /// One line for people: "byte-level BPE, 49152 tokens".
  std::string describe() const;

  struct State;
  const State& state() const { return *state_; }

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// Decodes ids one by one and holds back the bytes of a character until it is whole.
/// Concatenated, what it returns is `Tokenizer::decode` of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_special = false);
  /// The text that is certain after one more id; may be empty.
  std::string push(std::int32_t id);
  /// What was held back: whole characters, U+FFFD for what is none.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer::State> state_;
  bool with_special_;
  bool first_ = true;
  std::size_t strip_left_;  // spaces that may still go from the front of the text
  std::string pending_;
};

}  // namespace lca
