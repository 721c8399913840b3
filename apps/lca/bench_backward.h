#pragma once
/// `lca bench attention --backward` on the CPU.

#include <lca/cache.h>
#include <lca/shape.h>

#include <cstdint>
#include <vector>

namespace lca::cli {

struct BackwardBench {
  const NamedShape& model;
  LayerSpec spec;  ///< its method is replaced by each of `methods`
  std::vector<MethodKind> methods;
  std::vector<std::int64_t> lengths;
  int threads = 1;
  bool json = false;
};

/// Measures the four operators of a training step and prints them.
void backward_bench(const BackwardBench& job);

}  // namespace lca::cli
