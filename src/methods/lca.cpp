// Latent-Condensed Attention: groups that leave the window become representatives.

#include <algorithm>

#include "attention/cache_state.h"
#include "attention/condense.h"
#include "core/context_state.h"
#include "core/error.h"
#include "methods/methods.h"

namespace lca {

namespace {

class Lca final : public Method {
 public:
  std::string_view name() const override { return "lca"; }

  void take(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            bool prompt_ends) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::lca);
    for (const Run& run : runs) check_query_count(run);
    runs_append(context, runs);
    // In `prompt` mode no group is scored before the last queries of the prompt are known.
    const bool prompt = !runs.empty() && runs[0].cache->spec().settings.summary == Summary::prompt;
    if (!prompt || prompt_ends) condense(context, weights, runs);
    for (const Run& run : runs) {
      Cache::State& state = run.cache->state();
      state.prompt_open = prompt && !prompt_ends;
      // A run may carry only its last queries. Earlier queries would then leave a gap: drop them.
      const bool partial = run.queries.rope.shape[0] < run.entries.semantic.shape[0];
      if (partial) state.queries.drop_front(state.queries.rows());
      state.append_queries(run.queries);
    }
  }

  void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
              std::span<const std::int64_t> first) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::lca);
    for (const Run& run : runs) {
      if (run.cache->state().prompt_open) {
        fail_input("the prompt has not ended: its groups are not condensed yet");
      }
    }
    runs_attend(context, weights, runs, first);
  }

  void release(Cache& cache) const override {
    Cache::State& state = cache.state();
    if (state.prompt_open) fail_input("the prompt has not ended: nothing can be released");
    state.drop(state.layout.dropped(state.length));
  }

 private:
  static void check_query_count(const Run& run) {
    const Settings& settings = run.cache->spec().settings;
    const std::int64_t tokens = run.entries.semantic.shape[0];
    const std::int64_t queries = run.queries.rope.shape[0];
    const std::int64_t needed =
        settings.summary == Summary::prompt ? std::min(tokens, settings.summary_queries) : tokens;
    if (queries < needed) {
      fail_input("a run of {} tokens has {} queries; condensing needs {}", tokens, queries, needed);
    }
  }
};

}  // namespace

const Method& method_lca() {
  static const Lca method;
  return method;
}

}  // namespace lca
