#pragma once
/// Compiles the file that includes it, and names itself in HWY_TARGET_INCLUDE, once per instruction
/// set.

// The order matters.
// clang-format off
#include "attention/cpu/targets.h"
#include <hwy/foreach_target.h>
// clang-format on
