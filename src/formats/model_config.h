#pragma once
/// The configuration of a model, from either format. Readers fill in every field
/// and refuse what a field cannot express, so that nothing a file asks for is silently ignored.

#include <lca/settings.h>
#include <lca/shape.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

enum class Architecture : std::uint8_t { llama, qwen2, deepseek_v2, minicpm3 };

/// "llama", "qwen2", "deepseek_v2", "minicpm3".
std::string_view architecture_name(Architecture architecture);

enum class RopeKind : std::uint8_t { standard, linear, dynamic, yarn, longrope, llama3 };

/// "default", "linear", "dynamic", "yarn", "longrope", "llama3".
std::string_view rope_kind_name(RopeKind kind);

/// Rotary positions. Fields a kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  RopeLayout layout = RopeLayout::halves;
  std::int64_t width = 0;  ///< channels that are rotated, even
  double base = 10000;     ///< theta
  double factor = 1;       ///< linear, dynamic, yarn, longrope, llama3
  std::int64_t original_length =
      0;  ///< positions before stretching: dynamic, yarn, longrope, llama3
  /// Multiplies cos and sin (yarn, longrope); absent: the kind's own formula.
  std::optional<double> attention_factor;
  double beta_fast = 32, beta_slow = 1;          ///< yarn
  bool truncate = true;                          ///< yarn: correction range in whole channels
  std::optional<double> mscale, mscale_all_dim;  ///< yarn
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  std::vector<double> short_factors, long_factors;             ///< longrope: width/2 each
  /// GGUF's `rope_freqs`: divisors of the frequencies (width/2), already holding the kind's
  /// stretching; empty elsewhere. `kind` is then `standard`.
  std::vector<double> frequency_divisors;
};

enum class Router : std::uint8_t { greedy, group_limited };

/// Mixture of experts; `count` 0 means none.
struct ExpertConfig {
  std::int64_t count = 0;         ///< routed experts
  std::int64_t per_token = 0;     ///< chosen for a token
  std::int64_t width = 0;         ///< hidden width of one expert
  std::int64_t shared = 0;        ///< experts every token passes, fused into one of shared × width
  std::int64_t dense_layers = 0;  ///< leading layers with an ordinary feed-forward
  Router router = Router::greedy;
  std::int64_t groups = 1;      ///< group_limited: groups of experts …
  std::int64_t top_groups = 1;  ///< … of which so many are kept
  bool normalise = false;       ///< chosen weights sum to one
  double scale = 1;             ///< multiplies the chosen weights
};

/// Both families with MLA build the two norms on latents without the file's eps: 1e-6 in DeepSeek's
/// and in MiniCPM3's own code, whatever container the weights come in.
constexpr double kLatentNormEps = 1e-6;

/// A decoder-only transformer.
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t feed_forward = 0;  ///< hidden width of the (dense) SwiGLU
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  ///< positions the model was trained for
  double norm_eps = 1e-6;
  double latent_norm_eps = kLatentNormEps;  ///< MLA: of q_a_layernorm and kv_a_layernorm

  AttentionShape attention;       ///< widths, in either form
  std::int64_t query_latent = 0;  ///< MLA: q_lora_rank; 0 where q is projected directly
  /// Beyond d_score^−½: yarn's mscale² in DeepSeek-V2, else 1.
  double score_scale = 1;
  bool qkv_bias = false;     ///< q, k, v carry a bias (MLA: q_a and kv_a)
  bool output_bias = false;  ///< o_proj does
  bool mlp_bias = false;
  bool tied = false;         ///< the head is the embedding
  bool head_stated = false;  ///< the config says that the head is not the embedding

  RopeConfig rope;
  ExpertConfig experts;

  double embedding_scale = 1;  ///< MiniCPM3: scale_emb
  double residual_scale = 1;   ///< MiniCPM3: scale_depth / √layers
  double logit_divisor = 1;    ///< MiniCPM3: hidden / dim_model_base

  std::vector<std::int32_t> end_tokens;     ///< any of them ends a reply; may be empty
  std::optional<std::int32_t> begin_token;  ///< where the file names one
  /// The checkpoint's own `lca` settings, one per layer; empty where it has none.
  std::vector<Settings> lca;

  /// The softmax scale: d_score^−½ · score_scale.
  double softmax_scale() const { return attention.default_scale() * score_scale; }
  /// Throws Error (beginning with `where`) where numbers contradict each other or are out of range.
  void validate(std::string_view where) const;
};

/// Reads `config.json` in the spelling of transformers 4 or 5; throws Error beginning with `where`.
ModelConfig model_config_from_json(std::string_view text, std::string_view where);

}  // namespace lca
