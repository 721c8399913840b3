#pragma once
/// Times of one attention method on synthetic inputs.

#include "workload.h"

#include <lca/method.h>

#include <span>
#include <string>

namespace lca::cli {

/// The operations that count for GFLOP/s: 2·(d_n+d_r+d_v) for each head and each pair of a query
/// and an entry it sees. Rebuilding keys and values, and masked pairs, are not counted.
double useful_operations(const LayerSpec& spec, std::int64_t length);

/// How often to repeat what takes `seconds`: several times to find the best, once if it is long.
int repetitions(double seconds);

/// A rough estimate of the seconds that a measured prefill takes, for the progress bar.
double work_estimate(const LayerSpec& spec, std::int64_t length);

std::string method_text(MethodKind kind);

struct Prefill {
  double seconds = 0;  ///< best of several runs: take, condense, rebuild keys and values, attend
  Cache cache;         ///< of the last run
};

/// Prefills an empty cache with the whole workload; outputs go to `out` [L,H,d_v].
Prefill prefill_measure(Context& context, const LayerSpec& spec, const Workload& workload,
                        std::span<float> out);

/// Seconds to take a whole prompt into an empty cache and condense it, without attending.
double take_measure(Context& context, const LayerSpec& spec, const Workload& workload);

/// Seconds of one decode step: the median of several that follow `cache`. `out` holds [H,d_v].
double decode_measure(Context& context, const Workload& workload, Cache& cache,
                      std::span<float> out);

/// oneDNN's float32 product of 2048³ on `threads` threads, in GFLOP/s: the best of a few runs.
double gemm_gflops_measure(int threads);

}  // namespace lca::cli
