#pragma once
/// What a Model holds.

#include <lca/model.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/adapter.h"
#include "formats/checkpoint.h"
#include "models/backend.h"
#include "models/rope.h"
#include "models/weights.h"

namespace lca {

struct Model::State {
  explicit State(Checkpoint opened) : checkpoint(std::move(opened)), rope(config().rope) {}

  FileAccess access = FileAccess::map;
  Checkpoint checkpoint;
  std::optional<Adapter> adapter;
  Rope rope;
  DecoderWeights weights;
  ProductType product = ProductType::f32;
  DType cache_dtype = DType::f32;
  GroupStorage groups = GroupStorage::bf16;
  ModelInfo info;
  std::vector<Settings> settings;  // one per layer
  std::unique_ptr<ModelBackend> backend;
  mutable std::once_flag fingerprinted;
  mutable std::string fingerprint;
  // Loaded on first use: a model without a tokenizer can be run on ids.
  mutable std::once_flag tokenizer_opened;
  mutable std::optional<Tokenizer> tokenizer;
  mutable std::once_flag ends_collected;
  mutable std::vector<std::int32_t> end_tokens;

  const ModelConfig& config() const { return checkpoint.config(); }

  /// Throws Error where a file of weights was cut short: nothing computed from it may be used.
  void require_intact() const {
    checkpoint.require_intact();
    if (adapter) adapter->require_intact();
  }
};

}  // namespace lca
