#pragma once
/// The tokenizers of the tests: small ones in the repository, and large ones from the test data.

#include "core/file.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizer/tokenizer_load.h"
#include "formats/tokenizer/utf8.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lca::test {

namespace fs = std::filesystem;

inline std::string file_text(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

inline fs::path golden_tokenizers() {
  return fs::path(LCA_SOURCE_DIR) / "tests" / "golden" / "tokenizers";
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(file_text(golden_tokenizers() / name));
}

inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// A file of the test data (downloaded by scripts/test_data.py), or nullopt.
inline std::optional<fs::path> test_data(const fs::path& name) {
  const std::string set = environment("LCA_TEST_DATA");
  const fs::path folder =
      set.empty() ? fs::path(LCA_SOURCE_DIR) / "build" / "test-data" : fs::path(set);
  if (fs::exists(folder / name)) return folder / name;
  return std::nullopt;
}

/// SmolLM2's file, in the test data or where `lca` keeps models.
inline std::optional<fs::path> smollm2_path() {
  const fs::path name = "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (const auto path = test_data(name)) return path;
  for (const auto& [variable, below] :
       {std::pair("LCA_HOME", ""), {"XDG_CACHE_HOME", "lca"}, {"HOME", ".cache/lca"}}) {
    const std::string folder = environment(variable);
    if (!folder.empty() && fs::exists(fs::path(folder) / below / name)) {
      return fs::path(folder) / below / name;
    }
  }
  return std::nullopt;
}

constexpr const char* kNoTestData = "the file is not there; scripts/test_data.py gets it";

inline Tokenizer golden_tokenizer(const std::string& name) {
  return tokenizer_from_json(file_text(golden_tokenizers() / (name + ".json")), name + ".json");
}

/// sentencepiece.json with the members of a patch replaced.
inline Tokenizer patched_tokenizer(const std::string& name) {
  nlohmann::json tree = golden_json("sentencepiece.json");
  tree.update(golden_json(name + ".patch.json"));
  return tokenizer_from_json(tree.dump(), name);
}

/// The GGUF form of sentencepiece.json; it owns the data that the tables point to.
struct GgufForm {
  GgufForm() {
    const nlohmann::json tree = golden_json("sentencepiece.gguf.json");
    texts = tree["tokens"].get<std::vector<std::string>>();
    tables.model = "llama";
    tables.pre = "default";
    tables.tokens = {texts.begin(), texts.end()};
    tables.scores = tree["scores"].get<std::vector<double>>();
    tables.types = tree["types"].get<std::vector<std::int64_t>>();
    tables.begin = 1;
    tables.end = 2;
    tables.unknown = 0;
  }
  std::vector<std::string> texts;
  GgufTokenizer tables;
};

/// The texts of the golden files, as bytes.
inline const std::vector<std::string>& golden_texts() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> list;
    for (const auto& entry : golden_json("texts.json")) {
      if (entry.is_string()) {
        list.push_back(entry.get<std::string>());
        continue;
      }
      const auto hex = entry["hex"].get<std::string>();
      std::string bytes;
      for (std::size_t i = 0; i < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
      list.push_back(bytes);
    }
    return list;
  }();
  return texts;
}

}  // namespace lca::test
