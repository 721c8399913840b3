// A build without CUDA: everything says so.

#include "attention/cuda/bench.h"
#include "attention/cuda/layer.h"
#include "core/error.h"

namespace lca::cuda {

std::string unavailable() {
  return "this build has no CUDA; build with `make cuda` (needs nvcc), or use the CPU";
}

struct Layer::State {};

Layer::Layer(const LayerSpec&, const LayerWeights&, int, std::int64_t, const LayerOptions&) {
  fail_input("{}", unavailable());
}

Layer::~Layer() = default;

void Layer::prefill(std::span<const HostRun>) {}

void Layer::decode(std::span<const HostRun>) {}

HostGroups Layer::groups(int) const { return {}; }

BenchDevice bench_device() { fail_input("{}", unavailable()); }

Timed bench_prefill(const BenchSetup&, std::int64_t) { return {}; }

Timed bench_condense(const BenchSetup&, std::int64_t, CondenseWork) { return {}; }

Timed bench_rebuild(const BenchSetup&, std::int64_t) { return {}; }

Timed bench_decode(const BenchSetup&, std::int64_t, int) { return {}; }

double bench_prefill_bytes(const BenchSetup&, std::int64_t) { return 0; }

double bench_condense_bytes(const BenchSetup&, std::int64_t, CondenseWork) { return 0; }

double bench_decode_bytes(const BenchSetup&, std::int64_t, int) { return 0; }

void bench_memory_check(double, const std::string&) {}

double bench_cache_bytes(const BenchSetup&, std::int64_t) { return 0; }

double bench_condense_traffic(const BenchSetup&, std::int64_t, CondenseWork) { return 0; }

}  // namespace lca::cuda
