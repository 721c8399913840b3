#pragma once
/// Where a command runs and with which kernels: `--device`, `--kernels`, and for one layer
/// `--backend`.

#include "arguments.h"
#include "attention/cuda/layer.h"

namespace lca::cli {

/// Which implementation runs.
enum class Backend { reference, cpu, cuda };

/// `--device` and `--kernels` of a command on whole models.
struct WhereFlags {
  TextFlag device, kernels;

  /// `fallback` is the default of `--device`.
  void add(CLI::App& app, const std::string& fallback);
  /// Throws Error naming the flag that is wrong. Applies `--kernels portable`.
  void apply() const;
};

/// The same for commands that run one layer, which also have `--backend` and `--groups`.
struct LayerWhereFlags : WhereFlags {
  TextFlag backend, groups;

  /// Whether the command supports `--backend reference`.
  enum class Reference { no, yes };
  void add(CLI::App& app, Reference reference);

  struct Choice {
    Backend backend = Backend::cpu;
    cuda::LayerOptions cuda;
  };
  /// Throws Error where flags are wrong or contradict each other.
  Choice read() const;

 private:
  bool has_reference_ = false;
};

/// Throws Error if `flag` is given and the command does not run on the GPU.
void cuda_only_check(const TextFlag& flag, const char* name, bool on_cuda);

}  // namespace lca::cli
