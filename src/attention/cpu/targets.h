#pragma once
/// Which instruction sets the SIMD files are compiled for; to be included before any of Highway.

// Arrays of vectors, which the register-blocked products need, do not exist for vectors of unknown
// size.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
