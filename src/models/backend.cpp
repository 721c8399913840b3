#include "models/backend.h"

#include <limits>

#include "core/machine_memory.h"

namespace lca {

std::size_t ModelBackend::memory_free() const {
  const std::int64_t bytes = memory_available();
  return bytes < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(bytes);
}

}  // namespace lca
