#pragma once
/// The instruction sets that SIMD files are compiled for. Include before any header of Highway.

// Not those whose vectors have no size known to the compiler: the register-blocked products need
// arrays of vectors. Nor SSSE3: processors without SSE4 take SSE2. A sanitizer sees the same code
// in the narrowest and the wider ones, and takes long to compile each.
#ifdef LCA_SANITIZED
#define LCA_SPARED_TARGETS HWY_SSE4
#else
#define LCA_SPARED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | LCA_SPARED_TARGETS)
