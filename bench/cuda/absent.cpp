// A build without CUDA: every benchmark of the GPU throws.

#include "bench/cuda/bench.h"
#include "bench/cuda/bench_experts.h"
#include "core/cuda/device_name.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

[[noreturn]] void fail_absent() { fail_incompatible("{}", device_missing()); }

}  // namespace

BenchDevice bench_device(int) { fail_absent(); }

Timed bench_prefill(const BenchSetup&, std::int64_t) { fail_absent(); }

TimedBackward bench_backward(const BenchSetup&, std::int64_t, int) { fail_absent(); }

double bench_backward_bytes(const BenchSetup&, std::int64_t, int) { fail_absent(); }

Timed bench_condense(const BenchSetup&, std::int64_t, CondenseWork) { fail_absent(); }

Timed bench_operator(const BenchSetup&, std::int64_t, std::int64_t, bool) { fail_absent(); }

Timed bench_rebuild(const BenchSetup&, std::int64_t) { fail_absent(); }

Timed bench_decode(const BenchSetup&, std::int64_t, int) { fail_absent(); }

double bench_prefill_bytes(const BenchSetup&, std::int64_t) { fail_absent(); }

double bench_condense_bytes(const BenchSetup&, std::int64_t, CondenseWork) { fail_absent(); }

double bench_operator_bytes(const BenchSetup&, std::int64_t, std::int64_t, bool) { fail_absent(); }

double bench_decode_bytes(const BenchSetup&, std::int64_t, int) { fail_absent(); }

void bench_memory_check(double, const std::string&) { fail_absent(); }

double bench_cache_bytes(const BenchSetup&, std::int64_t) { fail_absent(); }

double bench_condense_traffic(const BenchSetup&, std::int64_t, CondenseWork) { fail_absent(); }

double bench_operator_traffic(const BenchSetup&, std::int64_t, std::int64_t, bool) {
  fail_absent();
}

ExpertsTimed bench_experts(const ExpertsSetup&, std::int64_t) { fail_absent(); }

double bench_product_rate(int, std::int64_t, std::int64_t, std::int64_t) { fail_absent(); }

double bench_copy_rate(int) { fail_absent(); }

ThinTimed bench_thin(int, int, int, int, int) { fail_absent(); }

}  // namespace lca::cuda
