// Checkpoints with one defect each: one clear line, exit code 2.

#include "apps/program.h"
#include "apps/tiny_model.h"

#include <gtest/gtest.h>

#include <limits>

namespace lca::test {
namespace {

using Words = std::vector<std::string>;

/// Runs the model and expects one line that holds all of `parts`.
void expect_refused(TinyModel& model, const Words& parts, const Words& more = {}) {
  model.write();
  Words words = {"run", model.path(), "-p", "hello", "-n", "2"};
  words.insert(words.end(), more.begin(), more.end());
  const Finished finished = program_run(words);
  EXPECT_TRUE(finished.failed_in_one_line(2))
      << finished.code << " " << finished.out << finished.err;
  for (const std::string& part : parts) {
    EXPECT_NE(finished.err.find(part), std::string::npos) << part << " is not in " << finished.err;
  }
}

TEST(HostileModels, ATensorIsMissing) {
  TinyModel model;
  model.weights.remove("model.layers.1.mlp.up_proj.weight");
  expect_refused(model, {"model.layers.1.mlp.up_proj.weight"});
}

TEST(HostileModels, ATensorHasAnotherShape) {
  TinyModel model;
  model.weights.add("model.layers.1.mlp.up_proj.weight", "F32", {48, 31});
  expect_refused(model, {"model.layers.1.mlp.up_proj.weight"});
}

TEST(HostileModels, WeightsAreNaNOrInfinite) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    TinyModel model;
    std::vector<double> values = TinyModel::noise(32 * 32, 3, 0.4);
    values[77] = value;
    model.weights.add("model.layers.0.self_attn.q_proj.weight", "F32", {32, 32}, values);
    expect_refused(model, {});
  }
}

TEST(HostileModels, ANumberOfTheConfigIsZeroOrHuge) {
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "vocab_size", "intermediate_size", "head_dim"}) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40,
                                     std::numeric_limits<std::int64_t>::max()}) {
      SCOPED_TRACE(std::string(field) + " " + std::to_string(value));
      TinyModel model;
      model.config[field] = value;
      expect_refused(model, {});
    }
  }
}

TEST(HostileModels, TheConfigIsNoJsonOrAnotherKindOfModel) {
  TinyModel model;
  model.config["model_type"] = "mamba";
  model.config["architectures"] = {"MambaForCausalLM"};
  expect_refused(model, {"mamba"});
  write_file(model / "config.json", "{\"model_type\": ");
  EXPECT_TRUE(program_run({"inspect", model.path()}).failed_in_one_line(2));
  write_file(model / "config.json", std::string(100000, '['));
  EXPECT_TRUE(program_run({"inspect", model.path()}).failed_in_one_line(2));
}

TEST(HostileModels, TheTokenizerHasNoMerges) {
  TinyModel model;
  model.tokenizer["model"].erase("merges");
  expect_refused(model, {"tokenizer.json", "merges"});
}

TEST(HostileModels, TheTokenizerIsMissingOrForAnotherModel) {
  TinyModel none;
  none.tokenizer = nullptr;
  expect_refused(none, {"tokenizer.json"});
  TinyModel small;
  small.config["vocab_size"] = 300;
  small.weights.add("model.embed_tokens.weight", "F32", {300, 32}, TinyModel::noise(9600, 1, 1));
  small.weights.add("lm_head.weight", "F32", {300, 32}, TinyModel::noise(9600, 2, 1));
  expect_refused(small, {});
}

TEST(HostileModels, TheChatTemplateIsUnknown) {
  TinyModel model;
  model.chat_template = "{{ '<<<' + messages[0]['content'] + '>>>' }}";
  expect_refused(model, {"chatml", "llama3", "--chat-format"});
  const Finished raw = program_run({"run", model.path(), "-p", "x", "-n", "1", "--raw"});
  EXPECT_EQ(raw.code, 0) << raw.err;
  const Finished named =
      program_run({"run", model.path(), "-p", "x", "-n", "1", "--chat-format", "chatml"});
  EXPECT_EQ(named.code, 0) << named.err;
}

TEST(HostileModels, TheSettingsOfTheCheckpointAreWrong) {
  TinyModel model;
  model.config["lca"] = {{"group", 0}};
  expect_refused(model, {"group"});
  model.config["lca"] = {{"window", {1, 2, 3}}};
  expect_refused(model, {"window"});
}

TEST(HostileModels, TheAdapterIsForAnotherModel) {
  TinyModel model;
  const std::string adapter =
      std::string(LCA_SOURCE_DIR) + "/tests/golden/models/adapter_llama/adapter";
  const std::string folder =
      std::filesystem::exists(adapter)
          ? adapter
          : std::string(LCA_SOURCE_DIR) + "/tests/golden/models/adapter_llama";
  expect_refused(model, {"adapter"}, {"--adapter", folder});
}

TEST(HostileModels, AGgufFileIsCutOrDamaged) {
  const ScratchFolder folder;
  const std::string source = std::string(LCA_SOURCE_DIR) + "/tests/golden/models/gguf_llama";
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    if (entry.path().extension() == ".gguf") bytes = read_file(entry.path());
  }
  ASSERT_FALSE(bytes.empty());
  const std::string path = (folder / "model.gguf").string();
  const auto logits = [&] {
    return program_run({"logits", path, "--tokens", "1,2", "--out", (folder / "out").string()});
  };
  write_file(path, bytes);
  EXPECT_EQ(logits().code, 0);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{3}, std::size_t{23}, bytes.size() / 3, bytes.size() - 1}) {
    write_file(path, bytes.substr(0, size));
    EXPECT_TRUE(logits().failed_in_one_line(2)) << size;
  }
  // A flipped bit of the header: another meaning or an error, but never a crash.
  for (std::size_t bit = 0; bit < 8 * 256; bit += 37) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write_file(path, damaged);
    const Finished finished = logits();
    EXPECT_TRUE(finished.code == 0 || finished.failed_in_one_line(2))
        << bit << " " << finished.code << finished.err;
  }
}

TEST(HostileModels, WhatIsNotAModelIsRefused) {
  const ScratchFolder folder;
  write_file(folder / "text.txt", "not a model");
  for (const std::string& path :
       {folder.path().string(), (folder / "text.txt").string(), std::string("/nowhere"),
        std::string(""), std::string("no\nsuch\x1b[31mthing"), std::string("/dev/null")}) {
    for (const Words& words : {Words{"run", path, "-p", "x"},
                               {"inspect", path},
                               {"tokenize", path, "--text", "x"},
                               {"chat", path},
                               {"logits", path, "--tokens", "1", "--out", (folder / "o").string()},
                               {"eval", "perplexity", path, "--file", "x", "--length", "2"},
                               {"plan", path, "--length", "1K"}}) {
      const Finished finished = program_run(words);
      EXPECT_TRUE(finished.failed_in_one_line(2)) << words[0] << " " << finished.err;
    }
  }
}

}  // namespace
}  // namespace lca::test
