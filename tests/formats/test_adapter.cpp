#include "byte_files.h"
#include "formats/adapter.h"
#include "formats/adapter_config.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

namespace lca {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::expect_error;
using test::FileBuilder;
using test::ScratchFolder;
using test::write_file;

constexpr const char* kQ = "base_model.model.model.layers.0.self_attn.q_proj";
constexpr const char* kV = "base_model.model.model.layers.1.self_attn.v_proj";

std::string config_text(const std::string& more = "") {
  return R"({"peft_type":"LORA","base_model_name_or_path":"tiny/model")" +
         (more.find("\"r\"") == std::string::npos ? std::string(",\"r\":2") : "") +
         (more.find("\"lora_alpha\"") == std::string::npos ? ",\"lora_alpha\":4" : "") +
         (more.empty() ? "" : "," + more) + "}";
}

FileBuilder weights(const std::string& dtype = "F32") {
  FileBuilder file;
  file.add(std::string(kQ) + ".lora_A.weight", dtype, {2, 5})
      .add(std::string(kQ) + ".lora_B.weight", dtype, {7, 2})
      .add(std::string(kV) + ".lora_A.weight", dtype, {2, 5})
      .add(std::string(kV) + ".lora_B.weight", dtype, {3, 2});
  return file;
}

/// The bytes must outlive the adapter, so both are kept.
struct Parsed {
  explicit Parsed(const std::string& config, const FileBuilder& file = weights(),
                  std::string_view settings = {})
      : bytes(file.bytes()), adapter(Adapter::parse(config, bytes_of(bytes), settings, 3, "a")) {}
  std::string bytes;
  Adapter adapter;
};

void expect_bad_config(const std::string& more, std::vector<std::string> parts) {
  SCOPED_TRACE(more);
  parts.insert(parts.begin(), "a/adapter_config.json: ");
  expect_error([&] { Parsed(config_text(more)); }, parts);
}

void expect_bad_weights(const FileBuilder& file, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "a/adapter_model.safetensors: ");
  expect_error([&] { Parsed(config_text(), file); }, parts);
}

TEST(Adapter, ReadsPairsInEveryType) {
  for (const auto& [dtype, type] :
       {std::pair("F32", PackedType::f32), std::pair("F16", PackedType::f16),
        std::pair("BF16", PackedType::bf16)}) {
    const Parsed parsed(config_text(), weights(dtype));
    const Adapter& adapter = parsed.adapter;
    EXPECT_EQ(adapter.name(), "a");
    EXPECT_EQ(adapter.base_model(), "tiny/model");
    EXPECT_EQ(adapter.modules().size(), 2u);
    EXPECT_EQ(adapter.parameters(), 10 + 14 + 10 + 6);
    EXPECT_TRUE(adapter.settings().empty());
    const LoraPair* pair = adapter.find("model.layers.1.self_attn.v_proj");
    ASSERT_NE(pair, nullptr);
    EXPECT_EQ(pair->a.type, type);
    EXPECT_EQ(pair->a.rows, 2);
    EXPECT_EQ(pair->a.columns, 5);
    EXPECT_EQ(pair->b.rows, 3);
    EXPECT_EQ(pair->b.columns, 2);
    EXPECT_DOUBLE_EQ(pair->scale, 2);
    EXPECT_EQ(adapter.find("model.layers.1.self_attn.q_proj"), nullptr);
  }
}

TEST(Adapter, NamesMayHoldTheAdaptersOwn) {
  FileBuilder file;
  file.add(std::string(kQ) + ".lora_A.default.weight", "F32", {2, 5})
      .add(std::string(kQ) + ".lora_B.default.weight", "F32", {7, 2});
  EXPECT_NE(Parsed(config_text(), file).adapter.find("model.layers.0.self_attn.q_proj"), nullptr);
  file.add(std::string(kQ) + ".lora_A.weight", "F32", {2, 5});
  expect_bad_weights(file, {"q_proj.lora_A.weight", "two lora_A"});
}

TEST(Adapter, ScalesAreThoseOfPeft) {
  const std::filesystem::path folder =
      std::filesystem::path(LCA_SOURCE_DIR) / "tests/golden/adapter";
  const json scales = json::parse(test::read_file(folder / "scales.json"));
  ASSERT_EQ(scales.size(), 2u);
  for (const auto& [name, modules] : scales.items()) {
    const Adapter adapter = Adapter::open(folder / name, 2);
    EXPECT_EQ(adapter.name(), name);
    EXPECT_EQ(adapter.base_model(), "tiny/llama");
    EXPECT_EQ(adapter.modules().size(), modules.size());
    for (const auto& [module, scale] : modules.items()) {
      const LoraPair* pair = adapter.find(module);
      ASSERT_NE(pair, nullptr) << module;
      EXPECT_NEAR(pair->scale, scale.get<double>(), 1e-12) << module;
    }
  }
}

TEST(Adapter, PatternsMatchTheEndOfAName) {
  const auto value = [](std::string_view pattern, std::string_view module) {
    ModulePatterns patterns;
    patterns.add(pattern, 1, "x");
    return patterns.find(module, 0) == 1;
  };
  EXPECT_TRUE(value("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(value("self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(value("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(value("proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(value("0.self_attn.q_proj", "model.layers.10.self_attn.q_proj"));
  EXPECT_FALSE(value("self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(value("model.layers.0.self_attn.q_proj.x", "q_proj"));
  EXPECT_TRUE(value("self.attn.q_proj", "model.layers.0.self_attn.q_proj"));  // any character
  EXPECT_TRUE(value("[qv]_proj", "a.v_proj"));
  EXPECT_TRUE(value(".*layers\\.[0-3]\\..*", "model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(value(".*layers\\.[0-3]\\..*", "model.layers.12.mlp.up_proj"));
  EXPECT_TRUE(value("^model\\.x", "model.x"));
  EXPECT_FALSE(value("^x", "model.x"));
  EXPECT_TRUE(value("a|b", "model.b"));
}

TEST(Adapter, TheFirstPatternThatMatchesCounts) {
  ModulePatterns patterns;
  patterns.add("zeta", 1, "x");
  patterns.add(".*", 2, "x");
  patterns.add("alpha", 3, "x");
  EXPECT_EQ(patterns.find("a.zeta", 9), 1);
  EXPECT_EQ(patterns.find("a.alpha", 9), 2);
}

TEST(Adapter, PatternsThatExplodeOrAreWrongAreErrors) {
  expect_bad_config(R"("rank_pattern":{"(q":2})", {"rank_pattern", "\"(q\" is no regular"});
  expect_bad_config(R"("rank_pattern":{"(?:(?:[a-z_.0-9]+)+)+[!?]":2})", {"cannot be matched"});
  expect_bad_config(R"("rank_pattern":{")" + std::string(1001, 'x') + "\":2}", {"1000 bytes"});
}

TEST(Adapter, UnsupportedFeaturesAreRefused) {
  for (const char* name : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    expect_bad_config("\"" + std::string(name) + "\":true", {name, "not supported"});
    EXPECT_NO_THROW(Parsed(config_text("\"" + std::string(name) + "\":false")));
  }
  expect_bad_config(R"("bias":"all")", {"bias \"all\""});
  expect_bad_config(R"("modules_to_save":["lm_head"])", {"modules_to_save"});
  expect_bad_config(R"("target_parameters":["x"])", {"target_parameters"});
  expect_bad_config(R"("layer_replication":[[0,4]])", {"layer_replication"});
  expect_bad_config(R"("megatron_config":{"a":1})", {"megatron_config"});
  expect_bad_config(R"("trainable_token_indices":[1])", {"trainable_token_indices"});
  expect_bad_config(R"("alora_invocation_tokens":[1])", {"alora_invocation_tokens"});
  expect_bad_config(R"("init_lora_weights":"pissa_niter_4")", {"pissa_niter_4", "convert"});
  EXPECT_NO_THROW(Parsed(config_text(R"("bias":"none","modules_to_save":null,
      "target_parameters":[],"layer_replication":null,"megatron_config":null,
      "megatron_core":"megatron.core","init_lora_weights":"gaussian","loftq_config":{},
      "target_modules":["q_proj"],"lora_dropout":0.1,"layers_to_transform":null)")));
  for (const char* text : {R"({"peft_type":"IA3"})", R"({"peft_type":"lora"})", R"({"r":2})",
                           R"({"peft_type":null})"}) {
    expect_error([&] { Parsed{text}; }, {"a/adapter_config.json: ", "peft_type"});
  }
}

TEST(Adapter, FieldsOfTheWrongTypeAreNamed) {
  for (const char* value : {"0", "-1", "2.0", "\"2\"", "true", "null", "65537", "[]"}) {
    expect_bad_config(std::string("\"r\":") + value, {"field \"r\" must be an integer"});
  }
  for (const char* value : {"-1", "\"4\"", "true", "null", "{}"}) {
    expect_bad_config(std::string("\"lora_alpha\":") + value, {"lora_alpha"});
  }
  expect_bad_config(R"("use_rslora":1)", {"use_rslora"});
  expect_bad_config(R"("rank_pattern":[])", {"rank_pattern"});
  expect_bad_config(R"("rank_pattern":{"q_proj":0})", {"q_proj"});
  expect_bad_config(R"("rank_pattern":{"q_proj":2,"q_proj":2})", {"appears twice"});
  expect_bad_config(R"("alpha_pattern":{"q_proj":"x"})", {"q_proj"});
  expect_bad_config(R"("x":1,"x":2)", {"appears twice"});
  expect_error([] { Parsed("[]"); }, {"must be an object"});
  expect_error([] { Parsed("{"); }, {"bad JSON"});
}

TEST(Adapter, EveryMatrixHasItsPartner) {
  expect_bad_weights(weights().remove(std::string(kQ) + ".lora_A.weight"),
                     {"layers.0.self_attn.q_proj", "lora_B has no lora_A"});
  expect_bad_weights(weights().remove(std::string(kQ) + ".lora_B.weight"),
                     {"lora_A has no lora_B"});
  expect_bad_weights(FileBuilder(), {"holds no LoRA matrices"});
}

TEST(Adapter, RanksMustAgree) {
  expect_bad_weights(weights().add(std::string(kQ) + ".lora_A.weight", "F32", {3, 5}),
                     {"q_proj", "[3, 5]", "rank 2"});
  expect_bad_weights(weights().add(std::string(kQ) + ".lora_B.weight", "F32", {7, 1}),
                     {"q_proj", "[7, 1]", "rank 2"});
  const FileBuilder wide = weights()
                               .add(std::string(kQ) + ".lora_A.weight", "F32", {3, 5})
                               .add(std::string(kQ) + ".lora_B.weight", "F32", {7, 3});
  const Parsed parsed(
      config_text(R"("rank_pattern":{"q_proj":3},"alpha_pattern":{"v_proj":10},"use_rslora":true)"),
      wide);
  EXPECT_DOUBLE_EQ(parsed.adapter.find("model.layers.0.self_attn.q_proj")->scale,
                   4 / std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(parsed.adapter.find("model.layers.1.self_attn.v_proj")->scale,
                   10 / std::sqrt(2.0));
}

TEST(Adapter, OtherTensorsAreNamed) {
  for (const char* name :
       {"x", "base_model.model.", "base_model.model.weight", "base_model.model..weight",
        "base_model.model.lora_A.weight", "base_model.model.q.weight", "base_model.model.q.lora_A",
        "base_model.model.q.lora_A.bias", "model.q.lora_A.weight",
        "base_model.model.q.lora_A.a.b.weight", "base_model.model.q.lora_A..weight",
        "base_model.model.q.lora_magnitude_vector.weight", "base_model.model.q.lora_AB.weight"}) {
    expect_bad_weights(weights().add(name, "F32", {2, 5}), {name, "is no LoRA matrix"});
  }
  expect_bad_weights(
      weights().add("base_model.model.model.embed_tokens.lora_embedding_A", "F32", {2, 5}),
      {"lora_embedding_A", "embeddings"});
}

TEST(Adapter, TypesShapesAndValuesAreChecked) {
  const std::string name = std::string(kQ) + ".lora_A.weight";
  for (const char* dtype : {"F64", "I32", "I8"}) {
    expect_bad_weights(weights().add(name, dtype, {2, 5}), {name, dtype});
  }
  expect_bad_weights(weights().add(name, "F32", {10}), {name, "matrix"});
  expect_bad_weights(weights().add(name, "F32", {2, 5, 1}), {name, "matrix"});
  expect_bad_weights(weights().add(name, "F32", {2, 0}), {name, "matrix"});
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    for (const char* dtype : {"F32", "BF16"}) {
      expect_bad_weights(weights().add(name, dtype, {2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, bad}),
                         {name, "NaN or infinity"});
    }
  }
  // Stored as integers here: 0x7c00 is infinity, 0x7e00 NaN.
  for (const int bits : {0x7c00, 0x7e00, 0x7c00 - 0x8000, -1}) {
    expect_bad_weights(weights().add(name, "F16", {2, 5}, {static_cast<double>(bits)}),
                       {name, "NaN or infinity"});
  }
  EXPECT_NO_THROW(Parsed(config_text(), weights().add(name, "F16", {2, 5}, {0x7bff})));
}

TEST(Adapter, ReadsTheSettingsItWasTrainedWith) {
  const Parsed parsed(config_text(), weights(), R"({"group":[2,4,8],"window":64})");
  ASSERT_EQ(parsed.adapter.settings().size(), 3u);
  EXPECT_EQ(parsed.adapter.settings()[1].group, 4);
  EXPECT_EQ(parsed.adapter.settings()[2].window, 64);
  expect_error([] { Parsed(config_text(), weights(), R"({"group":[2,4]})"); },
               {"a/lca.json: ", "2 values", "3 layers"});
  expect_error([] { Parsed(config_text(), weights(), "x"); }, {"a/lca.json: bad JSON"});
}

TEST(Adapter, OpensAFolder) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch / "mine";
  const auto open = [&] { return Adapter::open(folder, 3); };
  expect_error(open, {"mine", "no such folder"}, ErrorKind::not_found);
  std::filesystem::create_directory(folder);
  expect_error(open, {"mine", "adapter_config.json"}, ErrorKind::not_found);
  write_file(folder / "adapter_config.json", config_text());
  expect_error(open, {"mine", "adapter_model.safetensors"}, ErrorKind::not_found);
  write_file(folder / "adapter_model.bin", "x");
  expect_error(open, {"mine", "only safetensors are read", "adapter_model.bin"});
  write_file(folder / "adapter_model.safetensors", weights().bytes());
  EXPECT_EQ(open().name(), "mine");
  EXPECT_EQ(Adapter::open(folder / "", 3).name(), "mine");
  EXPECT_TRUE(open().settings().empty());
  write_file(folder / "lca.json", R"({"sink":4})");
  const Adapter adapter = open();  // moved: the mapping must stay valid
  EXPECT_EQ(adapter.settings().at(2).sink, 4);
  const LoraPair& pair = *adapter.find("model.layers.0.self_attn.q_proj");
  float value = 0;
  std::memcpy(&value, pair.a.data + 9 * sizeof value, sizeof value);
  EXPECT_EQ(value, 9);
  write_file(folder / "lca.json", "");
  expect_error(open, {"lca.json: bad JSON"});
  expect_error([&] { Adapter::open(folder / "adapter_config.json", 3); }, {"is not a folder"});
  write_file(folder / "lca.json", "{}");
  write_file(folder / "adapter_model.safetensors", "short");
  expect_error(open, {"adapter_model.safetensors: 5 bytes"});
}

}  // namespace
}  // namespace lca
