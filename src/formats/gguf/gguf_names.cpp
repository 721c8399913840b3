#include "formats/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace lca {
namespace {

struct NamePair {
  std::string_view hf;
  std::string_view gguf;
};

constexpr std::array kModel = {
    NamePair{"model.embed_tokens", "token_embd"},
    NamePair{"model.norm", "output_norm"},
    NamePair{"lm_head", "output"},
};

constexpr std::array kLayer = {
    NamePair{"input_layernorm", "attn_norm"},
    NamePair{"post_attention_layernorm", "ffn_norm"},
    NamePair{"self_attn.q_proj", "attn_q"},
    NamePair{"self_attn.k_proj", "attn_k"},
    NamePair{"self_attn.v_proj", "attn_v"},
    NamePair{"self_attn.o_proj", "attn_output"},
    NamePair{"self_attn.q_a_proj", "attn_q_a"},
    NamePair{"self_attn.q_a_layernorm", "attn_q_a_norm"},
    NamePair{"self_attn.q_b_proj", "attn_q_b"},
    NamePair{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    NamePair{"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    NamePair{"self_attn.kv_b_proj", "attn_kv_b"},
    NamePair{"self_attn.k_b_proj", "attn_k_b"},
    NamePair{"self_attn.v_b_proj", "attn_v_b"},
    NamePair{"mlp.gate_proj", "ffn_gate"},
    NamePair{"mlp.up_proj", "ffn_up"},
    NamePair{"mlp.down_proj", "ffn_down"},
    NamePair{"mlp.gate", "ffn_gate_inp"},
    NamePair{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    NamePair{"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    NamePair{"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

constexpr std::array kExpert = {
    NamePair{"gate_proj", "ffn_gate_exps"},
    NamePair{"up_proj", "ffn_up_exps"},
    NamePair{"down_proj", "ffn_down_exps"},
};

template <std::size_t count>
std::optional<std::string_view> pair_find(const std::array<NamePair, count>& pairs,
                                          std::string_view hf) {
  const auto at = std::ranges::find(pairs, hf, &NamePair::hf);
  return at == pairs.end() ? std::nullopt : std::optional(at->gguf);
}

bool prefix_take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// "12." at the beginning, which is then cut off.
std::optional<std::int64_t> number_take(std::string_view& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0 || stop == end || *stop != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()) + 1);
  return number;
}

}  // namespace

std::optional<GgufName> gguf_name_from_hf(std::string_view name) {
  const std::string_view kind = name.ends_with(".weight") ? ".weight"
                                : name.ends_with(".bias") ? ".bias"
                                                          : "";
  if (kind.empty()) return std::nullopt;
  name.remove_suffix(kind.size());
  if (!prefix_take(name, "model.layers.")) {
    const auto found = pair_find(kModel, name);
    if (!found) return std::nullopt;
    return GgufName{fmt::format("{}{}", *found, kind), {}};
  }
  const std::optional<std::int64_t> layer = number_take(name);
  if (!layer) return std::nullopt;
  if (!prefix_take(name, "mlp.experts.")) {
    const auto found = pair_find(kLayer, name);
    if (!found) return std::nullopt;
    return GgufName{fmt::format("blk.{}.{}{}", *layer, *found, kind), {}};
  }
  const std::optional<std::int64_t> expert = number_take(name);
  const auto found = pair_find(kExpert, name);
  if (!expert || !found) return std::nullopt;
  return GgufName{fmt::format("blk.{}.{}{}", *layer, *found, kind), *expert};
}

}  // namespace lca
