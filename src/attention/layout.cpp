#include "attention/layout.h"

namespace lca {

template <>
std::int64_t Layout::pairs(std::int64_t n) const {
  std::int64_t total = 0;
  for (std::int64_t t = 0; t < n; ++t) total += visible(t).pairs();
  return total;
}

}  // namespace lca
