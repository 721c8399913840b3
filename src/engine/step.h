#pragma once
/// One step of one or more sessions of one model and context (lca/session.h defines a step).

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>

#include "engine/session_state.h"

namespace lca {

/// One session's part; its tokens have been checked.
struct StepPart {
  Session::State* session = nullptr;
  std::span<const std::int32_t> tokens;
  bool prompt = false;
  const LogitsSink* logits = nullptr;  ///< null: none
  bool wants_logits = true;
  std::int64_t rope_length = 0;
  std::int32_t* greedy = nullptr;  ///< receives the likeliest token in place of logits
};

struct StepOptions {
  std::stop_token stop;
  /// A whole prompt of one session, layer by layer, for summaries that wait for its end.
  bool layer_by_layer = false;
  std::function<void(double)> progress = {};  ///< of a layer-by-layer step
  std::function<void()> before_commit = {};   ///< if it throws, the step is rolled back
};

/// Runs the step. If anything throws, every session is as it was before.
void step_run(std::span<const StepPart> parts, const StepOptions& options);

/// Bytes of the largest piece of logits a step hands out.
std::size_t step_logit_bytes(const Model& model);

}  // namespace lca
