#pragma once
/// PEFT LoRA adapters: `adapter_config.json`, `adapter_model.safetensors` and our `lca.json`.

#include "formats/safetensors.h"
#include "ops/packed.h"

#include <lca/settings.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// One matrix's change: W + scale · B·A. Stored as F32, F16 or BF16.
struct LoraPair {
  PackedMatrix a;    ///< [rank, in]
  PackedMatrix b;    ///< [out, rank]
  double scale = 1;  ///< alpha / rank, or alpha / √rank (rslora); per-module patterns applied
};

/// A checked adapter. Matrices stay mapped, or in memory, as long as it lives.
class Adapter {
 public:
  /// Reads a folder; throws Error naming file and field or tensor. What we do not do (DoRA, biases,
  /// modules_to_save, embeddings, other PEFT types) is an error. `layers` is the number of layers
  /// of the model, for per-layer settings.
  static Adapter open(const std::filesystem::path& folder, std::int64_t layers,
                      FileAccess access = FileAccess::map);
  /// The same from three texts in memory; `settings` may be empty. `weights` must outlive it.
  static Adapter parse(std::string_view config, std::span<const std::byte> weights,
                       std::string_view settings, std::int64_t layers, std::string_view name);

  const std::string& name() const { return name_; }
  /// By the Hugging Face name of the module: "model.layers.3.self_attn.q_proj".
  const std::map<std::string, LoraPair, std::less<>>& modules() const { return modules_; }
  const LoraPair* find(std::string_view module) const;
  /// The settings it was trained with, one per layer; empty where it has no lca.json.
  const std::vector<Settings>& settings() const { return settings_; }
  /// What it says it was made for ("HuggingFaceTB/SmolLM2-135M-Instruct"); may be empty.
  const std::string& base_model() const { return base_model_; }
  std::int64_t parameters() const;
  /// Throws Error where its weights were cut short since they were opened.
  void require_intact() const {
    if (file_) file_->require_intact();
  }

 private:
  friend class AdapterReader;

  std::string name_;
  std::string base_model_;
  std::optional<Safetensors> file_;
  std::map<std::string, LoraPair, std::less<>> modules_;
  std::vector<Settings> settings_;
};

}  // namespace lca
