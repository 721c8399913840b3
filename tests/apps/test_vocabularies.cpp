// Files that hold a tokenizer and no model, on the command line.

#include "formats/gguf/gguf_bytes.h"
#include "program.h"
#include "tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lca::test {
namespace {

GgufBuilder vocabulary(const std::string& architecture) {
  GgufBuilder file;
  file.text("general.architecture", architecture);
  gguf_add_tokenizer(file);
  return file;
}

TEST(VocabularyFiles, AreTokenizedWithoutAModel) {
  const ScratchFolder folder;
  const std::string path = (folder / "vocab.gguf").string();
  write_file(path, vocabulary("llama").bytes());
  const Finished tokens = program_run({"tokenize", path, "--text", "abc<|end|>", "--json"});
  EXPECT_EQ(tokens.code, 0) << tokens.err;
  EXPECT_EQ(tokens.out, "{\"ids\":[2,3,4]}\n");
  EXPECT_EQ(tokens.err, "");
  for (const char* command : {"inspect", "plan"}) {
    EXPECT_TRUE(program_run({command, path}).failed_in_one_line(2)) << command;
  }
}

TEST(VocabularyFiles, WarnWhereTheyDoNotSayHowTextIsSplit) {
  const ScratchFolder folder;
  const std::string path = (folder / "vocab.gguf").string();
  write_file(path, vocabulary("llama").remove("tokenizer.ggml.pre").bytes());
  const Finished tokens = program_run({"tokenize", path, "--text", "abc", "--json"});
  EXPECT_EQ(tokens.code, 0);
  EXPECT_EQ(tokens.out, "{\"ids\":[2,3]}\n");
  EXPECT_NE(tokens.err.find("lca: warning: "), std::string::npos) << tokens.err;
  EXPECT_NE(tokens.err.find("tokenizer.ggml.pre is missing"), std::string::npos) << tokens.err;

  write_file(path, vocabulary("qwen2").remove("tokenizer.ggml.pre").bytes());
  EXPECT_TRUE(program_run({"tokenize", path, "--text", "abc"}).failed_in_one_line(2));
}

TEST(VocabularyFiles, ATokenizerJsonWillDo) {
  TinyModel model;
  model.write();
  const Finished whole = program_run({"tokenize", model.path(), "--text", "a<|im_start|>b"});
  const std::string file = (model / "tokenizer.json").string();
  EXPECT_EQ(program_run({"tokenize", file, "--text", "a<|im_start|>b"}).out, whole.out);
  EXPECT_EQ(whole.code, 0);
}

}  // namespace
}  // namespace lca::test
