// Tokenizers by their path, and llama.cpp's vocabulary files with the ids they must give.

#include "formats/byte_files.h"
#include "formats/gguf/gguf_bytes.h"
#include "tokenizer_files.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace lca {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::GgufBuilder;
using test::ScratchFolder;
using test::write_file;

using Ids = std::vector<std::int32_t>;

/// A file that holds a vocabulary and no tensor, as `ggml-vocab-*.gguf` do.
GgufBuilder vocabulary_file(const std::string& architecture = "gpt2") {
  GgufBuilder file;
  file.text("general.architecture", architecture);
  test::gguf_add_tokenizer(file);
  return file;
}

TEST(TokenizerOpen, TakesAGgufFileWithNothingButAVocabulary) {
  const ScratchFolder folder;
  write_file(folder / "vocab.gguf", vocabulary_file().bytes());
  for (const FileAccess access : {FileAccess::map, FileAccess::read}) {
    const Tokenizer tokenizer = Tokenizer::open(folder / "vocab.gguf", access);
    EXPECT_EQ(tokenizer.encode("abc<|end|>"), (Ids{2, 3, 4}));
    EXPECT_EQ(tokenizer.decode(Ids{2, 3}), "abc");
    EXPECT_TRUE(tokenizer.warnings().empty());
  }
  fs::rename(folder / "vocab.gguf", folder / "vocab");
  EXPECT_EQ(Tokenizer::open(folder / "vocab").size(), 6) << "whatever the file is called";
}

TEST(TokenizerOpen, TakesAFolderAndAFileInIt) {
  const ScratchFolder folder;
  fs::copy_file(test::golden_tokenizers() / "qwen2.json", folder / "tokenizer.json");
  const Ids ids = test::golden_tokenizer("qwen2").encode("the model's cache");
  EXPECT_EQ(Tokenizer::open(folder.path()).encode("the model's cache"), ids) << "no config.json";
  EXPECT_EQ(Tokenizer::open(folder / "tokenizer.json").encode("the model's cache"), ids);
}

TEST(TokenizerOpen, FindsTheGgufFileOfAFolder) {
  const ScratchFolder folder;
  write_file(folder / "vocab.gguf", vocabulary_file().bytes());
  EXPECT_EQ(Tokenizer::open(folder.path()).size(), 6);
}

TEST(TokenizerOpen, SaysWhatIsMissing) {
  const ScratchFolder folder;
  expect_error([&] { Tokenizer::open(folder / "absent"); }, {"absent: there is no such file"},
               ErrorKind::not_found);
  expect_error([&] { Tokenizer::open(folder.path()); }, {"tokenizer.json: is missing"},
               ErrorKind::not_found);
  write_file(folder / "tokenizer.model", "x");
  expect_error([&] { Tokenizer::open(folder.path()); }, {"tokenizer.model alone is not read"},
               ErrorKind::not_found);
  expect_error([&] { Tokenizer::open(folder / "tokenizer.model"); },
               {"is neither a tokenizer.json nor a GGUF file"});
}

TEST(TokenizerOpen, ACopyOutlivesTheFileAndTheOriginal) {
  const ScratchFolder folder;
  write_file(folder / "vocab.gguf", vocabulary_file().bytes());
  std::optional<Tokenizer> first = Tokenizer::open(folder / "vocab.gguf");
  const Tokenizer copy = *first;
  StreamDecoder stream(*first);
  first.reset();
  fs::remove(folder / "vocab.gguf");
  EXPECT_EQ(copy.encode("ab"), Ids{2});
  EXPECT_EQ(stream.push(2), "ab");
}

TEST(TokenizerOpen, TellsTheBytesOfATokenFromItsSpelling) {
  const Tokenizer tokenizer = test::golden_tokenizer("qwen2");
  const Ids ids = tokenizer.encode(" the");
  std::string bytes, spelling;
  for (const std::int32_t id : ids) {
    bytes += tokenizer.bytes(id);
    spelling += tokenizer.token(id);
  }
  EXPECT_EQ(bytes, " the");
  EXPECT_EQ(spelling, "\u0120the");
  expect_error([&] { tokenizer.bytes(-1); }, {"there is no token -1"});
}

// --- files that name no pre-tokenizer ------------------------------------------------------------

Tokenizer without_pre(const std::string& architecture, const char* pre = nullptr) {
  GgufBuilder file = vocabulary_file(architecture);
  file.remove("tokenizer.ggml.pre");
  if (pre != nullptr) file.text("tokenizer.ggml.pre", pre);
  const std::string bytes = file.bytes();
  return tokenizer_from_gguf(Gguf::parse(test::bytes_of(bytes), "f.gguf"));
}

TEST(TokenizerWithoutPre, IsRefusedWhereTheArchitectureSplitsOtherwise) {
  for (const char* architecture : {"qwen2", "deepseek2"}) {
    expect_error([&] { without_pre(architecture); },
                 {"f.gguf: tokenizer.ggml.pre is missing", architecture, "convert"});
    expect_error([&] { without_pre(architecture, "default"); },
                 {"tokenizer.ggml.pre is \"default\"", architecture});
  }
}

TEST(TokenizerWithoutPre, IsReadWithAWarningWhereItMayBeRight) {
  for (const char* pre : {static_cast<const char*>(nullptr), "default"}) {
    const Tokenizer tokenizer = without_pre("llama", pre);
    ASSERT_EQ(tokenizer.warnings().size(), 1u);
    EXPECT_NE(tokenizer.warnings()[0].find("tokenizer.ggml.pre"), std::string::npos);
    EXPECT_NE(tokenizer.warnings()[0].find("GPT-2"), std::string::npos);
    EXPECT_EQ(tokenizer.encode("ab"), Ids{2});
  }
  EXPECT_TRUE(without_pre("gpt2").warnings().empty()) << "GPT-2 itself";
  test::GgufForm sentence_piece;
  sentence_piece.tables.architecture = "minicpm3";
  sentence_piece.tables.pre.clear();
  EXPECT_TRUE(tokenizer_from_tables(sentence_piece.tables, "f").warnings().empty())
      << "nothing to split";
}

// --- llama.cpp's files ---------------------------------------------------------------------------

/// The folder `models` of llama.cpp: named by LCA_VOCABULARIES, or `ggml-vocab` in the test data.
std::optional<fs::path> vocabularies() {
  const std::string named = test::environment("LCA_VOCABULARIES");
  if (!named.empty()) return fs::path(named);
  return test::test_data("ggml-vocab");
}

std::vector<std::string> inputs_read(const fs::path& path) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  const std::string text = test::file_text(path);
  std::vector<std::string> inputs;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kSeparator, begin), text.size());
    inputs.push_back(text.substr(begin, end - begin));
    begin = end + kSeparator.size();
  }
  return inputs;
}

std::vector<Ids> outputs_read(const fs::path& path) {
  std::vector<Ids> outputs;
  std::istringstream text(test::file_text(path));
  for (std::string line; std::getline(text, line);) {
    std::istringstream numbers(line);
    Ids& ids = outputs.emplace_back();
    for (std::int32_t id = 0; numbers >> id;) ids.push_back(id);
  }
  return outputs;
}

class LlamaCppVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(LlamaCppVocabulary, GivesItsIds) {
  const auto folder = vocabularies();
  if (!folder) GTEST_SKIP() << "LCA_VOCABULARIES does not name a folder with ggml-vocab-*.gguf";
  const fs::path file = *folder / (std::string("ggml-vocab-") + GetParam() + ".gguf");
  const fs::path input = file.native() + ".inp", output = file.native() + ".out";
  if (!fs::exists(file) || !fs::exists(input)) GTEST_SKIP() << file << " is not there";
  const Tokenizer tokenizer = Tokenizer::open(file);
  EXPECT_TRUE(tokenizer.warnings().empty());
  const std::vector<std::string> texts = inputs_read(input);
  const std::vector<Ids> expected = outputs_read(output);
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GT(texts.size(), 40u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i], {.parse_special = false}), expected[i])
        << '"' << texts[i] << '"';
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaCppVocabulary,
                         testing::Values("gpt-2", "starcoder", "refact", "deepseek-llm",
                                         "deepseek-coder", "qwen2", "llama-bpe", "llama-spm",
                                         "phi-3"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lca
