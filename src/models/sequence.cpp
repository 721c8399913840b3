#include "models/sequence.h"

#include "core/error.h"

namespace lca {

void SequenceCaches::fill(std::int64_t, std::uint32_t) {
  fail_incompatible("caches are filled with random numbers on a GPU only; read a prompt instead");
}

}  // namespace lca
