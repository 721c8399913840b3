#include "byte_files.h"
#include "formats/model_config.h"

#include <cmath>

namespace lca {
namespace {

using test::expect_error;

ModelConfig config_parse(std::string_view text) {
  return model_config_from_json(text, "config.json");
}

/// A small valid file of `type` with more fields at its end, which must not repeat earlier ones.
std::string small(const std::string& type, const std::string& more = "") {
  std::string text = "{\"model_type\":\"" + type + "\"";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (more.find("\"" + name + "\"") == std::string::npos) text += ",\"" + name + "\":" + value;
  };
  add("hidden_size", "32");
  add("intermediate_size", "48");
  add("num_hidden_layers", "3");
  add("num_attention_heads", "4");
  add("num_key_value_heads", type == "llama" || type == "qwen2" ? "2" : "4");
  add("vocab_size", "100");
  add("max_position_embeddings", "256");
  if (type == "deepseek_v2") {
    add("n_routed_experts", "8");
    add("num_experts_per_tok", "2");
    add("moe_intermediate_size", "16");
  }
  if (type == "minicpm3") add("dim_model_base", "8");
  return text + (more.empty() ? "" : "," + more) + "}";
}

void expect_bad(const std::string& type, const std::string& more, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "config.json: ");
  SCOPED_TRACE(more);
  expect_error([&] { config_parse(small(type, more)); }, parts);
}

const std::vector<std::string> kTypes = {"llama", "qwen2", "deepseek_v2", "minicpm3"};

constexpr const char* kLite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
  "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
  "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
  "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
  "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
  "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
  "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})";

TEST(ConfigJson, ReadsDeepSeekV2Lite) {
  const ModelConfig config = config_parse(kLite);
  EXPECT_EQ(config.architecture, Architecture::deepseek_v2);
  EXPECT_EQ(config.layers, 27);
  EXPECT_EQ(config.hidden, 2048);
  EXPECT_EQ(config.feed_forward, 10944);
  EXPECT_EQ(config.vocabulary, 102400);
  EXPECT_EQ(config.context, 163840);
  EXPECT_EQ(config.attention, named_shape("deepseek-v2-lite").shape);
  EXPECT_EQ(config.query_latent, 0);
  EXPECT_DOUBLE_EQ(config.score_scale, 1.5896261651208736);
  EXPECT_DOUBLE_EQ(config.softmax_scale(), 0.1147213867929261);
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.tied);
  EXPECT_EQ(config.rope.kind, RopeKind::yarn);
  EXPECT_EQ(config.rope.layout, RopeLayout::adjacent);
  EXPECT_EQ(config.rope.width, 64);
  EXPECT_EQ(config.rope.factor, 40);
  EXPECT_EQ(config.rope.original_length, 4096);
  EXPECT_EQ(config.rope.mscale, 0.707);
  EXPECT_EQ(config.experts.count, 64);
  EXPECT_EQ(config.experts.per_token, 6);
  EXPECT_EQ(config.experts.width, 1408);
  EXPECT_EQ(config.experts.shared, 2);
  EXPECT_EQ(config.experts.dense_layers, 1);
  EXPECT_EQ(config.experts.router, Router::greedy);
  EXPECT_FALSE(config.experts.normalise);
  EXPECT_EQ(config.end_tokens, std::vector<std::int32_t>{100001});
  EXPECT_EQ(config.begin_token, 100000);
  EXPECT_TRUE(config.lca.empty());
}

TEST(ConfigJson, ReadsMiniCpm3FromItsDefaultsAndItsLists) {
  std::string factors = "1";
  for (int i = 1; i < 16; ++i) factors += "," + std::to_string(1 + i) + ".5";
  const ModelConfig config = config_parse(
      R"({"model_type":"minicpm3","eos_token_id":[2,73440],"rope_scaling":{"type":"longrope",
        "original_max_position_embeddings":32768,"short_factor":[)" +
      factors + R"(],"long_factor":[)" + factors + "]}}");
  EXPECT_EQ(config.layers, 62);
  EXPECT_EQ(config.hidden, 2560);
  EXPECT_EQ(config.attention, named_shape("minicpm3").shape);
  EXPECT_EQ(config.query_latent, 768);
  EXPECT_DOUBLE_EQ(config.softmax_scale(), 0.10206207261596575);
  EXPECT_DOUBLE_EQ(config.residual_scale, 0.1778001778002667);
  EXPECT_DOUBLE_EQ(config.logit_divisor, 10);
  EXPECT_DOUBLE_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.latent_norm_eps, 1e-6);
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(config.rope.kind, RopeKind::longrope);
  EXPECT_EQ(config.rope.layout, RopeLayout::halves);
  EXPECT_EQ(config.rope.factor, 1);
  EXPECT_EQ(config.rope.short_factors.size(), 16u);
  EXPECT_EQ(config.rope.long_factors[3], 4.5);
  EXPECT_EQ(config.end_tokens, (std::vector<std::int32_t>{2, 73440}));
}

TEST(ConfigJson, ReadsQwen2WithItsBiasesAndAWindowThatIsOff) {
  const ModelConfig config = config_parse(R"({"model_type":"qwen2","bos_token_id":151643,
    "eos_token_id":151643,"hidden_act":"silu","hidden_size":3584,"intermediate_size":18944,
    "max_position_embeddings":131072,"max_window_layers":28,"num_attention_heads":28,
    "num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":10000,
    "sliding_window":4096,"use_mrope":false,"use_sliding_window":false,"vocab_size":152064})");
  EXPECT_EQ(config.attention, named_shape("qwen-7b").shape);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.output_bias || config.mlp_bias);
  EXPECT_EQ(config.rope.kind, RopeKind::standard);
  EXPECT_EQ(config.rope.width, 128);
}

TEST(ConfigJson, AnEmptyLlamaIsLlama2) {
  const ModelConfig config = config_parse(R"({"model_type":"llama"})");
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.attention, AttentionShape::gqa(32, 32, 128, 128));
  EXPECT_EQ(config.vocabulary, 32000);
  EXPECT_EQ(config.context, 2048);
  EXPECT_EQ(config.rope.base, 10000);
  EXPECT_EQ(config.begin_token, 1);
  EXPECT_EQ(config.end_tokens, std::vector<std::int32_t>{2});
}

TEST(ConfigJson, BothSpellingsOfTransformersMeanTheSame) {
  const ModelConfig older = config_parse(small(
      "llama", R"("rope_theta":500000.0,"torch_dtype":"float16","rope_scaling":{"type":"llama3",
      "factor":8,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":64})"));
  const ModelConfig newer = config_parse(
      small("llama", R"("dtype":"float16","rope_parameters":{"rope_type":"llama3","rope_theta":5e5,
      "factor":8.0,"low_freq_factor":1,"high_freq_factor":4,
      "original_max_position_embeddings":64})"));
  for (const ModelConfig& config : {older, newer}) {
    EXPECT_EQ(config.rope.kind, RopeKind::llama3);
    EXPECT_EQ(config.rope.base, 500000);
    EXPECT_EQ(config.rope.factor, 8);
    EXPECT_EQ(config.rope.original_length, 64);
    EXPECT_EQ(config.rope.high_frequency_factor, 4);
  }
}

TEST(ConfigJson, RopeKindsTakeTheirDefaults) {
  EXPECT_EQ(config_parse(small("llama", R"("rope_scaling":null)")).rope.kind, RopeKind::standard);
  EXPECT_EQ(config_parse(small("llama", R"("rope_scaling":{},"rope_parameters":{"rope_theta":7})"))
                .rope.base,
            7);
  const RopeConfig linear =
      config_parse(small("llama", R"("rope_scaling":{"type":"linear","factor":4})")).rope;
  EXPECT_EQ(linear.kind, RopeKind::linear);
  EXPECT_EQ(linear.factor, 4);
  const RopeConfig dynamic =
      config_parse(small("llama", R"("rope_scaling":{"rope_type":"dynamic","factor":2})")).rope;
  EXPECT_EQ(dynamic.original_length, 256);
  const RopeConfig yarn =
      config_parse(small("qwen2", R"("rope_scaling":{"rope_type":"yarn","factor":null,"beta_fast":0,
      "original_max_position_embeddings":64})"))
          .rope;
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_EQ(yarn.beta_fast, 32);
  EXPECT_TRUE(yarn.truncate);
  const RopeConfig outside =
      config_parse(
          small("llama",
                R"("original_max_position_embeddings":32,"rope_scaling":{"rope_type":"yarn",
      "factor":2,"original_max_position_embeddings":64,"truncate":false})"))
          .rope;
  EXPECT_EQ(outside.original_length, 32);
  EXPECT_FALSE(outside.truncate);
}

TEST(ConfigJson, OtherArchitecturesAreRefusedByName) {
  for (const char* type : {"mistral", "qwen3", "", "LLAMA", "deepseek_v3"}) {
    expect_error([&] { config_parse(small(type)); },
                 {"config.json: model_type", type, "llama, qwen2, deepseek_v2, minicpm3"});
  }
  expect_error([] { config_parse("{}"); }, {"\"model_type\" is missing"});
  expect_error([] { config_parse(R"({"model_type":7})"); }, {"model_type", "a text, not 7"});
}

TEST(ConfigJson, UnsupportedFeaturesAreRefused) {
  for (const std::string& type : kTypes) {
    expect_bad(type, R"("hidden_act":"gelu")", {"hidden_act \"gelu\""});
    expect_bad(type, R"("use_sliding_window":true)", {"use_sliding_window"});
    expect_bad(type, R"("quantization_config":{"bits":4})", {"quantization_config"});
    expect_bad(type, R"("partial_rotary_factor":0.5)", {"partial_rotary_factor 0.5"});
    expect_bad(type, R"("layer_types":["full_attention","sliding_attention","full_attention"])",
               {"layer_types", "sliding_attention"});
    expect_bad(type, R"("layer_types":["full_attention"])", {"1 values", "3 layers"});
    expect_bad(type, R"("rope_scaling":{"rope_type":"mrope"})", {"rope_type \"mrope\""});
    expect_bad(type,
               R"("rope_parameters":{"rope_type":"yarn","partial_rotary_factor":0.25,"factor":2})",
               {"partial_rotary_factor 0.25"});
    expect_bad(type, R"("rope_parameters":{"full_attention":{"rope_type":"default"}})",
               {"full_attention"});
    EXPECT_NO_THROW(config_parse(small(type, R"("hidden_act":"swish","partial_rotary_factor":1.0,
        "pretraining_tp":4,"attention_dropout":0.5,"quantization_config":null,"anything":[{}])")));
  }
  expect_bad("llama", R"("sliding_window":4096)", {"sliding_window 4096"});
  expect_bad("qwen2", R"("use_mrope":true)", {"use_mrope"});
  expect_bad("deepseek_v2", R"("scoring_func":"sigmoid")", {"scoring_func \"sigmoid\""});
  expect_bad("deepseek_v2", R"("topk_method":"noaux_tc")", {"topk_method \"noaux_tc\""});
  expect_bad("deepseek_v2", R"("topk_method":null)", {"topk_method null"});
  expect_bad("deepseek_v2", R"("moe_layer_freq":2)", {"moe_layer_freq 2"});
  expect_bad("deepseek_v2", R"("num_key_value_heads":2)", {"num_key_value_heads 2", "4"});
}

TEST(ConfigJson, FieldsOfTheWrongTypeAreNamed) {
  for (const std::string& type : kTypes) {
    for (const char* name : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                             "num_attention_heads", "max_position_embeddings"}) {
      for (const char* value :
           {"\"32\"", "true", "32.0", "-1", "0", "null", "4294967296", "18446744073709551616"}) {
        expect_bad(type, "\"" + std::string(name) + "\":" + value,
                   {"field \"" + std::string(name) + "\" must be an integer", value});
      }
      expect_bad(type, "\"" + std::string(name) + "\":[1]", {name, "a list"});
      expect_bad(type, "\"" + std::string(name) + "\":{}", {name, "an object"});
      expect_bad(type, "\"" + std::string(name) + "\":1e999", {name, "out of range"});
    }
    for (const char* value : {"\"x\"", "true", "-1e-6", "0", "null", "[]"}) {
      expect_bad(type, std::string("\"rms_norm_eps\":") + value, {"rms_norm_eps"});
    }
    expect_bad(type, R"("tie_word_embeddings":1)", {"tie_word_embeddings", "true or false, not 1"});
    for (const char* value : {"-1", "1.5", "\"2\"", "[2,-1]", "[[2]]", "{}", "2147483648", "100"}) {
      expect_bad(type, std::string("\"eos_token_id\":") + value, {"eos_token_id"});
    }
    expect_bad(type, R"("bos_token_id":[1])", {"bos_token_id"});
    expect_bad(type, R"("rope_theta":"10000")", {"rope_theta"});
    expect_bad(type, R"("rope_theta":1)", {"rope_theta"});
    expect_bad(type, R"("rope_scaling":[])", {"rope_scaling", "an object"});
    expect_bad(type, R"("rope_scaling":{"type":4})", {"type"});
    expect_bad(type, R"("a":1,"a":1)", {"field \"a\" appears twice"});
  }
}

TEST(ConfigJson, RopeFieldsThatAreMissingOrWrongAreNamed) {
  const auto bad = [](const std::string& rope, std::vector<std::string> parts) {
    expect_bad("llama", "\"rope_scaling\":{" + rope + "}", std::move(parts));
  };
  bad(R"("type":"linear")", {"needs field \"factor\""});
  bad(R"("type":"yarn")", {"needs field \"factor\""});
  bad(R"("type":"linear","factor":0)", {"factor"});
  bad(R"("type":"linear","factor":1e7)", {"factor"});
  bad(R"("type":"yarn","factor":2,"mscale_all_dim":1e300)", {"mscale_all_dim"});
  bad(R"("type":"yarn","factor":2,"mscale":-1)", {"mscale"});
  bad(R"("type":"linear","factor":"2")", {"factor"});
  bad(R"("type":"dynamic","factor":0.5)", {"factor 0.5"});
  bad(R"("type":"llama3","factor":2)", {"low_freq_factor"});
  bad(R"("type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":4)",
      {"high_freq_factor 4 must be above"});
  bad(R"("type":"longrope","factor":2,"short_factor":[1,1,1,1])", {"long_factor"});
  bad(R"("type":"longrope","short_factor":[1,1,1],"long_factor":[1,1,1,1])",
      {"short_factor must hold 4 numbers", "3"});
  bad(R"("type":"longrope","short_factor":[1,1,1,0],"long_factor":[1,1,1,1])", {"short_factor"});
  bad(R"("type":"longrope","short_factor":[1,1,1,"1"],"long_factor":[1,1,1,1])",
      {"short_factor", "list of numbers"});
  bad(R"("type":"yarn","factor":2,"original_max_position_embeddings":64.0)",
      {"original_max_position_embeddings"});
  bad(R"("type":"yarn","factor":2,"original_max_position_embeddings":1)",
      {"original_max_position_embeddings"});
  bad(R"("type":"yarn","factor":2,"truncate":1)", {"truncate"});
}

TEST(ConfigJson, HeadWidthsFollowTheFile) {
  EXPECT_EQ(config_parse(small("llama", R"("head_dim":16)")).attention,
            AttentionShape::gqa(4, 2, 16, 16));
  EXPECT_EQ(config_parse(small("llama", R"("head_dim":null)")).attention,
            AttentionShape::gqa(4, 2, 8, 8));
  EXPECT_EQ(config_parse(small("llama", R"("num_key_value_heads":null)")).attention.kv_heads, 4);
  expect_bad("llama", R"("num_attention_heads":6)", {"hidden_size 32", "num_attention_heads 6"});
  expect_bad("llama", R"("num_key_value_heads":3)", {"4 query heads", "3 KV heads"});
  expect_bad("llama", R"("head_dim":7)", {"width 7 is odd"});
  EXPECT_NO_THROW(config_parse(small("qwen2", R"("num_attention_heads":6,"head_dim":8)")));
}

TEST(ConfigJson, BiasesGoWhereEachArchitectureHasThem) {
  const ModelConfig llama =
      config_parse(small("llama", R"("attention_bias":true,"mlp_bias":true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig mla = config_parse(small("deepseek_v2", R"("attention_bias":true)"));
  EXPECT_TRUE(mla.qkv_bias && mla.output_bias);
  EXPECT_FALSE(mla.mlp_bias);
}

TEST(ConfigJson, ExpertsAreChecked) {
  const ModelConfig grouped = config_parse(
      small("deepseek_v2", R"("topk_method":"group_limited_greedy","n_group":4,"topk_group":2,
      "routed_scaling_factor":16,"first_k_dense_replace":9)"));
  EXPECT_EQ(grouped.experts.router, Router::group_limited);
  EXPECT_EQ(grouped.experts.groups, 4);
  EXPECT_EQ(grouped.experts.top_groups, 2);
  EXPECT_EQ(grouped.experts.scale, 16);
  EXPECT_FALSE(grouped.experts.normalise);
  const ModelConfig normalised =
      config_parse(small("deepseek_v2", R"("routed_scaling_factor":16,"norm_topk_prob":true)"));
  EXPECT_TRUE(normalised.experts.normalise);
  EXPECT_EQ(normalised.experts.scale, 1);
  EXPECT_EQ(grouped.experts.dense_layers, 3);
  EXPECT_EQ(config_parse(small("deepseek_v2", R"("n_routed_experts":null)")).experts.count, 0);
  EXPECT_EQ(
      config_parse(small("deepseek_v2", R"("n_group":null,"topk_group":null)")).experts.groups, 1);
  expect_bad("deepseek_v2", R"("num_experts_per_tok":null)", {"num_experts_per_tok"});
  expect_bad("deepseek_v2", R"("num_experts_per_tok":9)", {"from 1 to 8, not 9"});
  expect_bad("deepseek_v2", R"("n_routed_experts":5000)", {"the number of experts"});
  expect_bad("deepseek_v2", R"("topk_method":"group_limited_greedy")", {"n_group"});
  expect_bad("deepseek_v2", R"("topk_method":"group_limited_greedy","n_group":3,"topk_group":1)",
             {"8 experts do not split into 3 groups"});
  expect_bad("deepseek_v2", R"("topk_method":"group_limited_greedy","n_group":4,"topk_group":5)",
             {"groups kept"});
  expect_bad("deepseek_v2", R"("topk_method":"group_limited_greedy","n_group":8,"topk_group":1)",
             {"2 experts a token"});
}

TEST(ConfigJson, MiniCpm3ScalesMayBeTurnedOff) {
  const ModelConfig config =
      config_parse(small("minicpm3", R"("scale_depth":null,"dim_model_base":null,"scale_emb":1)"));
  EXPECT_EQ(config.residual_scale, 1);
  EXPECT_EQ(config.logit_divisor, 1);
  EXPECT_EQ(config.attention.d_value, 8);
}

TEST(ConfigJson, NumbersBeyondAnyModelAreRefused) {
  expect_bad("llama", R"("num_hidden_layers":10001)", {"layers must be from 1 to 10000"});
  expect_bad("llama", R"("hidden_size":1048580)", {"the hidden width"});
  expect_bad("llama", R"("vocab_size":16777217)", {"the vocabulary"});
  expect_bad("llama", R"("num_attention_heads":8192,"num_key_value_heads":1,"head_dim":2)",
             {"attention heads"});
  expect_bad("llama", R"("hidden_size":1048576,"num_attention_heads":4096,"head_dim":1048576)",
             {"would hold more than"});
}

TEST(ConfigJson, ReadsTheSettingsOfTheCheckpoint) {
  const ModelConfig config = config_parse(
      small("llama", R"("lca":{"group":8,"window":[64,128,256],"method":["dense","lca","lca"]})"));
  ASSERT_EQ(config.lca.size(), 3u);
  EXPECT_EQ(config.lca[0].method, MethodKind::dense);
  EXPECT_EQ(config.lca[1].window, 128);
  EXPECT_EQ(config.lca[2].group, 8);
  expect_bad("llama", R"("lca":{"window":[1,2]})",
             {"lca: field \"window\" has 2 values", "3 layers"});
  expect_bad("llama", R"("lca":{"grop":1})", {"lca: unknown field \"grop\""});
  expect_bad("llama", R"("lca":{"group":1,"group":1})", {"lca: field \"group\" appears twice"});
  expect_bad("llama", R"("lca":[])", {"lca", "an object"});
  EXPECT_TRUE(config_parse(small("llama", R"("lca":null)")).lca.empty());
}

TEST(ConfigJson, TextThatIsNoObjectIsAnError) {
  for (const char* text : {"", "{", "{\"model_type\"}", "nul", "\xff"}) {
    expect_error([&] { config_parse(text); }, {"config.json: bad JSON"});
  }
  for (const char* text : {"[]", "1", "null", "\"llama\""}) {
    expect_error([&] { config_parse(text); }, {"config.json: must be an object"});
  }
  const std::string deep(200'000, '[');
  expect_error([&] { config_parse("{\"model_type\":\"llama\",\"x\":" + deep); }, {"bad JSON"});
  expect_error(
      [&] {
        config_parse("{\"model_type\":\"llama\",\"eos_token_id\":" + deep +
                     std::string(200'000, ']') + "}");
      },
      {"eos_token_id"});
}

TEST(ConfigJson, ArchitecturesAndRopeKindsHaveTheirNames) {
  EXPECT_EQ(architecture_name(Architecture::minicpm3), "minicpm3");
  EXPECT_EQ(architecture_name(Architecture::qwen2), "qwen2");
  EXPECT_EQ(rope_kind_name(RopeKind::standard), "default");
  EXPECT_EQ(rope_kind_name(RopeKind::llama3), "llama3");
}

}  // namespace
}  // namespace lca
