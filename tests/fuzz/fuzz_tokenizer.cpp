// Any text as tokenizer.json, and the tokenizer that results. The first byte chooses options, the
// rest is the file. Only lca::Error is thrown, each a single printable line; an accepted tokenizer
// encodes and decodes, and decodes the same in a stream.

#include "formats/tokenizer/tokenizer_load.h"
#include "formats/tokenizer/utf8.h"
#include "fuzz/require.h"

#include <lca/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;

void exercise(const lca::Tokenizer& tokenizer, std::string_view text, unsigned options) {
  const lca::EncodeOptions how{.add_special = (options & 1) != 0,
                               .parse_special = (options & 2) != 0};
  const bool with_special = (options & 4) != 0;
  const std::vector<std::int32_t> ids = tokenizer.encode(text, how);
  for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.size());
  const std::string decoded = tokenizer.decode(ids, with_special);
  require(lca::utf8_is_valid(decoded));
  lca::StreamDecoder stream(tokenizer, with_special);
  std::string streamed;
  for (const std::int32_t id : ids) {
    const std::string part = stream.push(id);
    require(lca::utf8_is_valid(part));
    streamed += part;
  }
  streamed += stream.finish();
  require(streamed == decoded);
}

/// The file's own tables as those of a GGUF file: tokens are its lines.
void read_gguf(std::string_view text, unsigned options) {
  constexpr std::array<const char*, 8> kPre = {"smollm",         "default",   "qwen2",
                                               "deepseek-llm",   "llama-bpe", "gpt-2",
                                               "deepseek-coder", "other"};
  lca::GgufTokenizer tables;
  tables.model = (options & 8) != 0 ? "llama" : "gpt2";
  tables.pre = kPre[(options >> 4) & 7u];
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find(' ', 1) != std::string_view::npos) {
      tables.merges.push_back(line);
    } else {
      tables.tokens.push_back(line);
      tables.scores.push_back(line.empty() ? 0 : -static_cast<double>(line.back()));
      tables.types.push_back(line.empty() ? 1 : static_cast<std::int64_t>(line.size() % 7));
    }
    begin = end + 1;
  }
  tables.unknown = 0;
  const lca::Tokenizer tokenizer = lca::tokenizer_from_tables(tables, "fuzz");
  exercise(tokenizer, text.substr(0, 500), options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 20000) return 0;
  const unsigned options = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (text.starts_with('{')) {
      const bool has_config = (options & 128) != 0;
      const lca::Tokenizer tokenizer =
          lca::tokenizer_from_json(text, "fuzz", has_config ? text : std::string_view{}, "config");
      for (const std::string_view sample :
           {std::string_view("Hello, world's  end\r\n 12345 \t"),
            std::string_view("ab<s>abc abab <x> b"),
            std::string_view(
                "caf\u0065\u0301 \u6f22\u5b57 \U0001f44d\U0001f3fd\u2581 \xff\xe2\x82"),
            text.substr(0, 300)}) {
        exercise(tokenizer, sample, options);
      }
    } else {
      read_gguf(text, options);
    }
  } catch (const lca::Error& error) {
    check_message(error);
  }
  return 0;
}
