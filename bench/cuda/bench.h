#pragma once
/// Times of the GPU's kernels on made-up inputs that lie in its memory. No CUDA type appears here;
/// in builds without CUDA every function throws.

#include <lca/cache.h>

#include <cstdint>
#include <string>

#include "attention/cuda/layer.h"

namespace lca::cuda {

struct BenchDevice {
  std::string name;
  int multiprocessors = 0;
  double memory = 0;  ///< bytes in all
  double cache = 0;   ///< bytes of L2
};
BenchDevice bench_device(int ordinal);

struct BenchSetup {
  LayerSpec spec;  ///< its dtype has no effect: the GPU works in bf16
  LayerOptions options;
};

/// What one call took: the median of so many, each on one of so many sets of inputs in turn. Sets
/// are as many as it takes to find nothing in the L2 cache.
struct Timed {
  double seconds = 0;
  int repetitions = 0;
  int sets = 1;
};

/// What condensing a whole prompt starts from.
enum class CondenseWork {
  prompt,           ///< one mean of queries: absorb it, score, pool and select
  streaming,        ///< all queries: means, absorb, score, pool and select
  streaming_means,  ///< the means, which the kernel that rotates queries makes
};

/// Attention alone over a whole prompt: queries, per-head keys, values and representatives are
/// there. CUDA events around each call.
Timed bench_prefill(const BenchSetup& setup, std::int64_t length);
/// The others are replays of a CUDA graph that goes through all sets.
Timed bench_condense(const BenchSetup& setup, std::int64_t length, CondenseWork work);
/// MLA: keys and values of `rows` latents, two products.
Timed bench_rebuild(const BenchSetup& setup, std::int64_t rows);
/// One step of `batch` sessions of about `length` tokens, which go on step by step; they are at
/// different places in their groups, so that condensing is in it as often as it happens.
Timed bench_decode(const BenchSetup& setup, std::int64_t length, int batch);

/// Condensing `documents` packed ones of `length` tokens as a training step does, or its backward
/// pass with all gradients.
Timed bench_operator(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                     bool backward);

/// Attention alone and its gradients (queries, keys, values, representatives, and biases where mass
/// is `score`) over `documents` packed documents of `length` tokens.
struct TimedBackward {
  Timed forward, backward;
  double scratch = 0;  ///< bytes that the backward pass needs beside its tensors
};
TimedBackward bench_backward(const BenchSetup& setup, std::int64_t length, int documents);

/// GPU memory that they take.
double bench_prefill_bytes(const BenchSetup& setup, std::int64_t length);
double bench_backward_bytes(const BenchSetup& setup, std::int64_t length, int documents);
double bench_condense_bytes(const BenchSetup& setup, std::int64_t length, CondenseWork work);
double bench_operator_bytes(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                            bool backward);
double bench_decode_bytes(const BenchSetup& setup, std::int64_t length, int batch);
/// Throws Error (out of memory) where the GPU has not so many left.
void bench_memory_check(double bytes, const std::string& what);

/// Bytes of cache that one decode step of one session reads.
double bench_cache_bytes(const BenchSetup& setup, std::int64_t length);
/// Bytes that condensing must read and write.
double bench_condense_traffic(const BenchSetup& setup, std::int64_t length, CondenseWork work);
double bench_operator_traffic(const BenchSetup& setup, std::int64_t length, std::int64_t documents,
                              bool backward);

}  // namespace lca::cuda
