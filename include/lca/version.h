#pragma once

#define LCA_VERSION_MAJOR 0
#define LCA_VERSION_MINOR 1
#define LCA_VERSION_PATCH 0

namespace lca {

/// "major.minor.patch"
const char* version();

}  // namespace lca
