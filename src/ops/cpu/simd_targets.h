#pragma once
/// The instruction sets that SIMD files are compiled for. Include before any header of Highway.

// Not those whose vectors have no size known to the compiler: the register-blocked products need
// arrays of vectors. Nor SSSE3: processors without SSE4 take SSE2.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
