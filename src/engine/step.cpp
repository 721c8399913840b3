// One step of one or more sessions: it happens completely or not at all.

#include "engine/step.h"

#include <algorithm>

#include "core/context_state.h"
#include "core/error.h"
#include "models/decoder.h"
#include "models/model_state.h"

namespace lca {
namespace {

/// Logits of a prompt are handed out in pieces of at most this many values.
constexpr std::int64_t kLogitValues = std::int64_t{1} << 22;

/// Caches of all sessions of a step; rolled back unless committed.
class CacheStep {
 public:
  CacheStep(std::span<const StepPart> parts, bool staged) : parts_(parts) {
    try {
      for (const StepPart& part : parts_) part.session->caches->step_begin(staged);
    } catch (...) {
      rollback();
      throw;
    }
  }
  ~CacheStep() {
    if (!committed_) rollback();
  }
  CacheStep(const CacheStep&) = delete;
  CacheStep& operator=(const CacheStep&) = delete;

  void commit() noexcept {
    for (const StepPart& part : parts_) part.session->caches->step_commit();
    committed_ = true;
  }

 private:
  void rollback() noexcept {
    for (const StepPart& part : parts_) part.session->caches->step_rollback();
  }

  std::span<const StepPart> parts_;
  bool committed_ = false;
};

/// Whether the session keeps the logits of its last token.
bool keeps_logits(const StepPart& part) { return part.wants_logits && part.greedy == nullptr; }

/// Allocates what the commit fills, since the commit must not fail.
void reserve(const StepPart& part) {
  Session::State& state = *part.session;
  const std::size_t tokens = state.tokens.size() + part.tokens.size();
  if (tokens > state.tokens.capacity()) {
    state.tokens.reserve(std::max(tokens, 2 * state.tokens.capacity()));
  }
  if (keeps_logits(part)) {
    state.logits.reserve(static_cast<std::size_t>(state.model->info().vocabulary));
  }
}

/// Kept from step to step, so that decoding a token allocates nothing.
struct StepScratch {
  std::vector<SequenceRun> runs;
  std::vector<RowRange> ranges;
  std::vector<RowRange> greedy_ranges;
  std::vector<std::int32_t> greedy;
};

StepScratch& step_scratch() {
  thread_local StepScratch scratch;
  return scratch;
}

/// Hands out the logits of every position of a part; the caller keeps the last row of the last
/// piece.
const float* emit(Stages& stages, const StepPart& part, std::int64_t first_row) {
  const Model& model = *part.session->model;
  const std::int64_t vocabulary = model.info().vocabulary;
  const auto rows = static_cast<std::int64_t>(part.tokens.size());
  const std::int64_t most = std::max<std::int64_t>(1, kLogitValues / vocabulary);
  const float* last = nullptr;
  for (std::int64_t at = 0; at < rows; at += most) {
    const RowRange range{first_row + at, std::min(most, rows - at)};
    const float* out = stages.logits({&range, 1});
    model.state().require_intact();
    (*part.logits)(part.session->length() + at, range.count, out);
    last = out + (range.count - 1) * vocabulary;
  }
  return last;
}

void keep_logits(const StepPart& part, const float* row) {
  std::vector<float>& logits = part.session->logits;
  logits.assign(row, row + part.session->model->info().vocabulary);
}

}  // namespace

std::size_t step_logit_bytes(const Model& model) {
  return static_cast<std::size_t>(std::max(kLogitValues, model.info().vocabulary)) * sizeof(float);
}

void step_run(std::span<const StepPart> parts, const StepOptions& options) {
  const Session::State& lead = *parts.front().session;
  const ContextUse use(*lead.context);
  const Model::State& model = lead.model->state();
  for (const StepPart& part : parts) reserve(part);
  StepScratch& scratch = step_scratch();
  scratch.runs.clear();
  for (const StepPart& part : parts) {
    scratch.runs.push_back(
        {part.session->caches.get(), part.tokens, part.session->length(), part.rope_length});
  }

  CacheStep caches(parts, options.layer_by_layer);
  Stages& stages = model.backend->stages(*lead.context);
  if (options.layer_by_layer) {
    decoder_prompt(stages, lead.settings, scratch.runs.front(), lead.chunk, options.stop,
                   options.progress);
  } else {
    decoder_step(stages, lead.settings.size(), scratch.runs, options.stop);
  }
  // The last rows of all sessions without a logits sink, in one product.
  scratch.ranges.clear();
  scratch.greedy_ranges.clear();
  std::int64_t row = 0;
  for (const StepPart& part : parts) {
    row += static_cast<std::int64_t>(part.tokens.size());
    if (part.greedy != nullptr) {
      scratch.greedy_ranges.push_back({row - 1, 1});
    } else if (part.wants_logits && part.logits == nullptr) {
      scratch.ranges.push_back({row - 1, 1});
    }
  }
  scratch.greedy.resize(scratch.greedy_ranges.size());
  if (!scratch.greedy.empty()) stages.picks(scratch.greedy_ranges, scratch.greedy);
  // Sinks are called before anything is committed: if they throw, the sessions must be unchanged.
  row = 0;
  const std::int64_t vocabulary = lead.model->info().vocabulary;
  thread_local std::vector<float> emitted;  // last rows of sessions with a sink
  emitted.clear();
  for (const StepPart& part : parts) {
    if (part.logits != nullptr) {
      const float* last = emit(stages, part, row);
      if (keeps_logits(part)) emitted.insert(emitted.end(), last, last + vocabulary);
    }
    row += static_cast<std::int64_t>(part.tokens.size());
  }
  const float* rows = scratch.ranges.empty() ? nullptr : stages.logits(scratch.ranges);
  model.require_intact();
  if (options.before_commit) options.before_commit();

  caches.commit();
  const float* next_emitted = emitted.data();
  const std::int32_t* next_greedy = scratch.greedy.data();
  for (const StepPart& part : parts) {
    Session::State& state = *part.session;
    state.tokens.insert(state.tokens.end(), part.tokens.begin(), part.tokens.end());
    if (part.prompt) state.prompt_end = state.length();
    if (part.greedy != nullptr) *part.greedy = *next_greedy++;
    if (!keeps_logits(part)) {
      state.logits.clear();  // stale: they belong to an earlier token
    } else if (part.logits != nullptr) {
      keep_logits(part, next_emitted);
      next_emitted += vocabulary;
    } else {
      keep_logits(part, rows);
      rows += vocabulary;
    }
  }
}

}  // namespace lca
