#include "models/decoder.h"

#include <algorithm>

#include "attention/settings_kind.h"
#include "core/error.h"

namespace lca {
namespace {

void check_stop(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(ErrorKind::cancelled, "the work was cancelled");
}

}  // namespace

void decoder_step(Stages& stages, std::size_t layers, std::span<const SequenceRun> runs,
                  const std::stop_token& stop) {
  RowRange all;
  for (const SequenceRun& run : runs) all.count += static_cast<std::int64_t>(run.tokens.size());
  stages.begin(runs);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    check_stop(stop);
    stages.entries(layer, all);
    stages.attend(layer, all);
    stages.feed_forward(layer, all);
  }
  check_stop(stop);
}

void decoder_prompt(Stages& stages, std::span<const Settings> settings, const SequenceRun& run,
                    std::int64_t chunk, const std::stop_token& stop,
                    const std::function<void(double)>& progress) {
  const auto total = static_cast<std::int64_t>(run.tokens.size());
  const auto for_chunks = [&](const auto& body) {
    for (std::int64_t first = 0; first < total; first += chunk) {
      check_stop(stop);
      body(RowRange{first, std::min(chunk, total - first)});
    }
  };
  stages.begin({&run, 1});
  for (std::size_t layer = 0; layer < settings.size(); ++layer) {
    // Where the summary waits for the end of the prompt, all entries come before any attention.
    const bool waits = summary_waits(settings[layer]) && total > 1;
    if (waits) for_chunks([&](RowRange rows) { stages.entries(layer, rows); });
    for_chunks([&](RowRange rows) {
      if (progress) {
        const double within = static_cast<double>(rows.first) / static_cast<double>(total);
        progress((static_cast<double>(layer) + within) / static_cast<double>(settings.size()));
      }
      if (!waits) stages.entries(layer, rows);
      stages.attend(layer, rows);
      stages.feed_forward(layer, rows);
    });
  }
  check_stop(stop);
}

}  // namespace lca
