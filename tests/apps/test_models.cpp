// Commands that report on a model: inspect, tokenize, plan, logits.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "support/worst.h"

#include <gtest/gtest.h>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Finished done(const Words& words) {
  Finished finished = program_run(words);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return finished;
}

json printed(const Words& words) { return json::parse(done(words).out); }

std::string golden(const std::string& name) {
  return std::string(LCA_SOURCE_DIR) + "/tests/golden/models/" + name;
}

TEST(InspectCommand, TellsEveryFact) {
  TinyModel model;
  model.write();
  const json facts = printed({"inspect", model.path(), "--json"});
  EXPECT_EQ(facts["path"], std::filesystem::canonical(model.path()).string());
  EXPECT_EQ(facts["format"], "huggingface");
  EXPECT_EQ(facts["architecture"], "llama");
  EXPECT_EQ(facts["layers"], 2);
  EXPECT_EQ(facts["hidden"], 32);
  EXPECT_EQ(facts["heads"], 2);
  EXPECT_EQ(facts["kv_heads"], 1);
  EXPECT_EQ(facts["head_widths"]["key"], 16);
  EXPECT_EQ(facts["vocabulary"], 807);
  EXPECT_EQ(facts["context"], 256);
  EXPECT_EQ(facts["tied"], false);
  // Embedding and head; a layer: norms, q and o, k and v, the feed-forward; the last norm.
  const std::int64_t parameters = 2 * 807 * 32 + 2 * (64 + 2 * 1024 + 2 * 512 + 3 * 48 * 32) + 32;
  EXPECT_EQ(facts["parameters"], parameters);
  EXPECT_EQ(facts["weight_bytes"], 4 * parameters);
  EXPECT_EQ(facts["weight_types"]["F32"], 21);
  EXPECT_EQ(facts["chat_format"], "chatml");
  EXPECT_NE(facts["tokenizer"].get<std::string>().find("BPE"), std::string::npos);
  EXPECT_EQ(facts["end_tokens"][0], 802);
  EXPECT_TRUE(facts["lca"].is_null());
  EXPECT_EQ(facts["settings"]["sink"], 16);  // training-free
  // Two layers of 32 values in bf16; a group of 16 leaves one entry.
  EXPECT_EQ(facts["cache_bytes_per_1k_tokens"]["dense"], 1024 * 2 * 32 * 2);
  EXPECT_EQ(facts["cache_bytes_per_1k_tokens"]["lca"], 1024 / 16 * 2 * 32 * 2);
  EXPECT_EQ(facts["cache_bytes_at_128k_tokens"]["dense"], 131072 * 2 * 32 * 2);
  EXPECT_LT(facts["cache_bytes_at_128k_tokens"]["lca"],
            facts["cache_bytes_at_128k_tokens"]["dense"]);
}

TEST(InspectCommand, NeedsNeitherTokenizerNorChatFormat) {
  const json facts = printed({"inspect", golden("deepseek_v2"), "--json"});
  EXPECT_EQ(facts["architecture"], "deepseek_v2");
  EXPECT_EQ(facts["attention"], "mla");
  EXPECT_GT(facts["head_widths"]["latent"], 0);
  EXPECT_GT(facts["experts"]["count"], 0);
  EXPECT_TRUE(facts["tokenizer"].is_null());
  EXPECT_NE(facts["tokenizer_error"].get<std::string>().find("tokenizer"), std::string::npos);

  TinyModel strange;
  strange.chat_template = "{{ '<<<' + messages[0]['content'] + '>>>' }}";
  strange.write();
  const json odd = printed({"inspect", strange.path(), "--json"});
  EXPECT_TRUE(odd["chat_format"].is_null());
  EXPECT_NE(odd["chat_format_error"].get<std::string>().find("chatml"), std::string::npos);
}

TEST(InspectCommand, PrintsLines) {
  TinyModel model;
  model.write();
  const std::string out = done({"inspect", model.path()}).out;
  for (const char* part : {"architecture", "llama", "tokenizer", "chat format", "chatml",
                           "cache per 1K tokens", "beyond the window"}) {
    EXPECT_NE(out.find(part), std::string::npos) << part << " is not in\n" << out;
  }
}

TEST(InspectCommand, ACheckpointsOwnSettingsAreTheStart) {
  TinyModel model;
  model.config["lca"] = {{"group", 8}, {"window", json::array({64, 32})}};
  model.write();
  const json own = printed({"inspect", model.path(), "--json"});
  EXPECT_EQ(own["settings"][0]["window"], 64);
  EXPECT_EQ(own["settings"][1]["window"], 32);
  EXPECT_EQ(own["settings"][1]["group"], 8);
  EXPECT_EQ(own["lca"], own["settings"]);
  const json flagged = printed({"inspect", model.path(), "--json", "--window", "16"});
  EXPECT_EQ(flagged["settings"]["window"], 16);
  EXPECT_EQ(flagged["settings"]["group"], 8);
  const json preset = printed({"inspect", model.path(), "--json", "--preset", "paper"});
  EXPECT_EQ(preset["settings"]["group"], 16);
  EXPECT_EQ(preset["settings"]["summary"], "prompt");
}

TEST(TokenizeCommand, GivesIdsAndNothingElse) {
  TinyModel model;
  model.write();
  const std::string out =
      done({"tokenize", model.path(), "--text", "a<|im_start|>b", "--json"}).out;
  const json ids = json::parse(out);
  EXPECT_EQ(ids.size(), 1u);
  ASSERT_EQ(ids["ids"].size(), 3u);
  EXPECT_EQ(ids["ids"][1], 801);
  const json spelled = printed(
      {"tokenize", model.path(), "--text", "a<|im_start|>b", "--json", "--no-parse-special"});
  EXPECT_GT(spelled["ids"].size(), 5u);
  EXPECT_EQ(done({"tokenize", model.path(), "--text", "", "--json"}).out, "{\"ids\":[]}\n");

  write_file(model / "text.txt", "a<|im_start|>b");
  EXPECT_EQ(done({"tokenize", model.path(), "--file", (model / "text.txt").string(), "--json"}).out,
            out);
  EXPECT_EQ(program_run_with((model / "text.txt").string(),
                             {"tokenize", model.path(), "--file", "-", "--json"})
                .out,
            out);
  const std::string lines = done({"tokenize", model.path(), "--text", "a<|im_start|>b"}).out;
  EXPECT_NE(lines.find("801  <|im_start|>\n"), std::string::npos) << lines;
  EXPECT_NE(lines.find("3 tokens\n"), std::string::npos) << lines;
}

TEST(PlanCommand, CountsAModelsOwnLayersAndWeights) {
  TinyModel model;
  model.write();
  const json plan = printed({"plan", model.path(), "--length", "128K", "--json"});
  const json facts = printed({"inspect", model.path(), "--json"});
  EXPECT_EQ(plan["model"], facts["path"]);
  EXPECT_EQ(plan["layers"], 2);
  EXPECT_EQ(plan["dense"]["cache_bytes"], facts["cache_bytes_at_128k_tokens"]["dense"]);
  EXPECT_EQ(plan["lca"]["cache_bytes"], facts["cache_bytes_at_128k_tokens"]["lca"]);
  EXPECT_EQ(plan["lca"]["weights_bytes"], facts["weight_bytes"]);
  EXPECT_EQ(plan["lca"]["hidden_bytes"], 0);
  const json whole =
      printed({"plan", model.path(), "--length", "128K", "--json", "--preset", "paper"});
  EXPECT_EQ(whole["lca"]["hidden_bytes"], 131072 * 32 * 2);
  const std::string table = done({"plan", golden("minicpm3"), "--budget", "1GiB"}).out;
  for (const char* part : {"| weights ", "| cache, all layers ", "longest context in 1.00 GiB"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " is not in\n" << table;
  }
}

/// The tokens of a golden file, as the flag takes them.
std::string tokens_of(const Safetensors& file) {
  const TensorInfo* tokens = file.find("tokens");
  std::string text;
  for (std::size_t i = 0; i < tokens->bytes.size(); i += sizeof(std::int32_t)) {
    std::int32_t id = 0;
    std::memcpy(&id, tokens->bytes.data() + i, sizeof id);
    text += (text.empty() ? "" : ",") + std::to_string(id);
  }
  return text;
}

std::vector<float> floats_of(const TensorInfo& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

void expect_golden(const std::string& model, const std::string& truth, const Words& flags) {
  SCOPED_TRACE(model + " " + truth);
  const ScratchFolder folder;
  const std::string out = (folder / "logits.safetensors").string();
  const Safetensors golden_file = Safetensors::open(golden(model + "/" + truth));
  Words words = {"logits", golden(model), "--tokens", tokens_of(golden_file), "--out", out};
  words.insert(words.end(), flags.begin(), flags.end());
  const Finished finished = done(words);
  EXPECT_TRUE(finished.out.empty());
  EXPECT_EQ(folder.count(), 1u);
  const Safetensors made_file = Safetensors::open(out);
  ASSERT_EQ(made_file.tensors().size(), 1u);
  const TensorInfo* made = made_file.find("logits");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->dtype, TensorType::f32);
  EXPECT_EQ(made->shape, golden_file.find("logits")->shape);
  const std::vector<float> a = floats_of(*made), b = floats_of(*golden_file.find("logits"));
  EXPECT_LT(worst_difference(b, a), 1e-3 * largest(b));
}

TEST(LogitsCommand, AgreesWithTheReferenceOfEveryArchitecture) {
  for (const char* model : {"llama", "qwen2", "deepseek_v2", "minicpm3"}) {
    expect_golden(model, "golden.safetensors", {"--method", "dense"});
  }
}

TEST(LogitsCommand, TakesEveryKnob) {
  expect_golden(
      "llama", "golden_lca_prompt.safetensors",
      {"--method",      "lca",  "--group",           "4",        "--window",          "8",
       "--sink",        "0",    "--summary-queries", "4",        "--summary",         "prompt",
       "--head-reduce", "mean", "--semantic-pool",   "weighted", "--positional-pool", "select",
       "--mass",        "none", "--positions",       "token"});
}

TEST(LogitsCommand, TakesIdsFromAFileInAnyChunks) {
  const ScratchFolder folder;
  write_file(folder / "ids.txt", "1, 2\n3\t4,5\n");
  const auto logits = [&](const Words& more) {
    Words words = {"logits", golden("llama"), "--out", (folder / "out").string()};
    words.insert(words.end(), more.begin(), more.end());
    done(words);
    return read_file(folder / "out");
  };
  const std::string once = logits({"--tokens", "1,2,3,4,5"});
  EXPECT_EQ(logits({"--tokens-file", (folder / "ids.txt").string()}), once);
  const Safetensors file = Safetensors::open(folder / "out");
  EXPECT_EQ(file.find("logits")->shape, (std::vector<std::int64_t>{5, 96}));
  // Chunks sum in another order, so that the last bits may differ.
  const std::vector<float> whole = floats_of(*file.find("logits"));
  EXPECT_EQ(logits({"--tokens", "1,2,3,4,5", "--chunk", "2"}).size(), once.size());
  const Safetensors chunked = Safetensors::open(folder / "out");
  EXPECT_EQ(chunked.find("logits")->shape, file.find("logits")->shape);
  EXPECT_LE(worst_difference(whole, floats_of(*chunked.find("logits"))), 1e-5 * largest(whole));
  // Other tokens give other logits.
  logits({"--tokens", "1,2,3,5,4"});
  EXPECT_GT(worst_difference(whole, floats_of(*Safetensors::open(folder / "out").find("logits"))),
            1e-2 * largest(whole));
}

TEST(LogitsCommand, RefusesWhatIsNoToken) {
  const ScratchFolder folder;
  const std::string out = (folder / "out").string();
  const Words base = {"logits", golden("llama"), "--out", out};
  for (const Words& more : {Words{"--tokens", "1,96"},
                            {"--tokens", "-1"},
                            {"--tokens", "1,x"},
                            {"--tokens", ""},
                            {"--tokens", "99999999999999999999"},
                            {"--tokens", "1.5"},
                            {},
                            {"--tokens", "1", "--tokens-file", "x"},
                            {"--tokens-file", "/nowhere"},
                            {"--tokens", "1", "--precision", "f16"},
                            {"--tokens", "1", "--device", "gpu"},
                            {"--tokens", "1", "--device", "cuda:99"},
                            {"--tokens", "1", "--chunk", "0"},
                            {"--tokens", "1", "--out", "/nowhere/out"},
                            {"--tokens", "1", "--adapter", "/nowhere"}}) {
    Words words = base;
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = program_run(words);
    EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.code << finished.err;
  }
  Words words = base;
  words.insert(words.end(), {"--tokens", "1,96"});
  EXPECT_NE(program_run(words).err.find("\"96\" is not a token of this model; ids go from 0 to 95"),
            std::string::npos);
  EXPECT_TRUE(program_run({"logits", golden("llama"), "--tokens", "1"}).failed_in_one_line(2));
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace lca::test
