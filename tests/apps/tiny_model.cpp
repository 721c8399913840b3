#include "apps/tiny_model.h"

namespace lca::test {
namespace {

constexpr std::int64_t kHeads = 2, kKvHeads = 1, kHeadWidth = 16, kFeedForward = 48;

}  // namespace

std::vector<double> TinyModel::noise(std::int64_t count, std::uint64_t seed, double size) {
  std::vector<double> values;
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(size * (static_cast<double>(state >> 40) / 8388608.0 - 1));
  }
  return values;
}

TinyModel::TinyModel() {
  config = {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", kHidden},
            {"intermediate_size", kFeedForward},
            {"num_hidden_layers", kLayers},
            {"num_attention_heads", kHeads},
            {"num_key_value_heads", kKvHeads},
            {"head_dim", kHeadWidth},
            {"vocab_size", kVocabulary},
            {"max_position_embeddings", kContext},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"mlp_bias", false},
            {"tie_word_embeddings", false},
            {"bos_token_id", 801},
            {"eos_token_id", 802},
            {"torch_dtype", "float32"}};
  tokenizer = nlohmann::ordered_json::parse(
      read_file(std::string(LCA_SOURCE_DIR) + "/tests/golden/tokenizers/qwen2.json"));
  chat_template =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

  std::uint64_t seed = 1;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                          double size) {
    weights.add(name, "F32", {rows, columns}, noise(rows * columns, seed++, size));
  };
  const auto norm = [&](const std::string& name) {
    weights.add(name, "F32", {kHidden}, std::vector<double>(kHidden, 1.0));
  };
  matrix("model.embed_tokens.weight", kVocabulary, kHidden, 1);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    norm(at + "input_layernorm.weight");
    matrix(at + "self_attn.q_proj.weight", kHeads * kHeadWidth, kHidden, 0.4);
    matrix(at + "self_attn.k_proj.weight", kKvHeads * kHeadWidth, kHidden, 0.4);
    matrix(at + "self_attn.v_proj.weight", kKvHeads * kHeadWidth, kHidden, 0.4);
    matrix(at + "self_attn.o_proj.weight", kHidden, kHeads * kHeadWidth, 0.4);
    norm(at + "post_attention_layernorm.weight");
    matrix(at + "mlp.gate_proj.weight", kFeedForward, kHidden, 0.4);
    matrix(at + "mlp.up_proj.weight", kFeedForward, kHidden, 0.4);
    matrix(at + "mlp.down_proj.weight", kHidden, kFeedForward, 0.4);
  }
  norm("model.norm.weight");
  matrix("lm_head.weight", kVocabulary, kHidden, 0.5);
}

TinyModel& TinyModel::write() {
  write_file(folder_ / "config.json", config.dump());
  write_file(folder_ / "model.safetensors", weights.bytes());
  if (!tokenizer.is_null()) write_file(folder_ / "tokenizer.json", tokenizer.dump());
  nlohmann::ordered_json settings = {{"eos_token", "<|im_end|>"}};
  if (!chat_template.empty()) settings["chat_template"] = chat_template;
  write_file(folder_ / "tokenizer_config.json", settings.dump());
  return *this;
}

}  // namespace lca::test
