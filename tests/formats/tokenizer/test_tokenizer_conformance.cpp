// Token ids and texts against those of the `tokenizers` library and SentencePiece.

#include "core/text.h"
#include "tokenizer_files.h"

#include <chrono>

namespace lca {
namespace {

using nlohmann::json;
using test::golden_json;
using test::golden_texts;
using test::golden_tokenizer;

using Ids = std::vector<std::int32_t>;

void expect_ids(const json& wanted, const Ids& found, std::size_t text, const char* what) {
  EXPECT_EQ(wanted.get<Ids>(), found)
      << what << " of text " << text << ": \"" << text_printable(golden_texts()[text], 300) << '"';
}

/// Checks everything an expected file holds; returns how many texts it has ids for.
std::size_t expect_conforms(const Tokenizer& tokenizer, const std::string& name) {
  const json expected = golden_json(name + ".expected.json");
  const auto& texts = golden_texts();
  EXPECT_EQ(expected["ids"].size(), texts.size());
  std::size_t checked = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (expected["ids"][i].is_null()) continue;
    ++checked;
    const Ids ids = tokenizer.encode(texts[i]);
    expect_ids(expected["ids"][i], ids, i, "ids");
    const std::string key = std::to_string(i);
    if (expected.contains("special") && expected["special"].contains(key)) {
      expect_ids(expected["special"][key], tokenizer.encode(texts[i], {.add_special = true}), i,
                 "ids with special tokens");
    }
    if (expected.contains("plain")) {
      const json& plain =
          expected["plain"].contains(key) ? expected["plain"][key] : expected["ids"][i];
      expect_ids(plain, tokenizer.encode(texts[i], {.parse_special = false}), i,
                 "ids without parsing special tokens");
    }
    if (expected.contains("decoded")) {
      const std::string text = expected["decoded"].contains(key)
                                   ? expected["decoded"][key].get<std::string>()
                                   : utf8_clean(texts[i]);
      EXPECT_EQ(text_printable(text, 2000),
                text_printable(tokenizer.decode(expected["ids"][i].get<Ids>(), true), 2000))
          << "decoding text " << i;
    }
  }
  return checked;
}

TEST(TokenizerConformance, QwenStyleEqualsTheLibrary) {
  EXPECT_GE(expect_conforms(golden_tokenizer("qwen2"), "qwen2"), 600u);
}

TEST(TokenizerConformance, Llama3StyleEqualsTheLibrary) {
  EXPECT_GE(expect_conforms(golden_tokenizer("llama3"), "llama3"), 600u);
}

TEST(TokenizerConformance, SentencePieceStyleEqualsTheLibrary) {
  EXPECT_GE(expect_conforms(golden_tokenizer("sentencepiece"), "sentencepiece"), 600u);
}

TEST(TokenizerConformance, EveryMetaspaceSchemeEqualsTheLibrary) {
  for (const char* scheme : {"first", "always", "never"}) {
    for (const char* split : {"split", "whole"}) {
      const std::string name = std::string("metaspace_") + scheme + "_" + split;
      SCOPED_TRACE(name);
      EXPECT_GE(expect_conforms(test::patched_tokenizer(name), name), 250u);
    }
  }
}

TEST(TokenizerConformance, MergingByScoresEqualsSentencePiece) {
  const test::GgufForm form;
  const Tokenizer tokenizer = tokenizer_from_tables(form.tables, "form");
  EXPECT_GE(expect_conforms(tokenizer, "sentencepiece.gguf"), 500u);
}

TEST(TokenizerConformance, EveryGgufPreTokenizerEqualsTheLibrary) {
  const json tree = golden_json("qwen2.json");
  std::vector<std::string> tokens;
  std::vector<std::int64_t> types;
  const auto put = [&](const std::string& token, std::size_t id, std::int64_t type) {
    tokens.resize(std::max(tokens.size(), id + 1));
    types.resize(tokens.size(), 1);
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : tree["model"]["vocab"].items()) {
    put(token, id.get<std::size_t>(), 1);
  }
  for (const json& token : tree["added_tokens"]) {
    put(token["content"].get<std::string>(), token["id"].get<std::size_t>(),
        token["special"].get<bool>() ? 3 : 4);
  }
  std::vector<std::string> merges;
  for (const json& pair : tree["model"]["merges"]) {
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  }
  GgufTokenizer tables;
  tables.model = "gpt2";
  tables.tokens = {tokens.begin(), tokens.end()};
  tables.types = types;
  tables.merges = {merges.begin(), merges.end()};
  for (const char* pre : {"smollm", "gpt-2", "qwen2", "llama-bpe", "deepseek-llm"}) {
    SCOPED_TRACE(pre);
    tables.pre = pre;
    const Tokenizer tokenizer = tokenizer_from_tables(tables, "tables");
    EXPECT_GE(expect_conforms(tokenizer, "gguf_" + tables.pre), 250u);
  }
}

TEST(TokenizerConformance, SmolLM2FromItsGgufFileEqualsTheLibrary) {
  const auto path = test::smollm2_path();
  if (!path) GTEST_SKIP() << test::kNoTestData;
  const Gguf file = Gguf::open(*path);
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = tokenizer_from_tables(gguf_tokenizer_tables(file), "smollm2");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("load_seconds", std::to_string(seconds.count()));
  EXPECT_EQ(tokenizer.size(), 49152);
  EXPECT_EQ(tokenizer.describe(), "byte-level BPE, 49152 tokens");
  EXPECT_GE(expect_conforms(tokenizer, "smollm2"), 600u);
}

TEST(TokenizerConformance, DeepSeekFromTokenizerJsonEqualsTheLibrary) {
  const auto path = test::test_data("deepseek/tokenizer.json");
  if (!path) GTEST_SKIP() << test::kNoTestData;
  const std::string text = test::file_text(*path);
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = tokenizer_from_json(text, "tokenizer.json");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("load_seconds", std::to_string(seconds.count()));
  EXPECT_GE(expect_conforms(tokenizer, "deepseek"), 600u);

  const std::string config = test::file_text(path->parent_path() / "tokenizer_config.json");
  const Tokenizer configured =
      tokenizer_from_json(text, "tokenizer.json", config, "tokenizer_config.json");
  EXPECT_EQ(configured.begin_token(), 0);
  EXPECT_EQ(configured.end_token(), 1);
  EXPECT_TRUE(configured.prefix().empty());
}

}  // namespace
}  // namespace lca
