#pragma once
/// Checkpoints of DeepSeek-V2's kind with random weights, written to a folder of the test's own.

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "formats/byte_files.h"
#include "support/random.h"

namespace lca::test {

/// Attention is DeepSeek-V2-Lite's with fewer heads, so that the same kernels run.
struct RandomMoe {
  const char* name = "";
  std::int64_t hidden = 512;
  std::int64_t layers = 3;  ///< the first is dense
  std::int64_t heads = 4;
  std::int64_t query_latent = 0;
  std::int64_t experts = 64, per_token = 6, width = 192, shared = 2;
  std::int64_t groups = 0, top_groups = 0;  ///< 0: no groups
  std::int64_t vocabulary = 512;
  double head_size = 1;  ///< standard deviation of logits, about

  static constexpr std::int64_t kNope = 128, kRope = 64, kValue = 128, kLatent = 512;
};

class RandomCheckpoint {
 public:
  explicit RandomCheckpoint(const RandomMoe& shape) : shape_(shape) {
    const std::int64_t hidden = shape.hidden;
    matrix("model.embed_tokens", shape.vocabulary, hidden, std::sqrt(double(hidden)));
    for (std::int64_t i = 0; i < shape.layers; ++i) layer(i);
    vector("model.norm", hidden);
    matrix("lm_head", shape.vocabulary, hidden, shape.head_size);
    write_file(folder_ / "model.safetensors", safetensors_bytes(header_ + "}", data_));
    data_.clear();
    config_write();
  }

  std::string path() const { return folder_.path(); }

 private:
  /// Products of normed rows with it are about `size` large.
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns, double size = 1) {
    tensor(name, fmt::format("{},{}", rows, columns), rows * columns,
           [&, factor = size / std::sqrt(double(columns))] { return factor * bell(); });
  }
  void vector(const std::string& name, std::int64_t count) {
    tensor(name, fmt::format("{}", count), count, [&] { return 1 + 0.1 * bell(); });
  }
  /// About normal, of variance 1: tens of millions are drawn.
  double bell() {
    const std::uint64_t bits = random_.bits();
    double sum = 0;
    for (int i = 0; i < 64; i += 16) sum += static_cast<double>((bits >> i) & 0xffff);
    return (sum * 0x1p-16 - 2) * std::sqrt(3.0);
  }
  template <typename Value>
  void tensor(const std::string& name, const std::string& shape, std::int64_t count,
              const Value& value) {
    if (header_.size() > 1) header_ += ",";
    const std::size_t begin = data_.size();
    data_.resize(begin + static_cast<std::size_t>(count) * sizeof(bf16_bits));
    for (std::size_t i = begin; i < data_.size(); i += sizeof(bf16_bits)) {
      const bf16_bits bits = bf16_from_f32(static_cast<float>(value()));
      std::memcpy(data_.data() + i, &bits, sizeof bits);
    }
    header_ += fmt::format(R"("{}.weight":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                           name, shape, begin, data_.size());
  }

  void layer(std::int64_t index) {
    const std::string module = fmt::format("model.layers.{}.", index);
    const std::string attention = module + "self_attn.";
    const std::int64_t hidden = shape_.hidden;
    const std::int64_t queries = shape_.heads * (RandomMoe::kNope + RandomMoe::kRope);
    vector(module + "input_layernorm", hidden);
    if (shape_.query_latent > 0) {
      matrix(attention + "q_a_proj", shape_.query_latent, hidden);
      vector(attention + "q_a_layernorm", shape_.query_latent);
      matrix(attention + "q_b_proj", queries, shape_.query_latent);
    } else {
      matrix(attention + "q_proj", queries, hidden);
    }
    matrix(attention + "kv_a_proj_with_mqa", RandomMoe::kLatent + RandomMoe::kRope, hidden);
    vector(attention + "kv_a_layernorm", RandomMoe::kLatent);
    matrix(attention + "kv_b_proj", shape_.heads * (RandomMoe::kNope + RandomMoe::kValue),
           RandomMoe::kLatent);
    matrix(attention + "o_proj", hidden, shape_.heads * RandomMoe::kValue);
    vector(module + "post_attention_layernorm", hidden);
    const auto feed_forward = [&](const std::string& name, std::int64_t width) {
      matrix(name + ".gate_proj", width, hidden);
      matrix(name + ".up_proj", width, hidden);
      matrix(name + ".down_proj", hidden, width, 2);
    };
    if (index == 0) {
      feed_forward(module + "mlp", 2 * hidden);
      return;
    }
    matrix(module + "mlp.gate", shape_.experts, hidden);
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      feed_forward(fmt::format("{}mlp.experts.{}", module, e), shape_.width);
    }
    feed_forward(module + "mlp.shared_experts", shape_.shared * shape_.width);
  }

  void config_write() const {
    const bool grouped = shape_.groups > 0;
    const auto or_null = [](std::int64_t value) {
      return value > 0 ? std::to_string(value) : std::string("null");
    };
    write_file(
        folder_ / "config.json",
        fmt::format(
            R"({{"architectures":["DeepseekV2ForCausalLM"],"model_type":"deepseek_v2",)"
            R"("hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},)"
            R"("num_attention_heads":{},"num_key_value_heads":{},"vocab_size":{},)"
            R"("kv_lora_rank":{},"q_lora_rank":{},"qk_nope_head_dim":{},"qk_rope_head_dim":{},)"
            R"("v_head_dim":{},"first_k_dense_replace":1,"moe_intermediate_size":{},)"
            R"("n_routed_experts":{},"n_shared_experts":{},"num_experts_per_tok":{},)"
            R"("n_group":{},"topk_group":{},"topk_method":"{}","norm_topk_prob":false,)"
            R"("routed_scaling_factor":4.0,"hidden_act":"silu","rms_norm_eps":1e-06,)"
            R"("max_position_embeddings":4096,"rope_theta":10000.0,"attention_bias":false,)"
            R"("tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":2}})",
            shape_.hidden, 2 * shape_.hidden, shape_.layers, shape_.heads, shape_.heads,
            shape_.vocabulary, RandomMoe::kLatent, or_null(shape_.query_latent), RandomMoe::kNope,
            RandomMoe::kRope, RandomMoe::kValue, shape_.width, shape_.experts, shape_.shared,
            shape_.per_token, or_null(shape_.groups), or_null(shape_.top_groups),
            grouped ? "group_limited_greedy" : "greedy"));
  }

  RandomMoe shape_;
  ScratchFolder folder_;
  Random random_{4711};
  std::string header_ = "{", data_;
};

}  // namespace lca::test
