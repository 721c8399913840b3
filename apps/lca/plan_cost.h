#pragma once
/// What sessions take of a computer's memory: the arithmetic of `lca plan`.

#include "attention/layout.h"
#include "attention/row_format.h"
#include "attention/trained_length.h"
#include "workload.h"

#include <lca/cache.h>
#include <lca/method.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lca::cli {

/// Sessions that are planned for, at most.
inline constexpr std::int64_t kMostSessions = 1 << 20;

/// A model, or the attention of one.
struct PlanSubject {
  std::string name;
  std::string path;  // empty for a shape
  std::vector<LayerSpec> layers;
  std::int64_t hidden = 0;
  std::int64_t weights = 0;       // bytes; 0 for a shape
  std::int64_t context = 0;       // positions it was trained for; 0: not known
  std::string adapter{};          // its folder; empty: none
  std::int64_t adapter_size = 0;  // bytes, beside the weights

  std::vector<Settings> settings() const {
    std::vector<Settings> list;
    for (const LayerSpec& layer : layers) list.push_back(layer.settings);
    return list;
  }
  PlanSubject with_method(MethodKind kind) const {
    PlanSubject copy = *this;
    for (LayerSpec& layer : copy.layers) layer.settings.method = kind;
    return copy;
  }
};

/// Bytes of one method at one length.
struct PlanCost {
  std::int64_t weights = 0;
  std::int64_t adapter = 0;
  std::int64_t entries = 0;    // of the layer with the most
  std::int64_t cache = 0;      // all layers of all sessions
  std::int64_t workspace = 0;  // attention's scratch, and tokens of the run not yet released
  std::int64_t hidden = 0;     // hidden states of the whole prompt, in summary mode `prompt`

  std::int64_t total() const { return weights + adapter + cache + workspace + hidden; }

  /// Adds another layer: caches add up, all else is needed by one layer at a time.
  void add(const PlanCost& layer, std::int64_t count) {
    entries = std::max(entries, layer.entries);
    cache += layer.cache * count;
    workspace = std::max(workspace, layer.workspace);
    hidden = std::max(hidden, layer.hidden);
  }
};

/// A number of equal layers.
struct AlikeLayers {
  LayerSpec spec;
  std::int64_t count = 0;
};

class Planner {
 public:
  Planner(const PlanSubject& subject, std::int64_t chunk, int threads, std::int64_t sessions)
      : sessions_(sessions),
        hidden_(subject.hidden),
        weights_(subject.weights),
        adapter_(subject.adapter_size),
        chunk_(chunk),
        threads_(threads) {
    for (const LayerSpec& spec : subject.layers) {
      const auto known = std::ranges::find(layers_, spec, &AlikeLayers::spec);
      if (known != layers_.end()) {
        ++known->count;
      } else {
        layers_.push_back({spec, 1});
      }
    }
  }

  PlanCost cost(std::int64_t length) const { return cost(length, sessions_); }

  /// The longest context that never exceeds `budget`, up to kLongestLength; 0 where none fits.
  std::int64_t longest(std::int64_t budget) const {
    return last_that_fits(kLongestLength, budget,
                          [&](std::int64_t length) { return peak(length, sessions_); });
  }

  /// Sessions of `length` that fit, up to kMostSessions.
  std::int64_t sessions(std::int64_t length, std::int64_t budget) const {
    return last_that_fits(kMostSessions, budget,
                          [&](std::int64_t count) { return peak(length, count); });
  }

 private:
  static constexpr std::int64_t kBeyond = std::numeric_limits<std::int64_t>::max() / 4;

  PlanCost cost(std::int64_t length, std::int64_t sessions) const {
    PlanCost sum;
    sum.weights = weights_;
    sum.adapter = adapter_;
    for (const AlikeLayers& alike : layers_) sum.add(layer_cost(alike.spec, length), alike.count);
    // Prompts are read one after another, so that all else is needed once. Beyond any memory it
    // stays one number.
    sum.cache = sum.cache > kBeyond / sessions ? kBeyond : sum.cache * sessions;
    return sum;
  }

  /// The maximum up to `length`: a cache is largest just before it condenses.
  std::int64_t peak(std::int64_t length, std::int64_t sessions) const {
    std::int64_t most = cost(length, sessions).total();
    for (const AlikeLayers& alike : layers_) {
      const Layout layout(alike.spec.settings);
      const std::int64_t groups = layout.groups(length);
      if (groups > 0) {
        most = std::max(most, cost(layout.group_exit(groups - 1), sessions).total());
      }
    }
    return most;
  }

  template <typename Bytes>
  static std::int64_t last_that_fits(std::int64_t most, std::int64_t budget, const Bytes& bytes) {
    std::int64_t fits = 0, exceeds = most + 1;
    while (exceeds - fits > 1) {
      const std::int64_t middle = fits + (exceeds - fits) / 2;
      (bytes(middle) <= budget ? fits : exceeds) = middle;
    }
    return fits;
  }

  PlanCost layer_cost(const LayerSpec& spec, std::int64_t length) const {
    const Layout layout(spec.settings);
    const bool whole_prompt = summary_waits(spec.settings);
    // `prompt` mode cannot run chunk by chunk: a layer takes the whole prompt before it condenses.
    const std::int64_t run = whole_prompt ? length : std::min(chunk_, length);
    const auto value_bytes = static_cast<std::int64_t>(dtype_bytes(spec.dtype));
    PlanCost cost;
    cost.entries = layout.entries(length);
    cost.cache = static_cast<std::int64_t>(cache_bytes(spec, length));
    cost.workspace =
        static_cast<std::int64_t>(attention_workspace_bytes(spec, length, run, threads_)) +
        std::min(run, layout.dropped(length)) * RowFormat::of(spec).bytes();
    cost.hidden = whole_prompt ? length * hidden_ * value_bytes : 0;
    return cost;
  }

  std::vector<AlikeLayers> layers_;
  std::int64_t sessions_;
  std::int64_t hidden_;
  std::int64_t weights_;
  std::int64_t adapter_;
  std::int64_t chunk_;
  int threads_;
};

}  // namespace lca::cli
