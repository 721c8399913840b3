#pragma once
/// Activations of one step on the CPU; the context keeps the buffers from step to step.

#include <lca/context.h>
#include <lca/method.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/workspace.h"

namespace lca {

/// A float buffer that grows and never shrinks.
class FloatBuffer {
 public:
  /// At least `count` values; earlier contents may be lost.
  float* prepare(std::int64_t count) {
    if (count > capacity_) {
      memory_.reset();
      capacity_ = 0;  // stays 0 if the allocation throws
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

/// A token that an expert processes.
struct ExpertVisit {
  std::int64_t row = 0;
  float weight = 0;
};

/// T is the number of rows of one step, or of one chunk of a layer-by-layer prompt.
struct Activations {
  FloatBuffer hidden;           ///< [T, hidden]: the residual stream
  FloatBuffer normed;           ///< [T, hidden]
  FloatBuffer query_latent;     ///< [T, q_lora_rank]
  FloatBuffer queries;          ///< [T, H, d_score]
  FloatBuffer keys, values;     ///< GQA: [T, KV, d], [T, KV, d_v]; MLA: keys = [T, d_c + d_r]
  FloatBuffer rounded_queries;  ///< the same in bf16, where the cache stores bf16
  FloatBuffer rounded_keys, rounded_values;
  FloatBuffer attended;                     ///< [T, H, d_v]
  FloatBuffer branch;                       ///< [T, hidden]: what a residual branch adds
  FloatBuffer gate, up;                     ///< [T, feed-forward width]
  FloatBuffer router;                       ///< [T, experts]
  FloatBuffer gathered, expert;             ///< [rows of one expert, hidden]
  FloatBuffer cos, sin;                     ///< [T, rope width / 2]
  FloatBuffer logits;                       ///< [rows asked for, vocabulary]
  std::vector<Run> parts;                   ///< one per sequence, in one layer
  std::vector<std::int64_t> positions;      ///< of their first queries
  std::vector<std::int64_t> lengths;        ///< rows of each sequence's run
  std::vector<std::int64_t> logit_lengths;  ///< rows of each run of logits
  std::vector<ExpertVisit> visits;          ///< of all tokens, expert after expert
  std::vector<ExpertChoice> choices;        ///< [T, experts of a token]
  std::vector<std::int64_t> visits_begin;   ///< [experts + 1]
  std::vector<std::int64_t> visit_runs;     ///< number of visits of one expert in each run

  std::size_t bytes() const;
};

}  // namespace lca
