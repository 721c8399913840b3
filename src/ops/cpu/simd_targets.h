#pragma once
/// Compiles the file that includes it, and names itself in HWY_TARGET_INCLUDE, once per instruction
/// set, so that plain loops get the widest vectors of the processor at hand.

// The order matters.
// clang-format off
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
#include <hwy/foreach_target.h>
// clang-format on
