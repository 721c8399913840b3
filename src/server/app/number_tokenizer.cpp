#include "server/app/number_tokenizer.h"

#include "formats/tokenizer/tokenizer_load.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

namespace lca::server {

Tokenizer number_tokenizer(std::int64_t size) {
  // Ġ is the space of byte-level vocabularies.
  std::string text = R"({"model": {"type": "BPE", "ignore_merges": true, "merges": [], "vocab": {)";
  for (std::int64_t i = 0; i < size; ++i) {
    fmt::format_to(std::back_inserter(text), "{}\"Ġ{}\": {}", i == 0 ? "" : ", ", i, i);
  }
  text +=
      R"(}}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "decoder": {"type": "ByteLevel"}})";
  return tokenizer_from_json(text, "numbers");
}

}  // namespace lca::server
