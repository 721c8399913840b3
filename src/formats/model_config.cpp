#include "formats/model_config.h"

#include "core/error.h"
#include "formats/settings_json.h"

#include <algorithm>

namespace lca {
namespace {

constexpr std::int64_t kWidest = std::int64_t{1} << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostHeads = 4096;
constexpr std::int64_t kMostExperts = 4096;
constexpr std::int64_t kLongestContext = 0x7fffffff;
constexpr std::int64_t kMostValues = std::int64_t{1} << 48;  ///< of one matrix
// No model's number is beyond these, and nothing computed from such numbers overflows.
constexpr double kLeast = 1e-30, kMost = 1e30;
constexpr double kLeastFactor = 1e-6, kMostFactor = 1e6;

/// Complains about one file.
class Checker {
 public:
  explicit Checker(std::string_view where) : where_(where) {}

  void range(std::string_view what, std::int64_t value, std::int64_t minimum,
             std::int64_t maximum) const {
    if (value < minimum || value > maximum) {
      fail_input("{}: {} must be from {} to {}, not {}", where_, what, minimum, maximum, value);
    }
  }

  void number(std::string_view what, double value, double minimum, double maximum) const {
    if (!(value >= minimum && value <= maximum)) {
      fail_input("{}: {} must be from {} to {}, not {}", where_, what, minimum, maximum, value);
    }
  }

  void positive(std::string_view what, double value) const { number(what, value, kLeast, kMost); }

  void factor(std::string_view what, double value) const {
    number(what, value, kLeastFactor, kMostFactor);
  }

  /// Three factors that each passed `range`, so that the product of two fits 64 bits.
  void product(std::string_view what, std::int64_t a, std::int64_t b, std::int64_t c = 1) const {
    if (c != 0 && a * b > kMostValues / c) {
      fail_input("{}: {} would hold more than {} values", where_, what, kMostValues);
    }
  }

  void token(std::string_view what, std::int64_t id, std::int64_t vocabulary) const {
    if (id < 0 || id >= vocabulary) {
      fail_input("{}: {} {} is not in the vocabulary of {}", where_, what, id, vocabulary);
    }
  }

  void rope(const RopeConfig& rope) const;
  void experts(const ModelConfig& config) const;

 private:
  void factors(std::string_view what, const std::vector<double>& factors,
               std::int64_t width) const {
    if (static_cast<std::int64_t>(factors.size()) != width / 2) {
      fail_input("{}: {} must hold {} numbers, half the rotary width, not {}", where_, what,
                 width / 2, factors.size());
    }
    for (const double value : factors) factor(what, value);
  }

  std::string_view where_;
};

void Checker::rope(const RopeConfig& rope) const {
  range("the rotary width", rope.width, 2, kWidest);
  if (rope.width % 2 != 0) fail_input("{}: the rotary width {} is odd", where_, rope.width);
  number("rope_theta", rope.base, 1 + kLeastFactor, kMost);
  factor("the rope factor", rope.factor);
  if (rope.attention_factor) factor("the rope attention_factor", *rope.attention_factor);
  if (!rope.frequency_divisors.empty()) {
    factors("the rope frequency factors", rope.frequency_divisors, rope.width);
  }
  if (rope.mscale_all_dim) number("mscale_all_dim", *rope.mscale_all_dim, 0, kMostFactor);
  if (rope.kind == RopeKind::standard || rope.kind == RopeKind::linear) return;
  range("original_max_position_embeddings", rope.original_length, 2, kLongestContext);
  if (rope.kind == RopeKind::dynamic) {
    if (rope.width < 4) fail_input("{}: rope \"dynamic\" needs a rotary width above 2", where_);
    if (rope.factor < 1) fail_input("{}: the rope factor {} is below 1", where_, rope.factor);
  } else if (rope.kind == RopeKind::yarn) {
    factor("beta_fast", rope.beta_fast);
    factor("beta_slow", rope.beta_slow);
    if (rope.mscale) number("mscale", *rope.mscale, 0, kMostFactor);
  } else if (rope.kind == RopeKind::longrope) {
    factors("short_factor", rope.short_factors, rope.width);
    factors("long_factor", rope.long_factors, rope.width);
  } else if (rope.kind == RopeKind::llama3) {
    factor("low_freq_factor", rope.low_frequency_factor);
    factor("high_freq_factor", rope.high_frequency_factor);
    if (rope.high_frequency_factor <= rope.low_frequency_factor) {
      fail_input("{}: high_freq_factor {} must be above low_freq_factor {}", where_,
                 rope.high_frequency_factor, rope.low_frequency_factor);
    }
  }
}

void Checker::experts(const ModelConfig& config) const {
  const ExpertConfig& experts = config.experts;
  range("the number of experts", experts.count, 0, kMostExperts);
  if (experts.count == 0) return;
  range("the experts chosen for a token", experts.per_token, 1, experts.count);
  range("the width of an expert", experts.width, 1, kWidest);
  range("the number of shared experts", experts.shared, 0, kMostExperts);
  range("the number of leading dense layers", experts.dense_layers, 0, config.layers);
  range("the number of expert groups", experts.groups, 1, experts.count);
  range("the expert groups kept", experts.top_groups, 1, experts.groups);
  positive("the scale of the routed experts", experts.scale);
  if (experts.count % experts.groups != 0) {
    fail_input("{}: {} experts do not split into {} groups", where_, experts.count, experts.groups);
  }
  if (experts.router == Router::group_limited &&
      experts.per_token > experts.count / experts.groups * experts.top_groups) {
    fail_input("{}: {} experts a token are more than the {} groups kept hold", where_,
               experts.per_token, experts.top_groups);
  }
  product("the experts of a layer", experts.count, experts.width, config.hidden);
  product("the shared experts", experts.shared, experts.width, config.hidden);
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "llama";
    case Architecture::qwen2:
      return "qwen2";
    case Architecture::deepseek_v2:
      return "deepseek_v2";
    case Architecture::minicpm3:
      break;
  }
  return "minicpm3";
}

std::string_view rope_kind_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::standard:
      return "default";
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic:
      return "dynamic";
    case RopeKind::yarn:
      return "yarn";
    case RopeKind::longrope:
      return "longrope";
    case RopeKind::llama3:
      break;
  }
  return "llama3";
}

void ModelConfig::validate(std::string_view where) const {
  const Checker check(where);
  check.range("the number of layers", layers, 1, kMostLayers);
  check.range("the hidden width", hidden, 1, kWidest);
  check.range("the feed-forward width", feed_forward, 1, kWidest);
  check.range("the vocabulary", vocabulary, 1, kMostTokens);
  check.range("the context", context, 1, kLongestContext);
  check.positive("the epsilon of the norms", norm_eps);
  check.positive("the epsilon of the latent norms", latent_norm_eps);

  try {
    attention.validate();
  } catch (const Error& error) {
    fail_input("{}: {}", where, error.what());
  }
  check.range("the number of attention heads", attention.heads, 1, kMostHeads);
  check.range("q_lora_rank", query_latent, 0, kWidest);
  if (attention.form == Form::gqa && query_latent != 0) {
    fail_input("{}: a query latent belongs to multi-head latent attention only", where);
  }
  check.product("the query projection", attention.heads, attention.d_score(),
                std::max(hidden, query_latent));
  check.product("the output projection", attention.heads, attention.d_value, hidden);
  check.product("the key and value projection", attention.heads,
                attention.d_nope + attention.d_value, std::max(hidden, attention.d_latent));
  if (rope.width != attention.d_rope) {
    fail_input("{}: the rotary width {} is not the width of a rotary key, {}", where, rope.width,
               attention.d_rope);
  }
  check.rope(rope);
  check.experts(*this);

  check.positive("the scale of the scores", score_scale);
  check.positive("the scale of the embeddings", embedding_scale);
  check.positive("the scale of the residual branches", residual_scale);
  check.positive("the divisor of the logits", logit_divisor);
  for (const std::int32_t id : end_tokens) check.token("eos_token_id", id, vocabulary);
  if (begin_token) check.token("bos_token_id", *begin_token, vocabulary);
  if (!lca.empty() && static_cast<std::int64_t>(lca.size()) != layers) {
    fail_input("{}: settings of {} layers for a model of {}", where, lca.size(), layers);
  }
  for (const Settings& settings : lca) {
    try {
      settings.validate();
    } catch (const Error& error) {
      fail_input("{}: lca: {}", where, error.what());
    }
  }
}

}  // namespace lca
