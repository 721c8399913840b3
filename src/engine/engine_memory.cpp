#include "engine/engine_memory.h"

#include <algorithm>

#include "attention/layout.h"
#include "core/error.h"
#include "engine/session_state.h"
#include "engine/step.h"
#include "models/model_state.h"

namespace lca {
namespace {

/// What a session in host memory holds beyond its entries: buffers of exact tokens that grow by
/// doubling and take up a chunk before anything leaves them, recent queries, tokens and logits.
std::size_t host_spare(const Model& model, const std::vector<Settings>& settings,
                       std::int64_t chunk, std::int64_t length) {
  std::size_t bytes = 0;
  for (const Settings& layer : settings) {
    Settings exact = layer;
    exact.method = MethodKind::dense;
    const std::int64_t kept = length - Layout(layer).dropped(length);
    const std::int64_t rows = std::min(length, kept + std::min(chunk, length));
    const LayerSpec spec = layer_spec(model, exact);
    bytes += cache_bytes(spec, rows);
    bytes +=
        static_cast<std::size_t>(layer.summary_queries * spec.shape.heads * spec.shape.d_score()) *
        sizeof(float);
  }
  return bytes + 2 * static_cast<std::size_t>(length) * sizeof(std::int32_t) +
         static_cast<std::size_t>(model.info().vocabulary) * sizeof(float);
}

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

EngineMemory::EngineMemory(const Model& model, const EngineOptions& options, int threads)
    : model_(model), threads_(threads) {
  const ModelBackend& backend = *model.state().backend;
  const auto rows = static_cast<std::size_t>(options.most_sessions);
  const auto row = static_cast<std::size_t>(model.info().vocabulary) * sizeof(float);
  step_bytes_ =
      backend.activation_bytes(options.step_tokens) + std::max(rows * row, step_logit_bytes(model));
  limit_ = options.memory_bytes != 0 ? options.memory_bytes : backend.memory_free();
}

RequestNeed EngineMemory::need(const SessionOptions& session, std::int64_t length) const {
  const Memory memory = session_memory(model_, session, length, threads_);
  const bool on_host = model_.info().device == "cpu";
  const std::vector<Settings> settings = settings_per_layer(model_, session);
  RequestNeed need;
  need.session = memory.caches;
  if (on_host) need.session += host_spare(model_, settings, session.chunk, length);
  need.work = memory.scratch + std::max(step_bytes_, memory.activations);
  return need;
}

bool EngineMemory::fits(const RequestNeed& need) const {
  return need.work <= limit_ && need.session <= limit_ - need.work;
}

void EngineMemory::require(const RequestNeed& needed, const SessionOptions& session,
                           std::int64_t length) const {
  if (fits(needed)) return;
  std::int64_t fitting = 0;  // grows to the longest that fits
  for (std::int64_t above = length; above - fitting > 1;) {
    const std::int64_t middle = fitting + (above - fitting) / 2;
    (fits(need(session, middle)) ? fitting : above) = middle;
  }
  fail_memory(
      "a request of {} tokens, its reply included, needs {:.1f} MiB beside the weights and {:.1f} "
      "MiB are there; at most {} tokens fit: shorten the prompt or the reply",
      length, mebibytes(needed.session + needed.work), mebibytes(limit_), fitting);
}

}  // namespace lca
