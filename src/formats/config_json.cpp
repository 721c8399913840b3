#include "core/error.h"
#include "core/text.h"
#include "formats/config_rope.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/settings_json.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <limits>

namespace lca {
namespace {

constexpr std::array kArchitectures = {Architecture::llama, Architecture::qwen2,
                                       Architecture::deepseek_v2, Architecture::minicpm3};
constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

/// What transformers assumes where a file says nothing; it leaves such fields out when it saves.
struct Defaults {
  std::int64_t vocabulary, hidden, feed_forward, layers, heads, context;
  double norm_eps;
  bool tied;
  std::optional<std::int32_t> begin, end;
};

const Defaults& defaults_of(Architecture architecture) {
  static const Defaults llama = {32000, 4096, 11008, 32, 32, 2048, 1e-6, false, 1, 2};
  static const Defaults qwen2 = {151936, 4096, 22016, 32, 32, 32768, 1e-6, false, {}, {}};
  static const Defaults deepseek = {102400, 4096, 11008, 32, 32, 2048, 1e-6, false, 1, 2};
  static const Defaults minicpm3 = {73448, 2560, 6400, 62, 40, 32768, 1e-5, true, 1, 2};
  switch (architecture) {
    case Architecture::llama:
      return llama;
    case Architecture::qwen2:
      return qwen2;
    case Architecture::deepseek_v2:
      return deepseek;
    case Architecture::minicpm3:
      break;
  }
  return minicpm3;
}

std::int64_t count_read(const JsonFields& fields, std::string_view name, std::int64_t fallback) {
  return fields.integer(name, fallback, 1, kLargest);
}

std::optional<std::int64_t> count_if(const JsonFields& fields, std::string_view name) {
  return fields.integer_if(name, 1, kLargest);
}

Architecture architecture_read(const JsonFields& fields) {
  const std::optional<std::string> type = fields.text_if("model_type");
  std::vector<std::string_view> names;
  for (const Architecture architecture : kArchitectures) {
    names.push_back(architecture_name(architecture));
    if (type == names.back()) return architecture;
  }
  if (!type) {
    fail_input("{}: field \"model_type\" is missing; supported are {}", fields.where(),
               fmt::join(names, ", "));
  }
  fail_input("{}: model_type \"{}\" is not supported; these are: {}", fields.where(),
             text_printable(*type), fmt::join(names, ", "));
}

/// The switches of a file that would change the computation in ways we do not do.
void unsupported_refuse(const JsonFields& fields, Architecture architecture, std::int64_t layers) {
  if (fields.has("quantization_config")) {
    fail_input(
        "{}: quantization_config is not supported; use the unquantized checkpoint or a GGUF file",
        fields.where());
  }
  const std::optional<std::string> act = fields.text_if("hidden_act");
  if (act && *act != "silu" && *act != "swish") {
    fail_input("{}: hidden_act \"{}\" is not supported, only silu", fields.where(),
               text_printable(*act));
  }
  if (fields.boolean_if("use_sliding_window").value_or(false)) {
    fail_input("{}: use_sliding_window true is not supported", fields.where());
  }
  // qwen2 files name a width that use_sliding_window turns off.
  const std::optional<std::int64_t> sliding = fields.integer_if("sliding_window", 0, kLargest);
  if (architecture != Architecture::qwen2 && sliding.value_or(0) != 0) {
    fail_input("{}: sliding_window {} is not supported", fields.where(), *sliding);
  }
  if (fields.boolean_if("use_mrope").value_or(false)) {
    fail_input("{}: use_mrope true is not supported", fields.where());
  }
  if (const std::optional<std::vector<JsonScalar>> types = fields.list_if("layer_types")) {
    for (const JsonScalar& type : *types) {
      if (type.kind != JsonScalar::Kind::text || type.text != "full_attention") {
        fail_input("{}: layer_types holds {}, only \"full_attention\" is supported", fields.where(),
                   type.describe());
      }
    }
    if (static_cast<std::int64_t>(types->size()) != layers) {
      fail_input("{}: layer_types has {} values, but there are {} layers", fields.where(),
                 types->size(), layers);
    }
  }
}

std::int32_t token_check(const JsonFields& fields, std::string_view name, const JsonScalar& value) {
  if (value.kind != JsonScalar::Kind::integer || value.integer < 0 || value.integer > kLargest) {
    fail_input("{}: field \"{}\" must hold token ids, not {}", fields.where(), name,
               value.describe());
  }
  return static_cast<std::int32_t>(value.integer);
}

void tokens_read(ModelConfig& config, const JsonFields& fields, const Defaults& defaults) {
  config.begin_token = defaults.begin;
  if (const JsonField* field = fields.find("bos_token_id"); field != nullptr) {
    config.begin_token.reset();
    if (field->kind != JsonField::Kind::scalar) fields.fail(*field, "a token id");
    if (!field->is_null()) config.begin_token = token_check(fields, field->name, field->scalar);
  }
  if (defaults.end) config.end_tokens = {*defaults.end};
  if (const JsonField* field = fields.find("eos_token_id"); field != nullptr) {
    config.end_tokens.clear();
    if (field->kind == JsonField::Kind::object) fields.fail(*field, "token ids");
    if (field->kind == JsonField::Kind::list) {
      const std::vector<JsonScalar> items = *fields.list_if(field->name);
      for (const JsonScalar& item : items) {
        config.end_tokens.push_back(token_check(fields, field->name, item));
      }
    } else if (!field->is_null()) {
      config.end_tokens.push_back(token_check(fields, field->name, field->scalar));
    }
  }
}

/// Keys and values per head (llama, qwen2).
void grouped_read(ModelConfig& config, const JsonFields& fields, std::int64_t heads) {
  // qwen2's class says 32 where the field is absent, its number of heads by default.
  const std::int64_t absent =
      config.architecture == Architecture::qwen2 && fields.find("num_key_value_heads") == nullptr
          ? 32
          : heads;
  const std::int64_t kv_heads = count_if(fields, "num_key_value_heads").value_or(absent);
  std::optional<std::int64_t> width = count_if(fields, "head_dim");
  if (!width) {
    if (config.hidden % heads != 0) {
      fail_input(
          "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no "
          "head_dim",
          fields.where(), config.hidden, heads);
    }
    width = config.hidden / heads;
  }
  config.attention = AttentionShape::gqa(heads, kv_heads, *width, *width);
  config.rope = rope_config_from_json(fields, *width, config.context);
  if (config.architecture == Architecture::qwen2) {
    config.qkv_bias = true;
    return;
  }
  config.qkv_bias = config.output_bias = fields.boolean("attention_bias", false);
  config.mlp_bias = fields.boolean("mlp_bias", false);
}

/// YaRN's temperature, which transformers applies in MLA for every kind of stretching.
double score_scale_of(const RopeConfig& rope) {
  const double scale = rope.mscale_all_dim.value_or(0);
  if (scale == 0 || rope.factor <= 1) return 1;
  const double mscale = 0.1 * scale * std::log(rope.factor) + 1;
  return mscale * mscale;
}

/// A shared latent (deepseek_v2, minicpm3).
void latent_read(ModelConfig& config, const JsonFields& fields, std::int64_t heads) {
  const bool is_minicpm3 = config.architecture == Architecture::minicpm3;
  const auto pick = [is_minicpm3](std::int64_t deepseek, std::int64_t minicpm3) {
    return is_minicpm3 ? minicpm3 : deepseek;
  };
  const std::int64_t latent = count_read(fields, "kv_lora_rank", pick(512, 256));
  const std::int64_t nope = count_read(fields, "qk_nope_head_dim", pick(128, 64));
  const std::int64_t rope = count_read(fields, "qk_rope_head_dim", pick(64, 32));
  const std::int64_t value = is_minicpm3
                                 ? count_if(fields, "v_head_dim").value_or(config.hidden / heads)
                                 : count_read(fields, "v_head_dim", 128);
  config.query_latent = fields.find("q_lora_rank") == nullptr
                            ? pick(1536, 768)
                            : count_if(fields, "q_lora_rank").value_or(0);
  const std::int64_t kv_heads = count_if(fields, "num_key_value_heads").value_or(heads);
  if (kv_heads != heads) {
    fail_input("{}: num_key_value_heads {} must equal num_attention_heads {} in this architecture",
               fields.where(), kv_heads, heads);
  }
  config.attention = AttentionShape::mla(heads, nope, rope, latent, value);
  config.rope = rope_config_from_json(fields, rope, config.context);
  config.rope.layout = is_minicpm3 ? RopeLayout::halves : RopeLayout::adjacent;
  config.score_scale = score_scale_of(config.rope);
  config.latent_norm_eps = kLatentNormEps;
  config.qkv_bias = config.output_bias = fields.boolean("attention_bias", false);
  config.mlp_bias = fields.boolean("mlp_bias", false);
}

void experts_read(ModelConfig& config, const JsonFields& fields) {
  ExpertConfig& experts = config.experts;
  const std::optional<std::string> scoring = fields.text_if("scoring_func");
  if (scoring && *scoring != "softmax") {
    fail_input("{}: scoring_func \"{}\" is not supported, only softmax", fields.where(),
               text_printable(*scoring));
  }
  if (const std::int64_t every = fields.integer("moe_layer_freq", 1, 1, kLargest); every != 1) {
    fail_input("{}: moe_layer_freq {} is not supported, only 1", fields.where(), every);
  }
  // The original code has null for a model without experts.
  experts.count = fields.find("n_routed_experts") == nullptr
                      ? 64
                      : fields.integer_if("n_routed_experts", 0, kLargest).value_or(0);
  experts.dense_layers =
      std::min(fields.integer("first_k_dense_replace", 0, 0, kLargest), config.layers);
  if (experts.count == 0) return;
  const std::optional<std::int64_t> per_token = count_if(fields, "num_experts_per_tok");
  if (!per_token) fail_input("{}: field \"num_experts_per_tok\" is missing", fields.where());
  experts.per_token = *per_token;
  experts.width = count_read(fields, "moe_intermediate_size", 1407);
  experts.shared = fields.find("n_shared_experts") == nullptr
                       ? 2
                       : fields.integer_if("n_shared_experts", 0, kLargest).value_or(0);
  experts.normalise = fields.boolean_if("norm_topk_prob").value_or(false);
  experts.scale = fields.number("routed_scaling_factor", 1, kSmallestPositive);
  // The model's own code either normalises or scales.
  if (experts.normalise) experts.scale = 1;

  const JsonField* method = fields.find("topk_method");
  const std::string name =
      method == nullptr ? "greedy" : fields.text_if("topk_method").value_or("");
  const std::optional<std::int64_t> groups = count_if(fields, "n_group");
  const std::optional<std::int64_t> top_groups = count_if(fields, "topk_group");
  if (name == "greedy") return;  // groups have no meaning then
  if (name != "group_limited_greedy") {
    fail_input("{}: topk_method {} is not supported; these are: greedy, group_limited_greedy",
               fields.where(), method->describe());
  }
  if (!groups || !top_groups) {
    fail_input("{}: topk_method group_limited_greedy needs the numbers n_group and topk_group",
               fields.where());
  }
  experts.router = Router::group_limited;
  experts.groups = *groups;
  experts.top_groups = *top_groups;
}

/// The scalings of MiniCPM3; null turns one off.
void scales_read(ModelConfig& config, const JsonFields& fields) {
  config.embedding_scale = fields.number("scale_emb", 12, kSmallestPositive);
  const double root = std::sqrt(static_cast<double>(config.layers));
  const double depth = fields.find("scale_depth") == nullptr
                           ? 1.4
                           : fields.number_if("scale_depth", kSmallestPositive).value_or(root);
  config.residual_scale = depth / root;
  const std::int64_t base = fields.find("dim_model_base") == nullptr
                                ? 256
                                : count_if(fields, "dim_model_base").value_or(config.hidden);
  config.logit_divisor = static_cast<double>(config.hidden) / static_cast<double>(base);
}

}  // namespace

ModelConfig model_config_from_json(std::string_view text, std::string_view where) {
  const JsonFields fields = JsonFields::parse(text, where);
  ModelConfig config;
  config.architecture = architecture_read(fields);
  const Defaults& defaults = defaults_of(config.architecture);
  config.layers = count_read(fields, "num_hidden_layers", defaults.layers);
  config.hidden = count_read(fields, "hidden_size", defaults.hidden);
  config.feed_forward = count_read(fields, "intermediate_size", defaults.feed_forward);
  config.vocabulary = count_read(fields, "vocab_size", defaults.vocabulary);
  config.context = count_read(fields, "max_position_embeddings", defaults.context);
  config.norm_eps = fields.number("rms_norm_eps", defaults.norm_eps, kSmallestPositive);
  const std::optional<bool> tied = fields.boolean_if("tie_word_embeddings");
  config.tied = tied.value_or(defaults.tied);
  config.head_stated = tied == false;
  const std::int64_t heads = count_read(fields, "num_attention_heads", defaults.heads);
  unsupported_refuse(fields, config.architecture, config.layers);
  tokens_read(config, fields, defaults);

  switch (config.architecture) {
    case Architecture::llama:
    case Architecture::qwen2:
      grouped_read(config, fields, heads);
      break;
    case Architecture::deepseek_v2:
      latent_read(config, fields, heads);
      experts_read(config, fields);
      break;
    case Architecture::minicpm3:
      latent_read(config, fields, heads);
      scales_read(config, fields);
      break;
  }
  config.validate(where);  // before anything is made for each layer
  if (const JsonField* lca = fields.find("lca"); lca != nullptr && !lca->is_null()) {
    if (lca->kind != JsonField::Kind::object) fields.fail(*lca, "an object");
    config.lca = settings_layers_from_json(lca->text, fmt::format("{}: lca", where), config.layers);
  }
  return config;
}

}  // namespace lca
