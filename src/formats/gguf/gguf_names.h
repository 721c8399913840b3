#pragma once
/// How a GGUF file calls what Hugging Face calls "model.layers.3.mlp.up_proj.weight".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lca {

/// Where a tensor lies in a GGUF file.
struct GgufName {
  std::string tensor;                  ///< "blk.3.ffn_up.weight"
  std::optional<std::int64_t> expert;  ///< cut this one out of the stack of all experts

  bool operator==(const GgufName&) const = default;
};

/// The place of the tensor that Hugging Face calls `name`; nothing where GGUF has no such thing.
std::optional<GgufName> gguf_name_from_hf(std::string_view name);

}  // namespace lca
