#pragma once
/// The decoder-only transformer, as a program over operators and an attention method: embed, then
/// per layer norm → attention → norm → feed-forward, then norm → head.

#include <lca/cache.h>
#include <lca/context.h>
#include <lca/method.h>
#include <lca/model.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/workspace.h"

namespace lca {

/// A block of floats that only ever grows.
class FloatBuffer {
 public:
  /// At least `count` values; what was there may be gone.
  float* prepare(std::int64_t count) {
    if (count > capacity_) {
      memory_.reset();
      memory_ = aligned_bytes(static_cast<std::size_t>(count) * sizeof(float));
      capacity_ = count;
    }
    return data();
  }
  float* data() { return reinterpret_cast<float*>(memory_.get()); }
  std::size_t bytes() const { return static_cast<std::size_t>(capacity_) * sizeof(float); }

 private:
  AlignedBytes memory_;
  std::int64_t capacity_ = 0;
};

/// One token's chosen expert and its weight.
struct ExpertChoice {
  std::int64_t expert = 0;
  float weight = 0;
};

/// A token that an expert is to see.
struct ExpertVisit {
  std::int64_t row = 0;
  float weight = 0;
};

/// What lies between the operators of one forward pass; kept from pass to pass.
struct Activations {
  FloatBuffer hidden;           ///< [T, hidden]: the residual stream
  FloatBuffer normed;           ///< [T, hidden]
  FloatBuffer query_latent;     ///< [T, q_lora_rank]
  FloatBuffer queries;          ///< [T, H, d_score]
  FloatBuffer keys, values;     ///< GQA: [T, KV, d], [T, KV, d_v]; MLA: keys = [T, d_c + d_r]
  FloatBuffer rounded_queries;  ///< the same in bf16, where products are
  FloatBuffer rounded_keys, rounded_values;
  FloatBuffer attended;                    ///< [T, H, d_v]
  FloatBuffer branch;                      ///< [T, hidden]: what a residual branch adds
  FloatBuffer gate, up;                    ///< [T, feed-forward width]
  FloatBuffer router;                      ///< [T, experts]
  FloatBuffer gathered, expert;            ///< [rows of one expert, hidden]
  FloatBuffer cos, sin;                    ///< [T, rope width / 2]
  std::vector<Run> parts;                  ///< of a batch, in one layer
  std::vector<ExpertVisit> visits;         ///< of all tokens, expert after expert
  std::vector<ExpertChoice> choices;       ///< [T, experts of a token]
  std::vector<std::int64_t> visits_begin;  ///< [experts + 1]

  std::size_t bytes() const;
};

/// One sequence's part of a pass: tokens at positions first …, and its caches, one per layer.
struct SequenceRun {
  std::span<Cache> caches;
  std::span<const std::int32_t> tokens;
  std::int64_t first = 0;
  /// Tokens the prompt will have had at its end; some rope kinds depend on it.
  std::int64_t rope_length = 0;
};

/// Passes a batch of runs through all layers, chunk by chunk: the hidden states [T, hidden] are
/// left in `activations.hidden`, run after run. The caches have taken the tokens.
void decoder_forward(Context& context, const Model& model, Activations& activations,
                     std::span<const SequenceRun> runs);

/// Passes a whole prompt layer by layer, as `prompt` summaries need (mechanism §3). `progress` is
/// told how much of the work is done, 0 … 1, and may throw: the caches are then of no use.
void decoder_forward_prompt(Context& context, const Model& model, Activations& activations,
                            const SequenceRun& run, std::int64_t chunk,
                            const std::function<void(double)>& progress);

/// Logits [rows, vocabulary] of rows of hidden states.
void decoder_logits(Context& context, const Model& model, Activations& activations,
                    const float* hidden, std::int64_t rows, float* out);

/// Bytes `Activations` holds after a pass of `rows` tokens.
std::size_t activations_bytes(const Model& model, std::int64_t rows);

}  // namespace lca
