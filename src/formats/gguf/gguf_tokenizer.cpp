#include "core/error.h"
#include "formats/gguf/gguf.h"

#include <string>
#include <utility>

namespace lca {
namespace {

/// The list under `key`, or null where it is absent.
const GgufValue* list_find(const Gguf& file, std::string_view key, GgufValue::Kind kind,
                           std::string_view what) {
  const GgufValue* value = file.value(key);
  if (value != nullptr && (!value->is_list() || value->kind() != kind)) {
    fail_input("{}: key \"{}\" is not a list of {}", file.name(), key, what);
  }
  return value;
}

std::optional<std::int64_t> id_find(const Gguf& file, std::string_view key, std::size_t tokens) {
  if (file.value(key) == nullptr) return std::nullopt;
  const std::int64_t id = file.integer(key);
  if (id < 0 || std::cmp_greater_equal(id, tokens)) {
    fail_input("{}: key \"{}\" is {}, not one of the {} tokens", file.name(), key, id, tokens);
  }
  return id;
}

std::optional<bool> flag_find(const Gguf& file, std::string_view key) {
  if (file.value(key) == nullptr) return std::nullopt;
  return file.boolean(key, false);
}

}  // namespace

GgufTokenizer gguf_tokenizer_tables(const Gguf& file) {
  using Kind = GgufValue::Kind;
  GgufTokenizer tables;
  tables.architecture = file.text("general.architecture", "");
  tables.model = file.text("tokenizer.ggml.model");
  tables.pre = file.text("tokenizer.ggml.pre", "");

  const GgufValue* tokens = list_find(file, "tokenizer.ggml.tokens", Kind::text, "texts");
  if (tokens == nullptr) {
    fail_input("{}: key \"tokenizer.ggml.tokens\" is missing: the file has no tokenizer",
               file.name());
  }
  tables.tokens = tokens->texts();
  if (const auto* scores = list_find(file, "tokenizer.ggml.scores", Kind::number, "numbers")) {
    tables.scores.resize(scores->size());
    for (std::size_t i = 0; i < scores->size(); ++i) tables.scores[i] = scores->number(i);
  }
  if (const auto* types = list_find(file, "tokenizer.ggml.token_type", Kind::integer, "integers")) {
    tables.types.resize(types->size());
    for (std::size_t i = 0; i < types->size(); ++i) tables.types[i] = types->integer(i);
  }
  if (const auto* merges = list_find(file, "tokenizer.ggml.merges", Kind::text, "texts")) {
    tables.merges = merges->texts();
  }
  const std::size_t count = tables.tokens.size();
  if (!tables.scores.empty() && tables.scores.size() != count) {
    fail_input("{}: tokenizer: {} scores for {} tokens", file.name(), tables.scores.size(), count);
  }
  if (!tables.types.empty() && tables.types.size() != count) {
    fail_input("{}: tokenizer: {} types for {} tokens", file.name(), tables.types.size(), count);
  }
  tables.begin = id_find(file, "tokenizer.ggml.bos_token_id", count);
  tables.end = id_find(file, "tokenizer.ggml.eos_token_id", count);
  tables.unknown = id_find(file, "tokenizer.ggml.unknown_token_id", count);
  tables.add_begin = flag_find(file, "tokenizer.ggml.add_bos_token");
  tables.add_end = flag_find(file, "tokenizer.ggml.add_eos_token");
  tables.add_space_prefix = flag_find(file, "tokenizer.ggml.add_space_prefix");
  return tables;
}

}  // namespace lca
