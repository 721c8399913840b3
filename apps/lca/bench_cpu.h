#pragma once
/// `lca bench attention` on the CPU: what its two reports share, and the one of --backward.

#include <lca/cache.h>
#include <lca/shape.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace lca::cli {

struct CpuBench {
  const NamedShape& model;
  LayerSpec spec;  ///< its method is replaced by each of `methods`
  std::vector<MethodKind> methods;
  std::vector<std::int64_t> lengths;
  int threads = 1;
  bool json = false;

  LayerSpec spec_of(MethodKind kind) const;
};

/// Two lines above the tables: shape, type, threads, machine, date, and the settings.
std::string bench_head(const CpuBench& job);

/// The report's rows, and the same facts as fields.
nlohmann::ordered_json bench_json(const CpuBench& job, nlohmann::ordered_json rows);

/// Measures the four operators of a training step and prints them.
void backward_bench(const CpuBench& job);

}  // namespace lca::cli
