#pragma once
/// Making a Tokenizer from what is on disk.

#include <lca/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// The tokenizer tables of a GGUF file, as they are stored.
struct GgufTokenizer {
  std::string architecture;  ///< of the model; decides what a missing `pre` means
  std::string model;         ///< "gpt2" (byte-level BPE) or "llama" (SentencePiece-style BPE)
  std::string pre;  ///< the pre-tokenizer: "smollm", "qwen2", "llama-bpe", …; empty: not named
  std::vector<std::string_view> tokens;
  std::vector<double> scores;  ///< empty, or one a token
  std::vector<std::int64_t>
      types;  ///< empty, or one a token: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::vector<std::string_view> merges;
  std::optional<std::int64_t> begin, end, unknown;
  std::optional<bool> add_begin, add_end, add_space_prefix;
};

/// Reads `tokenizer.json`; throws Error beginning with `where`. `config` is the text of
/// `tokenizer_config.json` beside it, empty where there is none.
Tokenizer tokenizer_from_json(std::string_view text, std::string_view where,
                              std::string_view config = {}, std::string_view config_where = {});

/// From a GGUF file's tables, which are copied.
Tokenizer tokenizer_from_tables(const GgufTokenizer& tables, std::string_view where);

class Gguf;
/// The same from an opened file; throws Error where it was cut short meanwhile.
Tokenizer tokenizer_from_gguf(const Gguf& file);

/// Reads `tokenizer.json` and what lies beside it in a Hugging Face folder.
Tokenizer tokenizer_from_folder(const std::filesystem::path& folder);

}  // namespace lca
