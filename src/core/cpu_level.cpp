#include "core/cpu_level.h"

#include <hwy/targets.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "core/error.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lca {
namespace {

#if defined(__x86_64__)
constexpr std::array<std::string_view, 3> kNames{"scalar", "avx2", "avx512"};
#elif defined(__aarch64__)
constexpr std::array<std::string_view, 3> kNames{"scalar", "neon", "dotprod"};

bool has_dotprod() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t bytes = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
#else
constexpr std::array<std::string_view, 1> kNames{"scalar"};
#endif

CpuLevel processor_level() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuLevel::avx512;
  }
  // F16C is older than AVX2: no processor has the latter alone.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? CpuLevel::avx2 : CpuLevel::scalar;
#elif defined(__aarch64__)
  return has_dotprod() ? CpuLevel::dotprod : CpuLevel::neon;
#else
  return CpuLevel::scalar;
#endif
}

/// Keeps Highway to instruction sets of a level.
void highway_lower(CpuLevel level) {
  using Targets = decltype(hwy::SupportedTargets());
  if (level >= processor_level()) return;
  auto kept = static_cast<Targets>(HWY_STATIC_TARGET);
#if defined(__x86_64__)
  // Better targets are lower bits.
  if (level == CpuLevel::avx2) kept = ~(static_cast<Targets>(HWY_AVX2) - 1);
#elif defined(__aarch64__)
  if (level == CpuLevel::neon) kept = ~(static_cast<Targets>(HWY_NEON) - 1);
#endif
  hwy::DisableTargets(hwy::SupportedTargets() & ~kept);
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level = [] {
    const char* variable = std::getenv("LCA_CPU");
    const CpuLevel asked = cpu_level_asked(variable == nullptr ? "" : variable);
    highway_lower(asked);
    return asked;
  }();
  return level;
}

}  // namespace

CpuLevel cpu_level() { return level_in_use(); }

CpuLevel cpu_level_asked(std::string_view asked) {
  const CpuLevel best = processor_level();
  if (asked.empty()) return best;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != asked) continue;
    const auto level = static_cast<CpuLevel>(i);
    if (level > best) {
      fail_incompatible("LCA_CPU is {}, which this processor lacks; it has {}", asked,
                        cpu_level_name(best));
    }
    return level;
  }
  fail_input("LCA_CPU is {}; it takes {} or nothing", asked, fmt::join(kNames, ", "));
}

void cpu_level_lower(CpuLevel level) {
  if (level >= cpu_level()) return;
  level_in_use() = level;
  highway_lower(level);
}

std::string_view cpu_level_name(CpuLevel level) { return kNames[static_cast<std::size_t>(level)]; }

}  // namespace lca
