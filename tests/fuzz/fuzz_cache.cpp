// Cache::load on hostile bytes, and all operations on caches that it accepts.

#include <lca/lca.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "attention/cache_state.h"
#include "support/cache_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> stream(size);
  if (size > 0) std::memcpy(stream.data(), data, size);
  // Once as it is, and once with a valid checksum: an invalid one would hide all other checks.
  for (bool sealed : {false, true}) {
    if (sealed) lca::cache_seal(stream);
    std::optional<lca::Cache> cache;
    try {
      cache = lca::Cache::load(stream);
    } catch (const lca::Error&) {
      continue;  // the only allowed exception
    }
    lca::test::cache_exercise(*cache);
  }
  return 0;
}
