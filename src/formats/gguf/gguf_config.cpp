#include "core/error.h"
#include "core/text.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace lca {
namespace {

/// GGUF stores numbers in float32 that were written in decimal: 1e-05 becomes
/// 9.99999975e-06. The shortest decimal that gives the same float32 is the number meant.
double decimal_meant(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  std::array<char, 64> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), narrow);
  double meant = value;
  const auto read = std::from_chars(text.data(), written.ptr, meant);
  return read.ec == std::errc() ? meant : value;
}

class ConfigReader {
 public:
  explicit ConfigReader(const Gguf& file)
      : file_(file), architecture_(file.text("general.architecture")) {}

  ModelConfig read() {
    if (architecture_ == "llama") {
      config_.architecture = Architecture::llama;
    } else if (architecture_ == "qwen2") {
      config_.architecture = Architecture::qwen2;
    } else if (architecture_ == "deepseek2") {
      config_.architecture = Architecture::deepseek_v2;
    } else if (architecture_ == "minicpm3") {
      config_.architecture = Architecture::minicpm3;
    } else {
      fail_input(
          "{}: architecture \"{}\" is not supported; these are: llama, qwen2, deepseek2, minicpm3",
          file_.name(), text_printable(architecture_));
    }
    read_sizes();
    read_attention();
    read_rope();
    if (config_.architecture == Architecture::deepseek_v2) read_experts();
    if (config_.architecture == Architecture::minicpm3) read_scalings();
    read_tensors();
    read_tokens();
    check_nothing_left();
    config_.validate(file_.name());
    return std::move(config_);
  }

 private:
  // --- keys of the architecture, each noted as read ----------------------------------------------

  std::string key(std::string_view suffix) const {
    return architecture_ + "." + std::string(suffix);
  }

  const GgufValue* find(std::string_view suffix) {
    std::string full = key(suffix);
    const GgufValue* value = file_.value(full);
    read_.insert(std::move(full));
    return value;
  }

  bool has(std::string_view suffix) const { return file_.value(key(suffix)) != nullptr; }

  /// An integer from `least` up; a list (one entry a layer) counts where all entries are equal.
  std::int64_t integer(std::string_view suffix, std::optional<std::int64_t> fallback = {},
                       std::int64_t least = 0) {
    const GgufValue* value = find(suffix);
    std::int64_t number = 0;
    if (value != nullptr && value->is_list() && value->kind() == GgufValue::Kind::integer &&
        value->size() > 0) {
      number = value->integer();
      std::size_t equal = 1;
      while (equal < value->size() && value->integer(equal) == number) ++equal;
      if (equal < value->size()) {
        fail_input("{}: key \"{}\" differs from layer to layer, which is not supported",
                   file_.name(), key(suffix));
      }
    } else {
      number = file_.integer(key(suffix), fallback);
    }
    if (number < least || number > std::numeric_limits<std::int32_t>::max()) {
      fail_input("{}: key \"{}\" is {}, not an integer from {} to {}", file_.name(), key(suffix),
                 number, least, std::numeric_limits<std::int32_t>::max());
    }
    return number;
  }

  double number(std::string_view suffix, std::optional<double> fallback = {}) {
    find(suffix);
    return decimal_meant(file_.number(key(suffix), fallback));
  }

  // --- the parts of the configuration ------------------------------------------------------------

  void read_sizes() {
    config_.layers = integer("block_count", {}, 1);
    config_.hidden = integer("embedding_length", {}, 1);
    config_.feed_forward = integer("feed_forward_length", {}, 1);
    config_.context = integer("context_length", {}, 1);
    config_.norm_eps = number("attention.layer_norm_rms_epsilon");
    if (const GgufTensor* embedding = file_.find("token_embd.weight")) {
      config_.vocabulary = embedding->shape.front();
    } else {
      fail_input("{}: {}", file_.name(),
                 file_.tensors().empty()
                     ? "holds no weights, only settings and maybe a vocabulary"
                     : "tensor \"token_embd.weight\" is missing: no whole language model");
    }
  }

  void read_attention() {
    const std::int64_t heads = integer("attention.head_count", {}, 1);
    const std::int64_t kv_heads = integer("attention.head_count_kv", heads, 1);
    const bool latent = config_.architecture == Architecture::deepseek_v2 ||
                        config_.architecture == Architecture::minicpm3;
    if (!latent) {
      const std::int64_t d_key = integer("attention.key_length", config_.hidden / heads, 1);
      const std::int64_t d_value = integer("attention.value_length", config_.hidden / heads, 1);
      config_.attention = AttentionShape::gqa(heads, kv_heads, d_key, d_value);
      config_.rope.width = integer("rope.dimension_count", d_key, 2);
      if (config_.rope.width != d_key) {
        fail_input(
            "{}: key \"{}\" is {}, not the head's width {}: rotating a part of it is not "
            "supported",
            file_.name(), key("rope.dimension_count"), config_.rope.width, d_key);
      }
      return;
    }
    const std::int64_t d_latent = integer("attention.kv_lora_rank", {}, 1);
    const std::int64_t d_rope = integer("rope.dimension_count", {}, 2);
    std::int64_t d_key =
        integer("attention.key_length",
                has("attention.key_length_mla") ? std::optional<std::int64_t>(d_latent + d_rope)
                                                : std::nullopt,
                1);
    std::int64_t d_value = integer("attention.value_length", config_.hidden / heads, 1);
    if (has("attention.key_length_mla")) {
      // The newer form: the plain keys tell the widths in the cache, these the ones of a head.
      d_key = integer("attention.key_length_mla", {}, 1);
      d_value = integer("attention.value_length_mla", {}, 1);
    } else if (kv_heads != heads) {
      fail_input("{}: key \"{}\" is {}, not the {} heads", file_.name(),
                 key("attention.head_count_kv"), kv_heads, heads);
    }
    if (d_key <= d_rope) {
      fail_input("{}: keys of {} values leave nothing beside the {} that are rotated", file_.name(),
                 d_key, d_rope);
    }
    config_.attention = AttentionShape::mla(heads, d_key - d_rope, d_rope, d_latent, d_value);
    config_.latent_norm_eps = kLatentNormEps;
    config_.query_latent = integer("attention.q_lora_rank", 0);
    config_.rope.width = d_rope;
  }

  void read_rope() {
    RopeConfig& rope = config_.rope;
    const bool adjacent = config_.architecture == Architecture::llama ||
                          config_.architecture == Architecture::deepseek_v2;
    rope.layout = adjacent ? RopeLayout::adjacent : RopeLayout::halves;
    rope.base = number("rope.freq_base", 10000.0);
    find("rope.scaling.type");
    const std::string type = file_.text(key("rope.scaling.type"), "linear");
    const double old_factor = number("rope.scale_linear", 0.0);
    double factor = number("rope.scaling.factor", old_factor);
    if (factor == 0) factor = 1;  // as absent
    if (type == "linear") {
      rope.kind = factor == 1 ? RopeKind::standard : RopeKind::linear;
      rope.factor = factor;
    } else if (type == "yarn") {
      read_yarn(factor);
    } else if (type == "longrope" && config_.architecture == Architecture::minicpm3) {
      if (factor != 1) fail_scaling("longrope with a factor");
      if (file_.find("rope_factors_long.weight") == nullptr) {
        fail_input("{}: tensor \"rope_factors_long.weight\" is missing", file_.name());
      }
    } else if (type != "none") {
      fail_scaling(type);
    }
    read_rope_tensors();
  }

  [[noreturn]] void fail_scaling(std::string_view type) const {
    fail_input("{}: key \"{}\": {} is not supported, only none, linear and yarn", file_.name(),
               key("rope.scaling.type"), text_printable(type));
  }

  void read_yarn(double factor) {
    RopeConfig& rope = config_.rope;
    rope.kind = RopeKind::yarn;
    rope.factor = factor;
    rope.original_length = integer("rope.scaling.original_context_length", config_.context, 1);
    rope.beta_fast = number("rope.scaling.yarn_beta_fast", rope.beta_fast);
    rope.beta_slow = number("rope.scaling.yarn_beta_slow", rope.beta_slow);
    if (has("rope.scaling.yarn_attn_factor")) {
      rope.attention_factor = number("rope.scaling.yarn_attn_factor");
    }
    if (config_.architecture != Architecture::deepseek_v2) return;
    // The file holds a tenth of mscale_all_dim and not mscale, which is the same in DeepSeek-V2.
    const double all =
        decimal_meant(static_cast<float>(10 * number("rope.scaling.yarn_log_multiplier", 0.0)));
    if (all == 0) return;
    rope.mscale = rope.mscale_all_dim = all;
    const double mscale = factor > 1 ? 0.1 * all * std::log(factor) + 1 : 1;
    config_.score_scale = mscale * mscale;
  }

  /// A small float32 tensor of width/2 positive numbers.
  std::vector<double> factors(const GgufTensor& tensor) const {
    const std::int64_t count = config_.rope.width / 2;
    if (tensor.type != PackedType::f32 || tensor.shape != std::vector{count}) {
      fail_input("{}: tensor \"{}\" must be F32 [{}]", file_.name(), tensor.name, count);
    }
    std::vector<float> values(static_cast<std::size_t>(count));
    unpack_f32(tensor.type, tensor.bytes.data(), values.data(), count);
    std::vector<double> result;
    for (const float value : values) {
      if (!(value > 0) || !std::isfinite(value)) {
        fail_input("{}: tensor \"{}\" holds {}, not a positive number", file_.name(), tensor.name,
                   value);
      }
      result.push_back(static_cast<double>(value));
    }
    return result;
  }

  void read_rope_tensors() {
    RopeConfig& rope = config_.rope;
    if (const GgufTensor* divisors = file_.find("rope_freqs.weight")) {
      if (rope.kind != RopeKind::standard || config_.architecture != Architecture::llama) {
        fail_input("{}: tensor \"rope_freqs.weight\" is not supported with {} and this scaling",
                   file_.name(), architecture_);
      }
      rope.frequency_divisors = factors(*divisors);
    }
    const GgufTensor* long_factors = file_.find("rope_factors_long.weight");
    const GgufTensor* short_factors = file_.find("rope_factors_short.weight");
    if (long_factors == nullptr && short_factors == nullptr) return;
    if (long_factors == nullptr || short_factors == nullptr) {
      fail_input(
          "{}: of the tensors \"rope_factors_long.weight\" and \"rope_factors_short.weight\""
          " one is missing",
          file_.name());
    }
    if (rope.kind != RopeKind::standard || config_.architecture != Architecture::minicpm3) {
      fail_input(
          "{}: tensor \"rope_factors_long.weight\" is not supported with {} and this scaling",
          file_.name(), architecture_);
    }
    rope.kind = RopeKind::longrope;
    rope.long_factors = factors(*long_factors);
    rope.short_factors = factors(*short_factors);
    rope.original_length = integer("rope.scaling.original_context_length", config_.context, 1);
    rope.factor = static_cast<double>(config_.context) / static_cast<double>(rope.original_length);
    rope.attention_factor = number("rope.scaling.attn_factor", 1.0);
  }

  void read_experts() {
    ExpertConfig& experts = config_.experts;
    experts.dense_layers = integer("leading_dense_block_count", 0);
    experts.count = integer("expert_count", 0);
    experts.width = integer("expert_feed_forward_length", 0);
    experts.shared = integer("expert_shared_count", 0);
    experts.scale = number("expert_weights_scale", 1.0);
    if (experts.scale == 0) experts.scale = 1;  // as absent
    find("expert_weights_norm");
    experts.normalise = file_.boolean(key("expert_weights_norm"), false);
    const std::int64_t gating = integer("expert_gating_func", 1);
    if (gating > 1) {  // 0: not stated
      fail_input("{}: key \"{}\" is {}: only 1 (softmax) is supported, not DeepSeek-V3's router",
                 file_.name(), key("expert_gating_func"), gating);
    }
    if (experts.count == 0) {
      experts = ExpertConfig{};
      return;
    }
    experts.per_token = integer("expert_used_count", {}, 1);
    experts.groups = std::max<std::int64_t>(1, integer("expert_group_count", 1));
    experts.top_groups = std::max<std::int64_t>(1, integer("expert_group_used_count", 1));
    experts.router = experts.groups > 1 ? Router::group_limited : Router::greedy;
    for (const GgufTensor& tensor : file_.tensors()) {
      if (tensor.name.ends_with(".exp_probs_b.bias")) {
        fail_input("{}: tensor \"{}\": routers with a bias (DeepSeek-V3) are not supported",
                   file_.name(), text_printable(tensor.name));
      }
    }
  }

  /// MiniCPM3's scalings, which its files may leave out.
  void read_scalings() {
    constexpr double kEmbedding = 12, kDepth = 1.4, kBaseWidth = 256;
    const auto hidden = static_cast<double>(config_.hidden);
    config_.embedding_scale = number("embedding_scale", kEmbedding);
    config_.residual_scale =
        number("residual_scale", kDepth / std::sqrt(static_cast<double>(config_.layers)));
    config_.logit_divisor = number("logit_scale", hidden / kBaseWidth);
  }

  void read_tensors() {
    const auto in_first_layer = [&](std::string_view name) {
      return file_.find("blk.0." + std::string(name)) != nullptr;
    };
    const bool latent = config_.attention.form == Form::mla;
    config_.tied = file_.find("output.weight") == nullptr;  // the format has no field for it
    config_.qkv_bias = config_.architecture == Architecture::qwen2 ||
                       in_first_layer(latent ? "attn_kv_a_mqa.bias" : "attn_q.bias");
    config_.output_bias = in_first_layer("attn_output.bias");
    config_.mlp_bias = in_first_layer("ffn_up.bias");
    for (const std::string_view name : {"output.bias", "blk.0.attn_qkv.weight",
                                        "blk.0.attn_q_norm.weight", "blk.0.attn_sinks.weight"}) {
      if (file_.find(name) != nullptr) {
        fail_input("{}: tensor \"{}\" is not supported", file_.name(), name);
      }
    }
  }

  std::optional<std::int32_t> token(std::string_view name) const {
    if (file_.value(name) == nullptr) return std::nullopt;
    const std::int64_t id = file_.integer(name);
    if (id < 0 || id >= config_.vocabulary) {
      fail_input("{}: key \"{}\" is {}, not one of the {} tokens", file_.name(), name, id,
                 config_.vocabulary);
    }
    return static_cast<std::int32_t>(id);
  }

  void read_tokens() {
    config_.begin_token = token("tokenizer.ggml.bos_token_id");
    for (const std::string_view name :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      const std::optional<std::int32_t> id = token(name);
      if (id && std::ranges::find(config_.end_tokens, *id) == config_.end_tokens.end()) {
        config_.end_tokens.push_back(*id);
      }
    }
  }

  /// Refuses keys of the architecture that were not read and are not ignored.
  void check_nothing_left() const {
    const std::string prefix = architecture_ + ".";
    std::vector<std::string_view> left;
    for (const auto& [name, value] : file_.values()) {
      if (name.starts_with(prefix) && !read_.contains(name) &&
          !gguf_key_is_ignored(std::string_view(name).substr(prefix.size()), value)) {
        left.push_back(name);
      }
    }
    if (left.empty()) return;
    const std::string_view first = *std::ranges::min_element(left);
    fail_input("{}: key \"{}\" asks for something that is not supported for {}", file_.name(),
               text_printable(first), architecture_);
  }

  const Gguf& file_;
  std::string architecture_;
  ModelConfig config_;
  std::set<std::string> read_;
};

}  // namespace

ModelConfig model_config_from_gguf(const Gguf& file) { return ConfigReader(file).read(); }

}  // namespace lca
