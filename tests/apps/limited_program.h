#pragma once
/// Runs the real program under a resource limit.

#include "apps/program.h"

#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lca::test {

/// Runs `lca` to the end with a limit (RLIMIT_AS: bytes of addresses, RLIMIT_FSIZE: of a file).
Finished program_run_limited(int resource, std::uint64_t limit,
                             const std::vector<std::string>& arguments);

}  // namespace lca::test
