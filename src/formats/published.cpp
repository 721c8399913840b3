#include "formats/published.h"

#include <lca/shape.h>

#include <array>

#include "core/error.h"

namespace lca {
namespace {

struct Published {
  std::string_view name;
  std::string_view config;  // what config.json says, as far as we read it
};

constexpr std::array kPublished = {
    Published{"deepseek-v2-lite", R"({
      "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
      "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
      "vocab_size": 102400, "max_position_embeddings": 163840, "rms_norm_eps": 1e-06,
      "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "first_k_dense_replace": 1, "moe_intermediate_size": 1408,
      "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
      "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
      "norm_topk_prob": false, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
      "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096},
      "attention_bias": false, "hidden_act": "silu", "tie_word_embeddings": false,
      "bos_token_id": 100000, "eos_token_id": 100001})"},
    Published{"minicpm3", R"({
      "model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400,
      "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40,
      "vocab_size": 73448, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
      "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
      "v_head_dim": 64, "rope_theta": 10000.0, "scale_emb": 12, "scale_depth": 1.4,
      "dim_model_base": 256, "hidden_act": "silu", "tie_word_embeddings": true,
      "bos_token_id": 1, "eos_token_id": [2, 73440]})"},
    Published{"qwen-7b", R"({
      "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
      "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
      "vocab_size": 152064, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
      "rope_theta": 10000, "use_sliding_window": false, "hidden_act": "silu",
      "tie_word_embeddings": false, "bos_token_id": 151643, "eos_token_id": 151643})"},
    Published{"smollm2", R"({
      "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
      "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
      "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
      "rope_theta": 100000, "hidden_act": "silu", "tie_word_embeddings": true,
      "bos_token_id": 1, "eos_token_id": 2})"},
};

}  // namespace

ModelConfig published_config(std::string_view name) {
  for (const Published& model : kPublished) {
    if (model.name == name) return model_config_from_json(model.config, name);
  }
  named_shape(name);  // throws with the list of names
  fail_internal("the shape {} has no configuration", name);
}

}  // namespace lca
