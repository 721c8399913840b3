// A tokenizer by its path: beside a model's weights, inside a GGUF file, or alone.

#include "core/error.h"
#include "formats/gguf/gguf.h"
#include "formats/model_path.h"
#include "formats/tokenizer/tokenizer_load.h"

namespace lca {

namespace fs = std::filesystem;

namespace {

/// `tokenizer_config.json` is read where it lies beside the file.
Tokenizer tokenizer_from_file(const fs::path& file) {
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  return text_read(file, [&](std::string_view text) {
    if (!path_exists(config)) return tokenizer_from_json(text, path_shown(file));
    return text_read(config, [&](std::string_view config_text) {
      return tokenizer_from_json(text, path_shown(file), config_text, path_shown(config));
    });
  });
}

Tokenizer tokenizer_open(const fs::path& path, FileAccess access) {
  const fs::path full = path_require(path);
  std::error_code ignored;
  if (path_is_gguf(full)) return tokenizer_from_gguf(Gguf::open(full, access));
  if (!fs::is_directory(full, ignored)) {
    if (full.extension() != ".json") {
      fail_input("{}: is neither a tokenizer.json nor a GGUF file", path_shown(path));
    }
    return tokenizer_from_file(full);
  }
  if (!path_exists(full / "tokenizer.json") && !path_exists(full / "config.json")) {
    if (const std::optional<fs::path> file = folder_find_gguf(full)) {
      return tokenizer_from_gguf(Gguf::open(*file, access));
    }
  }
  return tokenizer_from_folder(full);
}

}  // namespace

Tokenizer tokenizer_from_folder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (path_exists(file)) return tokenizer_from_file(file);
  if (path_exists(folder / "tokenizer.model")) {
    fail_not_found(
        "{}: is missing; tokenizer.model alone is not read: make it in Python with "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        path_shown(file));
  }
  fail_not_found("{}: is missing: the model has no tokenizer", path_shown(file));
}

Tokenizer tokenizer_from_gguf(const Gguf& file) {
  return mapped_read(
      [&] { return tokenizer_from_tables(gguf_tokenizer_tables(file), file.name()); },
      [&] { file.require_intact(); });
}

Tokenizer Tokenizer::open(const fs::path& path, FileAccess access) {
  return guarded([&] { return tokenizer_open(path, access); });
}

}  // namespace lca
