#pragma once
/// The decoder-only transformer as a program over the stages of a device: embed, then per layer
/// norm → attention → norm → feed-forward, then norm → head.

#include <lca/settings.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>

#include "models/stages.h"

namespace lca {

/// Runs one step through all layers. A stop request is checked between layers and throws Error
/// (cancelled).
void decoder_step(Stages& stages, std::size_t layers, std::span<const SequenceRun> runs,
                  const std::stop_token& stop);

/// Runs a whole prompt layer by layer, each layer in chunks, as needed by summaries that wait for
/// the end of the prompt (mechanism §3). `settings` has one entry per layer; `progress` receives
/// the fraction of the work that is done, 0 … 1, and may throw.
void decoder_prompt(Stages& stages, std::span<const Settings> settings, const SequenceRun& run,
                    std::int64_t chunk, const std::stop_token& stop,
                    const std::function<void(double)>& progress);

}  // namespace lca
