// What core/cpu_level.cpp calls of Highway's library, which is not here for this processor. The
// program is compiled for one of its targets, so nothing is chosen.

#include <hwy/targets.h>

namespace hwy {

std::int64_t SupportedTargets() { return HWY_TARGETS; }
void DisableTargets(std::int64_t) {}

}  // namespace hwy
