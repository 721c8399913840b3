#pragma once
/// Which of the CPU's instructions kernels may use: all it has, or fewer, so that a level can be
/// measured and tested on a better processor.

#include <cstdint>
#include <string_view>

namespace lca {

/// Each has all that those before it have.
enum class CpuLevel : std::uint8_t {
  scalar,  ///< what every processor of its family runs
  // x86
  avx2,    ///< AVX2 with FMA and F16C
  avx512,  ///< AVX-512 (F, BW, VL, DQ); newer parts of it where the processor has them
  // 64-bit Arm
  neon = avx2,       ///< NEON, which every processor has, in kernels of its own too
  dotprod = avx512,  ///< with its dot products of bytes
};

/// The level in use: the processor's, unless the environment variable LCA_CPU (a level's name) or
/// `cpu_level_lower` asks for less. Throws where LCA_CPU names no level, or one that the processor
/// lacks. The first call lowers Highway too, so it comes before any kernel's: every Context makes
/// it.
CpuLevel cpu_level();

/// What a value of LCA_CPU asks for; the processor's level where it is empty. Throws as above.
CpuLevel cpu_level_asked(std::string_view asked);

/// From now on at most `level` is used, in this process; to be called before a model is loaded.
void cpu_level_lower(CpuLevel level);

/// "scalar", "avx2", "avx512"; on 64-bit Arm "scalar", "neon", "dotprod"; elsewhere "scalar".
std::string_view cpu_level_name(CpuLevel level);

}  // namespace lca
