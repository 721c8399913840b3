#pragma once
/// One interface to the implementations of attention: the properties of the mechanism page must
/// hold for the reference and for the fast path, with different rounding.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {

struct Engine {
  const char* name;
  DType dtype;
  double tolerance;
  bool is_reference;

  reference::Result compute(const Layer& layer, const Tokens& tokens, std::int64_t prompt) const {
    if (is_reference) return truth(layer, tokens, prompt);
    Context context(2);
    const std::array<std::int64_t, 1> prefill{prompt};
    return widen(run_sequence(context, layer, tokens, prefill));
  }
  reference::Result compute(const Layer& layer, const Tokens& tokens) const {
    return compute(layer, tokens, tokens.count);
  }
};

/// All engines, and their names as parameters of a test suite.
inline auto engines() {
  return ::testing::Values(Engine{"Reference", DType::f32, 1e-12, true},
                           Engine{"CpuF32", DType::f32, kToleranceF32, false},
                           Engine{"CpuBf16", DType::bf16, kToleranceBf16, false});
}
inline std::string engine_name(const ::testing::TestParamInfo<Engine>& parameter) {
  return parameter.param.name;
}

/// The settings of dense attention.
inline Settings dense_settings() {
  Settings settings;
  settings.method = MethodKind::dense;
  return settings;
}

}  // namespace lca::test
