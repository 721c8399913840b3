#include "measure.h"

#include "attention/layout.h"
#include "interrupt.h"
#include "ops/matmul.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace lca::cli {
namespace {

template <typename Body>
double seconds_of(Body&& body) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::forward<Body>(body)();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The best of several calls of `once`, which returns its own seconds.
template <typename Once>
double best_of(Once&& once) {
  double best = once();
  for (int i = 1, times = repetitions(best); i < times; ++i) {
    interrupt_check();
    best = std::min(best, once());
  }
  return best;
}

}  // namespace

double useful_operations(const LayerSpec& spec, std::int64_t length) {
  const auto pairs = static_cast<double>(Layout(spec.settings).pairs(length));
  const AttentionShape& shape = spec.shape;
  return 2.0 * static_cast<double>((shape.d_score() + shape.d_value) * shape.heads) * pairs;
}

int repetitions(double seconds) {
  constexpr double kLong = 5, kEnough = 0.5;
  if (seconds > kLong) return 1;
  return static_cast<int>(std::clamp(std::ceil(kEnough / std::max(seconds, 1e-6)), 3.0, 25.0));
}

double work_estimate(const LayerSpec& spec, std::int64_t length) {
  const double once = useful_operations(spec, length) / 100e9;
  return 0.1 + once * repetitions(once);
}

std::string method_text(MethodKind kind) { return std::string(method_for(kind).name()); }

Prefill prefill_measure(Context& context, const LayerSpec& spec, const Workload& workload,
                        std::span<float> out) {
  const Method& method = method_for(spec.settings.method);
  const std::int64_t length = workload.length();
  std::optional<Cache> cache;
  const double best = best_of([&] {
    cache.reset();  // one cache at a time, so that the peak does not count two
    cache.emplace(spec);
    const Run run{&*cache, workload.queries(0, length), workload.entries(0, length), out.data(),
                  nullptr};
    return seconds_of([&] { method.forward(context, workload.weights(), {&run, 1}); });
  });
  return {best, std::move(*cache)};
}

double take_measure(Context& context, const LayerSpec& spec, const Workload& workload) {
  const Method& method = method_for(spec.settings.method);
  const std::int64_t length = workload.length();
  return best_of([&] {
    Cache cache(spec);
    const Run run{&cache, workload.queries(0, length), workload.entries(0, length)};
    return seconds_of([&] { method.take(context, workload.weights(), {&run, 1}); });
  });
}

double decode_measure(Context& context, const Workload& workload, Cache& cache,
                      std::span<float> out) {
  constexpr int kWarm = 3, kSteps = 45;
  constexpr double kPatience = 3;  // seconds
  const Method& method = method_for(cache.spec().settings.method);
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < kWarm + kSteps && (spent < kPatience || i < kWarm + 5); ++i) {
    interrupt_check();
    const std::int64_t token = i % workload.length();
    const Run run{&cache, workload.queries(token, 1), workload.entries(token, 1), out.data(),
                  nullptr};
    const double seconds = seconds_of([&] {
      method.forward(context, workload.weights(), {&run, 1});
    });
    spent += seconds;
    if (i >= kWarm) times.push_back(seconds);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double gemm_gflops_measure(int threads) {
  constexpr std::int64_t kSize = 2048;
  const std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  const auto product = [&] {
    return seconds_of(
        [&] { gemm_parallel_f32(threads, kSize, kSize, kSize, a.data(), b.data(), c.data()); });
  };
  product();  // the first call creates the kernel
  const double operations = 2.0 * kSize * kSize * kSize;
  return operations / best_of(product) / 1e9;
}

}  // namespace lca::cli
