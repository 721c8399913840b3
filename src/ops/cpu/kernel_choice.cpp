#include "ops/cpu/kernel_choice.h"

#include <hwy/targets.h>

#include <atomic>

namespace lca {
namespace {

std::atomic<bool> portable{false};

}  // namespace

void cpu_kernels_portable() {
  portable = true;
  hwy::DisableTargets(hwy::SupportedTargets() &
                      ~static_cast<decltype(hwy::SupportedTargets())>(HWY_STATIC_TARGET));
}

bool cpu_kernels_are_portable() { return portable; }

}  // namespace lca
