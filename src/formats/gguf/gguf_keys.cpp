#include "formats/gguf/gguf_keys.h"

#include <algorithm>
#include <array>

namespace lca {
namespace {

/// Settings that change nothing about the numbers we compute.
constexpr std::array<std::string_view, 6> kHarmless = {
    "vocab_size",                    // the embedding has that many rows
    "tensor_data_layout",            // where the converter had the weights from
    "attention.layer_norm_epsilon",  // of a norm these architectures do not have
    "rope.scaling.finetuned",
    "expert_used_count",  // read where there are experts
    "rope.scaling.original_context_length",
};

/// Settings that are not supported, with the value that has no effect.
struct Neutral {
  std::string_view key;
  double value;
};
constexpr std::array kNeutral = {
    Neutral{"attention.sliding_window", 0},
    Neutral{"attn_logit_softcapping", 0},
    Neutral{"final_logit_softcapping", 0},
    Neutral{"router_logit_softcapping", 0},
    Neutral{"attention.clamp_kqv", 0},
    Neutral{"attention.max_alibi_bias", 0},
    Neutral{"attention.scale", 0},
    Neutral{"attention.temperature_scale", 0},
    Neutral{"attention.temperature_length", 0},
    Neutral{"attention.causal", 1},
    Neutral{"use_parallel_residual", 0},
    Neutral{"rope.scaling.alpha", 0},
    Neutral{"rope.scaling.attn_factor", 1},
    Neutral{"rope.scaling.yarn_ext_factor", 1},
    Neutral{"rope.scaling.yarn_log_multiplier", 0},
    Neutral{"nextn_predict_layers", 0},
    Neutral{"embedding_scale", 1},
    Neutral{"residual_scale", 1},
    Neutral{"logit_scale", 1},
    Neutral{"expert_count", 0},
    Neutral{"expert_shared_count", 0},
    Neutral{"expert_group_count", 1},
    Neutral{"expert_group_used_count", 1},
};

}  // namespace

bool gguf_key_is_ignored(std::string_view key, const GgufValue& value) {
  if (std::ranges::find(kHarmless, key) != kHarmless.end()) return true;
  const auto neutral = std::ranges::find(kNeutral, key, &Neutral::key);
  if (neutral == kNeutral.end() || value.is_list()) return false;
  switch (value.kind()) {
    case GgufValue::Kind::integer:
    case GgufValue::Kind::boolean:
      return static_cast<double>(value.integer()) == neutral->value;
    case GgufValue::Kind::number:
      return value.number() == neutral->value;
    case GgufValue::Kind::text:
      break;
  }
  return false;
}

}  // namespace lca
