// Sliding window with sink: the sink and the last w tokens at their original positions.
// StreamingLLM's pattern, as a baseline (mechanism §5).

#include "attention/cache_state.h"
#include "core/context_state.h"
#include "methods/methods.h"

namespace lca {

namespace {

class Window final : public Method {
 public:
  std::string_view name() const override { return "window"; }

  void take(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            bool) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::window);
    runs_append(context, runs);
  }

  void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
              std::span<const std::int64_t> first) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::window);
    runs_attend(context, weights, runs, first);
  }

  void release(Cache& cache) const override {
    Cache::State& state = cache.state();
    state.drop(state.layout.dropped(state.length));
  }
};

}  // namespace

const Method& method_window() {
  static const Window method;
  return method;
}

}  // namespace lca
