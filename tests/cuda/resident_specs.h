#pragma once
/// Layers for tests of device caches.

#include <vector>

#include "cuda/layer_path.h"

namespace lca::test {

struct CachesShape {
  const char* name;
  AttentionShape shape;
};

inline std::vector<CachesShape> caches_shapes() {
  return {{"mla 512+64", AttentionShape::mla(3, 128, 64, 512, 128)},
          {"mla 40+8", AttentionShape::mla(4, 16, 8, 40, 24)},
          {"gqa 64", AttentionShape::gqa(6, 2, 64, 64)}};
}

/// Layers that differ in everything that may: groups, windows, sinks, methods.
inline std::vector<LayerSpec> mixed_specs(const AttentionShape& shape) {
  Settings lca;
  lca.group = 3;
  lca.window = 11;
  lca.sink = 2;
  lca.summary_queries = 5;
  Settings scored = lca;
  scored.group = 2;
  scored.sink = 0;
  scored.summary_queries = 9;
  scored.mass = Mass::score;
  Settings dense;
  dense.method = MethodKind::dense;
  Settings window;
  window.method = MethodKind::window;
  window.window = 20;
  window.sink = 3;
  return {spec_of(shape, lca), spec_of(shape, dense), spec_of(shape, scored),
          spec_of(shape, window)};
}

}  // namespace lca::test
