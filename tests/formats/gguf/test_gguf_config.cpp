#include "formats/byte_files.h"
#include "formats/gguf/gguf.h"
#include "gguf_bytes.h"
#include "support/test_data.h"

#include <cmath>

namespace lca {
namespace {

using test::bytes_of;
using test::expect_error;
using test::GgufBuilder;
using test::GgufType;

ModelConfig config_of(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  return model_config_from_gguf(Gguf::parse(bytes_of(bytes), "x.gguf"));
}

void expect_refused(const GgufBuilder& file, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "x.gguf: ");
  expect_error([&] { config_of(file); }, parts);
}

TEST(GgufConfig, OfLlamaHasAdjacentPairsAndDecimalNumbers) {
  GgufBuilder file = test::gguf_llama();
  const ModelConfig config = config_of(test::gguf_add_tokenizer(file));
  EXPECT_EQ(config.architecture, Architecture::llama);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.feed_forward, 96);
  EXPECT_EQ(config.vocabulary, 6);
  EXPECT_EQ(config.context, 128);
  EXPECT_EQ(config.norm_eps, 1e-5);  // not the float32 next to it
  EXPECT_EQ(config.attention, AttentionShape::gqa(4, 2, 16, 16));
  EXPECT_EQ(config.rope.kind, RopeKind::standard);
  EXPECT_EQ(config.rope.layout, RopeLayout::adjacent);
  EXPECT_EQ(config.rope.width, 16);
  EXPECT_EQ(config.rope.base, 100000);
  EXPECT_TRUE(config.tied);
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias);
  EXPECT_EQ(config.end_tokens, (std::vector<std::int32_t>{4, 5}));
  EXPECT_EQ(config.begin_token, 3);
  EXPECT_EQ(config.experts.count, 0);
  EXPECT_EQ(config.score_scale, 1);
}

TEST(GgufConfig, NormsOfLatentsHaveTheirOwnEpsWhateverTheFileSays) {
  // MiniCPM3-4B's file says 1e-5, and its own code takes 1e-6 for these two norms.
  GgufBuilder minicpm = test::gguf_minicpm();
  minicpm.number("minicpm3.attention.layer_norm_rms_epsilon", 1e-2f);
  EXPECT_EQ(config_of(minicpm).norm_eps, 1e-2);
  EXPECT_EQ(config_of(minicpm).latent_norm_eps, 1e-6);
  GgufBuilder deepseek = test::gguf_deepseek();
  deepseek.number("deepseek2.attention.layer_norm_rms_epsilon", 1e-2f);
  EXPECT_EQ(config_of(deepseek).latent_norm_eps, 1e-6);
}

TEST(GgufConfig, SeesBiasesAndTheHeadByTheirTensors) {
  GgufBuilder file = test::gguf_llama();
  file.tensor("blk.0.attn_q.bias", PackedType::f32, {64})
      .tensor("blk.0.attn_output.bias", PackedType::f32, {64})
      .tensor("blk.0.ffn_up.bias", PackedType::f32, {96})
      .tensor("output.weight", PackedType::f16, {6, 64});
  const ModelConfig config = config_of(file);
  EXPECT_TRUE(config.qkv_bias && config.output_bias && config.mlp_bias);
  EXPECT_FALSE(config.tied);
}

TEST(GgufConfig, OfLlama3KeepsTheDivisorsOfItsFrequencies) {
  GgufBuilder file = test::gguf_llama();
  file.floats("rope_freqs.weight", {1, 1, 1, 1, 2, 4, 8, 8});
  EXPECT_EQ(config_of(file).rope.frequency_divisors, (std::vector<double>{1, 1, 1, 1, 2, 4, 8, 8}));
  GgufBuilder few = test::gguf_llama();
  few.floats("rope_freqs.weight", {1, 1});
  expect_refused(few, {"tensor \"rope_freqs.weight\" must be F32 [8]"});
  GgufBuilder zero = test::gguf_llama();
  zero.floats("rope_freqs.weight", {1, 1, 1, 1, 2, 4, 8, 0});
  expect_refused(zero, {"\"rope_freqs.weight\" holds 0, not a positive number"});
  GgufBuilder both = file;
  both.number("llama.rope.scaling.factor", 2);
  expect_refused(both, {"\"rope_freqs.weight\" is not supported"});
}

TEST(GgufConfig, ReadsRopeScaling) {
  GgufBuilder file = test::gguf_llama();
  file.text("llama.rope.scaling.type", "none");
  EXPECT_EQ(config_of(file).rope.kind, RopeKind::standard);
  file.text("llama.rope.scaling.type", "linear").number("llama.rope.scaling.factor", 4);
  EXPECT_EQ(config_of(file).rope.kind, RopeKind::linear);
  EXPECT_EQ(config_of(file).rope.factor, 4);
  file.text("llama.rope.scaling.type", "yarn")
      .integer("llama.rope.scaling.original_context_length", 32)
      .number("llama.rope.scaling.yarn_attn_factor", 1.25f);
  const ModelConfig yarn = config_of(file);
  EXPECT_EQ(yarn.rope.kind, RopeKind::yarn);
  EXPECT_EQ(yarn.rope.factor, 4);
  EXPECT_EQ(yarn.rope.original_length, 32);
  EXPECT_EQ(yarn.rope.attention_factor, 1.25);
  EXPECT_EQ(yarn.score_scale, 1);
  for (const char* type : {"longrope", "dynamic", "su"}) {
    file.text("llama.rope.scaling.type", type);
    expect_refused(file, {"\"llama.rope.scaling.type\": " + std::string(type)});
  }
  GgufBuilder old = test::gguf_llama();
  old.number("llama.rope.scale_linear", 2);
  EXPECT_EQ(config_of(old).rope.kind, RopeKind::linear);
}

TEST(GgufConfig, OfQwen2HasHalvesAndBiases) {
  GgufBuilder file = test::gguf_model("qwen2");
  file.integer("qwen2.attention.head_count_kv", 1).number("qwen2.rope.freq_base", 1e6f);
  const ModelConfig config = config_of(file);
  EXPECT_EQ(config.architecture, Architecture::qwen2);
  EXPECT_EQ(config.rope.layout, RopeLayout::halves);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_EQ(config.attention, AttentionShape::gqa(4, 1, 16, 16));
  EXPECT_EQ(config.rope.base, 1e6);
}

void expect_deepseek(const ModelConfig& config) {
  EXPECT_EQ(config.architecture, Architecture::deepseek_v2);
  EXPECT_EQ(config.attention, AttentionShape::mla(16, 128, 64, 512, 128));
  EXPECT_EQ(config.query_latent, 0);
  EXPECT_EQ(config.rope.kind, RopeKind::yarn);
  EXPECT_EQ(config.rope.layout, RopeLayout::adjacent);
  EXPECT_EQ(config.rope.width, 64);
  EXPECT_EQ(config.rope.factor, 40);
  EXPECT_EQ(config.rope.original_length, 4096);
  // cos and sin keep their size, the scores do not: DeepSeek-V2-Lite's published scale.
  EXPECT_EQ(config.rope.mscale, 0.707);
  EXPECT_EQ(config.rope.mscale_all_dim, 0.707);
  EXPECT_FALSE(config.rope.attention_factor.has_value());
  EXPECT_NEAR(config.softmax_scale(), 0.1147213867929261, 1e-15);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.latent_norm_eps, 1e-6);
  EXPECT_EQ(config.experts.count, 4);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.width, 32);
  EXPECT_EQ(config.experts.shared, 2);
  EXPECT_EQ(config.experts.dense_layers, 1);
  EXPECT_EQ(config.experts.router, Router::greedy);
  EXPECT_FALSE(config.experts.normalise);
  EXPECT_EQ(config.experts.scale, 1);
}

TEST(GgufConfig, OfDeepseek2IsTheSameInTheOldAndTheNewForm) {
  GgufBuilder file = test::gguf_deepseek();
  expect_deepseek(config_of(file));
  file.remove("deepseek2.attention.key_length_mla")
      .remove("deepseek2.attention.value_length_mla")
      .remove("deepseek2.expert_gating_func")
      .remove("deepseek2.expert_group_count")
      .remove("deepseek2.expert_group_used_count")
      .integer("deepseek2.attention.head_count_kv", 16)
      .integer("deepseek2.attention.key_length", 192)
      .integer("deepseek2.attention.value_length", 128);
  expect_deepseek(config_of(file));
  file.integer("deepseek2.attention.head_count_kv", 8);
  expect_refused(file, {"\"deepseek2.attention.head_count_kv\" is 8, not the 16 heads"});
}

TEST(GgufConfig, OfDeepseek2ReadsGroupsAndQueryLatents) {
  GgufBuilder file = test::gguf_deepseek();
  file.integer("deepseek2.expert_group_count", 2)
      .integer("deepseek2.expert_group_used_count", 1)
      .integer("deepseek2.attention.q_lora_rank", 48)
      .number("deepseek2.expert_weights_scale", 2.5f)
      .boolean("deepseek2.expert_weights_norm", true);
  const ModelConfig config = config_of(file);
  EXPECT_EQ(config.experts.router, Router::group_limited);
  EXPECT_EQ(config.experts.groups, 2);
  EXPECT_EQ(config.experts.top_groups, 1);
  EXPECT_EQ(config.query_latent, 48);
  EXPECT_EQ(config.experts.scale, 2.5);
  EXPECT_TRUE(config.experts.normalise);
}

TEST(GgufConfig, OfDeepseek2RefusesDeepseekV3) {
  GgufBuilder file = test::gguf_deepseek();
  file.integer("deepseek2.expert_gating_func", 2);
  expect_refused(file, {"\"deepseek2.expert_gating_func\" is 2", "only 1 (softmax)"});
  GgufBuilder bias = test::gguf_deepseek();
  bias.tensor("blk.1.exp_probs_b.bias", PackedType::f32, {4});
  expect_refused(bias, {"tensor \"blk.1.exp_probs_b.bias\""});
  GgufBuilder narrow = test::gguf_deepseek();
  narrow.integer("deepseek2.attention.key_length_mla", 64);
  expect_refused(narrow, {"keys of 64 values leave nothing beside the 64 that are rotated"});
}

TEST(GgufConfig, OfMinicpm3HasItsScalingsAndLongRope) {
  const ModelConfig config = config_of(test::gguf_minicpm());
  EXPECT_EQ(config.architecture, Architecture::minicpm3);
  EXPECT_EQ(config.attention, AttentionShape::mla(4, 16, 8, 32, 16));
  EXPECT_EQ(config.query_latent, 24);
  EXPECT_EQ(config.rope.kind, RopeKind::longrope);
  EXPECT_EQ(config.rope.layout, RopeLayout::halves);
  EXPECT_EQ(config.rope.base, 10000);
  EXPECT_EQ(config.rope.original_length, 128);
  EXPECT_EQ(config.rope.factor, 1);
  EXPECT_EQ(config.rope.attention_factor, 1);
  EXPECT_EQ(config.rope.long_factors, (std::vector<double>{1.5, 2, 2.5, 3}));
  EXPECT_EQ(config.rope.short_factors, (std::vector<double>{1, 1, 1.25, 1.5}));
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_DOUBLE_EQ(config.residual_scale, 1.4 / std::sqrt(2.0));
  EXPECT_EQ(config.logit_divisor, 0.25);

  GgufBuilder told = test::gguf_minicpm();
  told.number("minicpm3.embedding_scale", 2)
      .number("minicpm3.residual_scale", 0.5f)
      .number("minicpm3.logit_scale", 4);
  EXPECT_EQ(config_of(told).embedding_scale, 2);
  EXPECT_EQ(config_of(told).residual_scale, 0.5);
  EXPECT_EQ(config_of(told).logit_divisor, 4);
}

TEST(GgufConfig, NeedsBothListsOfLongRope) {
  GgufBuilder file = test::gguf_model("minicpm3");
  file.integer("minicpm3.attention.q_lora_rank", 24)
      .integer("minicpm3.attention.kv_lora_rank", 32)
      .integer("minicpm3.attention.key_length", 24)
      .integer("minicpm3.rope.dimension_count", 8);
  EXPECT_EQ(config_of(file).rope.kind, RopeKind::standard);
  GgufBuilder named = file;
  named.text("minicpm3.rope.scaling.type", "longrope");
  expect_refused(named, {"tensor \"rope_factors_long.weight\" is missing"});
  file.floats("rope_factors_short.weight", {1, 1, 1, 1});
  expect_refused(file, {"rope_factors_long.weight", "one is missing"});
  GgufBuilder llama = test::gguf_llama();
  llama.floats("rope_factors_short.weight", {1}).floats("rope_factors_long.weight", {1});
  expect_refused(llama, {"\"rope_factors_long.weight\" is not supported with llama"});
}

TEST(GgufConfig, RefusesOtherArchitectures) {
  for (const char* name : {"gemma", "qwen2moe", "", "Llama"}) {
    GgufBuilder file = test::gguf_llama();
    file.text("general.architecture", name);
    expect_refused(file, {"architecture \"" + std::string(name) + "\" is not supported",
                          "llama, qwen2, deepseek2, minicpm3"});
  }
  GgufBuilder none = test::gguf_llama();
  none.remove("general.architecture");
  expect_refused(none, {"key \"general.architecture\" is missing"});
}

TEST(GgufConfig, RefusesUnsupportedFeatures) {
  const auto refuse = [](const std::string& key, const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder file = test::gguf_llama();
    change(file);
    expect_refused(file, {"key \"llama." + key + "\" asks for something"});
  };
  refuse("attention.sliding_window",
         [](auto& f) { f.integer("llama.attention.sliding_window", 4096); });
  refuse("expert_count", [](auto& f) { f.integer("llama.expert_count", 8); });
  refuse("attn_logit_softcapping", [](auto& f) { f.number("llama.attn_logit_softcapping", 50); });
  refuse("final_logit_softcapping", [](auto& f) { f.number("llama.final_logit_softcapping", 30); });
  refuse("logit_scale", [](auto& f) { f.number("llama.logit_scale", 16); });
  refuse("attention.causal", [](auto& f) { f.boolean("llama.attention.causal", false); });
  refuse("invention", [](auto& f) { f.integer("llama.invention", 0); });
  refuse("rope.scaling.attn_factor",
         [](auto& f) { f.number("llama.rope.scaling.attn_factor", 2); });

  GgufBuilder idle = test::gguf_llama();
  idle.integer("llama.attention.sliding_window", 0)
      .integer("llama.expert_count", 0)
      .number("llama.final_logit_softcapping", 0)
      .text("llama.tensor_data_layout", "Meta AI original pth")
      .integer("llama.expert_used_count", 0)
      .boolean("llama.attention.causal", true)
      .integer("another.invention", 1);
  EXPECT_EQ(config_of(idle).layers, 2);

  GgufBuilder norm = test::gguf_llama();
  norm.tensor("blk.0.attn_q_norm.weight", PackedType::f32, {16});
  expect_refused(norm, {"tensor \"blk.0.attn_q_norm.weight\" is not supported"});
}

TEST(GgufConfig, RefusesNumbersThatAreMissingOrWrong) {
  const auto with = [](const std::function<void(GgufBuilder&)>& change,
                       const std::vector<std::string>& parts) {
    GgufBuilder file = test::gguf_llama();
    change(file);
    expect_refused(file, parts);
  };
  for (const char* key :
       {"block_count", "embedding_length", "feed_forward_length", "context_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    with([&](auto& f) { f.remove(std::string("llama.") + key); },
         {"key \"llama." + std::string(key) + "\" is missing"});
  }
  with([](auto& f) { f.integer("llama.block_count", 0); }, {"\"llama.block_count\" is 0"});
  with([](auto& f) { f.integer("llama.block_count", 4294967295u); }, {"is 4294967295, not"});
  with([](auto& f) { f.text("llama.block_count", "2"); }, {"is a text, not an integer"});
  with([](auto& f) { f.number("llama.attention.layer_norm_rms_epsilon", -1); }, {"epsilon"});
  with([](auto& f) { f.number("llama.attention.layer_norm_rms_epsilon", NAN); }, {"not finite"});
  with([](auto& f) { f.integer("llama.rope.dimension_count", 8); }, {"is 8, not the head's width"});
  with([](auto& f) { f.integer("llama.attention.head_count_kv", 3); }, {});
  with([](auto& f) { f.integer("tokenizer.ggml.eos_token_id", 6); }, {"not one of the 6 tokens"});
  with(
      [](auto& f) {
        f.template list<std::uint32_t>("llama.attention.head_count_kv", GgufType::u32, {2, 1});
      },
      {"\"llama.attention.head_count_kv\" differs from layer to layer"});
  GgufBuilder even = test::gguf_llama();
  even.list<std::uint32_t>("llama.attention.head_count_kv", GgufType::u32, {2, 2});
  EXPECT_EQ(config_of(even).attention.kv_heads, 2);

  GgufBuilder empty;
  empty.text("general.architecture", "llama")
      .integer("llama.block_count", 2)
      .integer("llama.context_length", 128)
      .integer("llama.embedding_length", 64)
      .integer("llama.feed_forward_length", 96)
      .number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  expect_refused(empty, {"holds no weights"});
  empty.tensor("output_norm.weight", PackedType::f32, {64});
  expect_refused(empty, {"tensor \"token_embd.weight\" is missing"});
}

TEST(GgufConfig, OfTheRealModelIsWhatItPublishes) {
  const auto path = test::smollm2_path();
  if (!path) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is not in $LCA_HOME or ~/.cache/lca";
  const Gguf file = Gguf::open(*path);
  const ModelConfig config = model_config_from_gguf(file);
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.hidden, 576);
  EXPECT_EQ(config.vocabulary, 49152);
  EXPECT_EQ(config.attention, AttentionShape::gqa(9, 3, 64, 64));
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope.base, 100000);
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(config.end_tokens, std::vector<std::int32_t>{2});
  EXPECT_EQ(file.tensors().size(), 272u);
  EXPECT_EQ(gguf_tokenizer_tables(file).tokens.size(), 49152u);
}

}  // namespace
}  // namespace lca
