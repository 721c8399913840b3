#include "core/cpu_level.h"

#include <hwy/targets.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "core/error.h"

namespace lca {
namespace {

CpuLevel processor_level() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuLevel::avx512;
  }
  // F16C is older than AVX2: no processor has the latter alone.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? CpuLevel::avx2 : CpuLevel::scalar;
#else
  return CpuLevel::avx2;
#endif
}

constexpr std::array kLevels{CpuLevel::scalar, CpuLevel::avx2, CpuLevel::avx512};

CpuLevel asked_level() {
  const CpuLevel best = processor_level();
  const char* asked = std::getenv("LCA_CPU");
  if (asked == nullptr || *asked == '\0') return best;
  for (const CpuLevel level : kLevels) {
    if (cpu_level_name(level) != asked) continue;
    if (level > best) {
      fail_incompatible("LCA_CPU is {}, which this processor lacks; it has {}", asked,
                        cpu_level_name(best));
    }
    return level;
  }
  fail_input("LCA_CPU is {}; it takes scalar, {} or nothing", asked,
#if defined(__x86_64__)
             "avx2, avx512"
#else
             "neon"
#endif
  );
}

/// Keeps Highway to instruction sets of a level.
void highway_lower(CpuLevel level) {
  using Targets = decltype(hwy::SupportedTargets());
  if (level >= processor_level()) return;
  Targets kept = static_cast<Targets>(HWY_STATIC_TARGET);
#if defined(__x86_64__)
  // Better targets are lower bits.
  if (level == CpuLevel::avx2) kept = ~(static_cast<Targets>(HWY_AVX2) - 1);
#endif
  hwy::DisableTargets(hwy::SupportedTargets() & ~kept);
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level = [] {
    const CpuLevel asked = asked_level();
    highway_lower(asked);
    return asked;
  }();
  return level;
}

}  // namespace

CpuLevel cpu_level() { return level_in_use(); }

void cpu_level_lower(CpuLevel level) {
  if (level >= cpu_level()) return;
  level_in_use() = level;
  highway_lower(level);
}

std::string_view cpu_level_name(CpuLevel level) {
#if defined(__x86_64__)
  constexpr std::array<std::string_view, 3> kNames{"scalar", "avx2", "avx512"};
#else
  constexpr std::array<std::string_view, 3> kNames{"scalar", "neon", ""};
#endif
  return kNames[static_cast<std::size_t>(level)];
}

}  // namespace lca
