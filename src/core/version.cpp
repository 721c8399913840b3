#include <lca/version.h>

#define LCA_TEXT_OF(x) #x
#define LCA_TEXT(x) LCA_TEXT_OF(x)

namespace lca {

const char* version() {
  return LCA_TEXT(LCA_VERSION_MAJOR) "." LCA_TEXT(LCA_VERSION_MINOR) "." LCA_TEXT(
      LCA_VERSION_PATCH);
}

}  // namespace lca
