#pragma once
/// What a Session holds.

#include <lca/session.h>

#include <memory>
#include <span>
#include <vector>

#include "models/decoder.h"

namespace lca {

struct Session::State {
  std::shared_ptr<const Model> model;
  Context* context = nullptr;
  std::int64_t chunk = 0;
  std::vector<Settings> settings;  ///< one per layer
  bool layer_by_layer = false;     ///< some layer's summary waits for the prompt's end
  std::vector<Cache> caches;       ///< one per layer
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> pending;  ///< tokens still to be read, kept for whoever goes on
  std::int64_t prompt_end = 0;        ///< tokens up to the end of the last prompt; a reply follows
  Activations activations;
  std::vector<float> logits;
  FloatBuffer logit_rows;
  bool broken = false;  ///< a pass stopped between layers: caches disagree

  std::vector<Cache> empty_caches() const;
  /// Throws Error where the session cannot go on, or a token is not in the vocabulary.
  void check(std::span<const std::int32_t> run) const;
  /// Throws Error where the model's file was cut short during a step: its results are dropped.
  void require_intact();
  SequenceRun sequence(std::span<const std::int32_t> run, std::int64_t rope_length) {
    return {caches, run, static_cast<std::int64_t>(tokens.size()), rope_length};
  }
  /// Passes one chunk through all layers.
  void advance(std::span<const std::int32_t> run, std::int64_t rope_length);
  /// Hands out the logits of `rows` hidden states whose first is position `first`, and keeps those
  /// of the last.
  void emit(const float* hidden, std::int64_t first, std::int64_t rows, const LogitsSink& sink);
  /// Gives the memory of many rows back: later steps need one.
  void shrink() {
    activations = {};
    logit_rows = {};
  }
};

}  // namespace lca
