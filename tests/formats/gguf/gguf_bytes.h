#pragma once
/// Hand-made GGUF files, valid and invalid.

#include "ops/packed.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::test {

/// Ids of the value types in the file.
enum class GgufType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  text = 8,
  list = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string gguf_text(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

/// The id of a storage type in the file.
inline std::uint32_t gguf_number(PackedType type) {
  constexpr std::uint32_t kNumbers[] = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14};
  return kNumbers[static_cast<std::size_t>(type)];
}

/// One file, key by key and tensor by tensor; nothing is checked.
class GgufBuilder {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  ///< of the tensors' data; the key is not written
  std::uint64_t more_values = 0, more_tensors = 0;  ///< claimed beyond those in the file

  GgufBuilder& raw_value(std::string_view key, GgufType type, const std::string& bytes) {
    remove(key);
    values_.emplace_back(key, raw(static_cast<std::uint32_t>(type)) + bytes);
    return *this;
  }
  /// A second one of the same name.
  GgufBuilder& again(std::string_view key) {
    values_.emplace_back(key, raw(static_cast<std::uint32_t>(GgufType::u8)) + "\1");
    return *this;
  }
  GgufBuilder& remove(std::string_view key) {
    std::erase_if(values_, [&](const auto& value) { return value.first == key; });
    return *this;
  }
  GgufBuilder& integer(std::string_view key, std::uint32_t value) {
    return raw_value(key, GgufType::u32, raw(value));
  }
  GgufBuilder& number(std::string_view key, float value) {
    return raw_value(key, GgufType::f32, raw(value));
  }
  GgufBuilder& boolean(std::string_view key, bool value) {
    return raw_value(key, GgufType::boolean, value ? std::string("\1") : std::string(1, '\0'));
  }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    return raw_value(key, GgufType::text, gguf_text(value));
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = list_head(GgufType::text, values.size());
    for (const std::string& value : values) bytes += gguf_text(value);
    return raw_value(key, GgufType::list, bytes);
  }
  template <typename T>
  GgufBuilder& list(std::string_view key, GgufType type, const std::vector<T>& values) {
    std::string bytes = list_head(type, values.size());
    for (const T value : values) bytes += raw(value);
    return raw_value(key, GgufType::list, bytes);
  }
  static std::string list_head(GgufType type, std::uint64_t count) {
    return raw(static_cast<std::uint32_t>(type)) + raw(count);
  }

  /// A tensor of a row-major shape; without bytes it holds 1, 2, 3, … in every byte.
  GgufBuilder& tensor(std::string_view name, PackedType type,
                      const std::vector<std::int64_t>& shape, std::string bytes = {}) {
    std::int64_t values = 1;
    for (const std::int64_t dim : shape) values *= dim;
    if (bytes.empty()) {
      bytes.resize(packed_bytes(type, values));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 61 + 1);
    }
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    const std::uint64_t offset = data_.size();
    data_ += bytes;
    return raw_tensor(name, gguf_number(type), {shape.rbegin(), shape.rend()}, offset);
  }
  /// An entry of the table alone; dimensions in the file's order.
  GgufBuilder& raw_tensor(std::string_view name, std::uint32_t type,
                          const std::vector<std::uint64_t>& dimensions, std::uint64_t offset) {
    std::string entry = gguf_text(name) + raw(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t dim : dimensions) entry += raw(dim);
    tensors_.push_back(entry + raw(type) + raw(offset));
    return *this;
  }
  GgufBuilder& floats(std::string_view name, const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += raw(value);
    return tensor(name, PackedType::f32, {static_cast<std::int64_t>(values.size())}, bytes);
  }

  std::string bytes() const {
    std::string file = magic + raw(version) + raw<std::uint64_t>(tensors_.size() + more_tensors) +
                       raw<std::uint64_t>(values_.size() + more_values);
    for (const auto& [key, value] : values_) file += gguf_text(key) + value;
    for (const std::string& entry : tensors_) file += entry;
    if (!tensors_.empty()) {
      file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    }
    return file + data_;
  }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<std::string> tensors_;
  std::string data_;
};

/// The settings every architecture has: 2 layers, width 64, 4 heads.
inline GgufBuilder gguf_model(const std::string& architecture) {
  GgufBuilder file;
  const std::string prefix = architecture + ".";
  file.text("general.architecture", architecture)
      .integer(prefix + "block_count", 2)
      .integer(prefix + "context_length", 128)
      .integer(prefix + "embedding_length", 64)
      .integer(prefix + "feed_forward_length", 96)
      .integer(prefix + "attention.head_count", 4)
      .number(prefix + "attention.layer_norm_rms_epsilon", 1e-5f)
      .tensor("token_embd.weight", PackedType::q8_0, {6, 64})
      .tensor("output_norm.weight", PackedType::f32, {64});
  return file;
}

inline GgufBuilder gguf_llama() {
  GgufBuilder file = gguf_model("llama");
  file.integer("llama.attention.head_count_kv", 2)
      .number("llama.rope.freq_base", 100000.0f)
      .integer("llama.rope.dimension_count", 16)
      .integer("llama.vocab_size", 6)
      .tensor("blk.0.attn_q.weight", PackedType::q4_0, {64, 64})
      .tensor("blk.0.attn_k.weight", PackedType::q4_0, {32, 64});
  return file;
}

/// DeepSeek-V2-Lite's attention and router in the form that converters write now.
inline GgufBuilder gguf_deepseek() {
  GgufBuilder file = gguf_model("deepseek2");
  const std::string p = "deepseek2.";
  file.integer(p + "attention.head_count", 16)
      .integer(p + "attention.head_count_kv", 1)
      .integer(p + "attention.kv_lora_rank", 512)
      .integer(p + "attention.key_length", 576)
      .integer(p + "attention.value_length", 512)
      .integer(p + "attention.key_length_mla", 192)
      .integer(p + "attention.value_length_mla", 128)
      .integer(p + "rope.dimension_count", 64)
      .integer(p + "context_length", 163840)
      .number(p + "rope.freq_base", 10000.0f)
      .text(p + "rope.scaling.type", "yarn")
      .number(p + "rope.scaling.factor", 40.0f)
      .integer(p + "rope.scaling.original_context_length", 4096)
      .number(p + "rope.scaling.yarn_log_multiplier", 0.0707f)
      .number(p + "rope.scaling.yarn_beta_fast", 32.0f)
      .number(p + "rope.scaling.yarn_beta_slow", 1.0f)
      .integer(p + "leading_dense_block_count", 1)
      .integer(p + "expert_count", 4)
      .integer(p + "expert_used_count", 2)
      .integer(p + "expert_feed_forward_length", 32)
      .integer(p + "expert_shared_count", 2)
      .number(p + "expert_weights_scale", 1.0f)
      .integer(p + "expert_gating_func", 1)
      .integer(p + "expert_group_count", 1)
      .integer(p + "expert_group_used_count", 1)
      .integer(p + "vocab_size", 6)
      .number(p + "attention.layer_norm_rms_epsilon", 1e-6f);
  return file;
}

inline GgufBuilder gguf_minicpm() {
  GgufBuilder file = gguf_model("minicpm3");
  const std::string p = "minicpm3.";
  file.integer(p + "attention.head_count_kv", 4)
      .integer(p + "attention.q_lora_rank", 24)
      .integer(p + "attention.kv_lora_rank", 32)
      .integer(p + "attention.key_length", 24)
      .integer(p + "rope.dimension_count", 8)
      .integer(p + "vocab_size", 6)
      .floats("rope_factors_long.weight", {1.5f, 2.0f, 2.5f, 3.0f})
      .floats("rope_factors_short.weight", {1.0f, 1.0f, 1.25f, 1.5f});
  return file;
}

/// The tokenizer's keys, six tokens.
inline GgufBuilder& gguf_add_tokenizer(GgufBuilder& file) {
  return file.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "smollm")
      .texts("tokenizer.ggml.tokens", {"a", "b", "ab", "c", "<|end|>", "<|eot|>"})
      .list<float>("tokenizer.ggml.scores", GgufType::f32, {0, 0, -1, 0, 0, 0})
      .list<std::int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1, 1, 3, 3})
      .texts("tokenizer.ggml.merges", {"a b"})
      .integer("tokenizer.ggml.bos_token_id", 3)
      .integer("tokenizer.ggml.eos_token_id", 4)
      .integer("tokenizer.ggml.eot_token_id", 5)
      .boolean("tokenizer.ggml.add_bos_token", false)
      .text("tokenizer.chat_template", "{{ messages }}");
}

}  // namespace lca::test
