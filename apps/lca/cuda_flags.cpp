#include "cuda_flags.h"

#include "core/error.h"

namespace lca::cli {

void CudaFlags::add(CLI::App& app) {
  kernels.add(app, "--kernels", "fast|portable",
              "cuda: the GPU's best kernels, or those that every GPU since sm_80 runs", "fast");
  groups.add(app, "--groups", "bf16|fp8|int8", "cuda: how representatives are stored", "bf16");
}

cuda::LayerOptions CudaFlags::options(bool backend_is_cuda) const {
  static constexpr std::string_view kKernels[] = {"fast", "portable"};
  static constexpr std::string_view kGroups[] = {"bf16", "fp8", "int8"};
  cuda::LayerOptions options;
  options.portable = choice_parse("--kernels", kernels.text, kKernels) == 1;
  options.groups = static_cast<cuda::GroupStorage>(choice_parse("--groups", groups.text, kGroups));
  cuda_only_check(kernels, "--kernels", backend_is_cuda);
  cuda_only_check(groups, "--groups", backend_is_cuda);
  return options;
}

void cuda_only_check(const TextFlag& flag, const char* name, bool backend_is_cuda) {
  if (flag.given() && !backend_is_cuda) {
    fail_input("{} is for the GPU; add --backend cuda, or leave it out", name);
  }
}

}  // namespace lca::cli
