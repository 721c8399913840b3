#pragma once
/// Compiles the including file, named in HWY_TARGET_INCLUDE, once per instruction set.

// The order matters.
// clang-format off
#include "ops/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
// clang-format on
