#include "models/weight_packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/text.h"
#include "ops/pack.h"

namespace lca {
namespace {

/// Calls `visit` with the weight of every linear layer of the decoder, and with the embedding.
/// Routers and MLA's up-projections are not included.
template <typename Visit>
void linear_weights_visit(const Checkpoint& checkpoint, const Visit& visit) {
  const ModelConfig& config = checkpoint.config();
  const auto look = [&](const std::string& name) {
    if (const std::optional<StoredTensor> tensor = checkpoint.find(name)) visit(*tensor);
  };
  const auto feed_forward = [&](const std::string& module) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      look(fmt::format("{}.{}.weight", module, part));
    }
  };
  look("model.embed_tokens.weight");
  if (!config.tied) look("lm_head.weight");
  for (std::int64_t index = 0; index < config.layers; ++index) {
    const std::string layer = fmt::format("model.layers.{}.", index);
    for (const char* part :
         {"q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"}) {
      look(fmt::format("{}self_attn.{}.weight", layer, part));
    }
    if (config.experts.count == 0 || index < config.experts.dense_layers) {
      feed_forward(layer + "mlp");
      continue;
    }
    for (std::int64_t e = 0; e < config.experts.count; ++e) {
      feed_forward(fmt::format("{}mlp.experts.{}", layer, e));
    }
    feed_forward(layer + "mlp.shared_experts");
  }
}

bool tensor_packs(const StoredTensor& tensor, WeightPacking packing) {
  return tensor.shape.size() == 2 && weight_packs(tensor.type, tensor.shape[1], packing);
}

}  // namespace

PackedType packing_type(WeightPacking packing) {
  return packing == WeightPacking::q4_0 ? PackedType::q4_0 : PackedType::q8_0;
}

const char* packing_name(WeightPacking packing) {
  switch (packing) {
    case WeightPacking::q8_0:
      return "q8_0";
    case WeightPacking::q4_0:
      return "q4_0";
    case WeightPacking::keep:
      break;
  }
  return "keep";
}

bool weight_packs(PackedType type, std::int64_t columns, WeightPacking packing) {
  if (packing == WeightPacking::keep) return false;
  const bool plain = type == PackedType::f32 || type == PackedType::f16 || type == PackedType::bf16;
  return plain && columns > 0 &&
         columns % packed_type_info(packing_type(packing)).block_values == 0;
}

std::size_t weight_bytes(const Checkpoint& checkpoint, WeightPacking packing) {
  std::size_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) bytes += tensor.bytes();
  if (packing == WeightPacking::keep) return bytes;
  linear_weights_visit(checkpoint, [&](const StoredTensor& tensor) {
    if (!tensor_packs(tensor, packing)) return;
    bytes = bytes - tensor.bytes() + packed_bytes(packing_type(packing), tensor.values());
  });
  return bytes;
}

std::size_t adapter_bytes(const Adapter& adapter, ProductType type) {
  std::size_t bytes = 0;
  for (const auto& [module, pair] : adapter.modules()) {
    if (module.ends_with(".kv_b_proj")) continue;
    bytes += Lora{pair.a, pair.b, 1, {}}.layout_bytes(type);
  }
  return bytes;
}

void packing_require(const Checkpoint& checkpoint, WeightPacking packing) {
  if (packing == WeightPacking::keep) return;
  bool some = false;
  std::string_view stored;
  linear_weights_visit(checkpoint, [&](const StoredTensor& tensor) {
    some = some || tensor_packs(tensor, packing);
    stored = packed_type_info(tensor.type).name;
  });
  if (some) return;
  fail_input(
      "{}: nothing to pack into {}: its weights are {} already, or not in rows of whole blocks of "
      "32; load it as it is",
      path_printable(checkpoint.path().native()), packing_name(packing), stored);
}

}  // namespace lca
