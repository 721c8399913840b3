// Dense attention: every token is kept, and a query sees all tokens up to its own.

#include "core/context_state.h"
#include "methods/methods.h"

namespace lca {

namespace {

class Dense final : public Method {
 public:
  std::string_view name() const override { return "dense"; }

  void take(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            bool) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::dense);
    runs_append(context, runs);
  }

  void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
              std::span<const std::int64_t> first) const override {
    const ContextUse use(context);
    runs_check(weights, runs, MethodKind::dense);
    runs_attend(context, weights, runs, first);
  }

  void release(Cache&) const override {}
};

}  // namespace

const Method& method_dense() {
  static const Dense method;
  return method;
}

}  // namespace lca
