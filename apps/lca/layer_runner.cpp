#include "layer_runner.h"

#include <vector>

namespace lca::cli {
namespace {

class CpuRunner final : public LayerRunner {
 public:
  CpuRunner(const LayerSpec& spec, const LayerWeights& weights, int sequences, int threads)
      : weights_(weights), context_(threads), method_(method_for(spec.settings.method)) {
    for (int i = 0; i < sequences; ++i) caches_.emplace_back(spec);
  }

  void prefill(std::span<const cuda::HostRun> runs) override { forward(runs); }
  void decode(std::span<const cuda::HostRun> runs) override { forward(runs); }
  Cache cache(int sequence) const override {
    return caches_[static_cast<std::size_t>(sequence)].clone();
  }

 private:
  void forward(std::span<const cuda::HostRun> runs) {
    std::vector<Run> all;
    for (const cuda::HostRun& run : runs) {
      all.push_back({&caches_[static_cast<std::size_t>(run.sequence)], run.queries, run.entries,
                     run.out, run.lse});
    }
    method_.forward(context_, weights_, all);
  }

  LayerWeights weights_;
  Context context_;
  const Method& method_;
  std::vector<Cache> caches_;
};

class CudaRunner final : public LayerRunner {
 public:
  CudaRunner(const LayerSpec& spec, const LayerWeights& weights, int sequences,
             std::int64_t longest, const cuda::LayerOptions& options)
      : layer_(spec, weights, sequences, longest, options) {}

  void prefill(std::span<const cuda::HostRun> runs) override { layer_.prefill(runs); }
  void decode(std::span<const cuda::HostRun> runs) override { layer_.decode(runs); }
  Cache cache(int sequence) const override { return layer_.to_host(sequence); }

 private:
  cuda::Layer layer_;
};

}  // namespace

std::unique_ptr<LayerRunner> layer_runner_cpu(const LayerSpec& spec, const LayerWeights& weights,
                                              int sequences, int threads) {
  return std::make_unique<CpuRunner>(spec, weights, sequences, threads);
}

std::unique_ptr<LayerRunner> layer_runner_cuda(const LayerSpec& spec, const LayerWeights& weights,
                                               int sequences, std::int64_t longest,
                                               const cuda::LayerOptions& options) {
  return std::make_unique<CudaRunner>(spec, weights, sequences, longest, options);
}

}  // namespace lca::cli
