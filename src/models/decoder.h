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

/// Passes some runs through all layers together. Between layers a stop request throws Error
/// (cancelled).
void decoder_step(Stages& stages, std::size_t layers, std::span<const SequenceRun> runs,
                  const std::stop_token& stop);

/// Passes a whole prompt layer by layer in chunks, as summaries that wait for its end need
/// (mechanism §3). `settings` has one entry per layer; `progress` is told how much of the work is
/// done, 0 … 1, and may throw.
void decoder_prompt(Stages& stages, std::span<const Settings> settings, const SequenceRun& run,
                    std::int64_t chunk, const std::stop_token& stop,
                    const std::function<void(double)>& progress);

}  // namespace lca
