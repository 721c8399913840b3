#pragma once
/// Where a command runs and with which code: `--device`, `--kernels`, and for one layer
/// `--backend`.

#include "arguments.h"
#include "attention/cuda/layer.h"

namespace lca::cli {

/// Which code runs.
enum class Backend { reference, cpu, cuda };

/// `--device` and `--kernels` of a command on whole models.
struct WhereFlags {
  TextFlag device, kernels;

  /// `fallback` is the default of `--device`.
  void add(CLI::App& app, const std::string& fallback);
  /// Throws Error naming the flag that is wrong. Does what `--kernels portable` asks of the CPU.
  void apply() const;
};

/// The same for commands that run one layer, which also know `--backend` and `--groups`.
struct LayerWhereFlags : WhereFlags {
  TextFlag backend, groups;

  /// `reference` where the command has one.
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

/// Throws Error where `flag` is given and the GPU is not what runs.
void cuda_only_check(const TextFlag& flag, const char* name, bool on_cuda);

}  // namespace lca::cli
