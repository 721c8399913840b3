// Cache::load on hostile bytes, and everything one may do with what it accepts.

#include <lca/lca.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/cache_state.h"
#include "support/cache_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> stream(size);
  if (size > 0) std::memcpy(stream.data(), data, size);
  try {
    // A checksum that hides every other check would leave them untested, so it is made right for
    // half of the inputs: the loader sees the bytes as they are, and then as a forger would seal
    // them.
    for (int pass = 0; pass < 2; ++pass) {
      if (pass == 1) lca::cache_seal(stream);
      try {
        lca::test::cache_exercise(lca::Cache::load(stream));
      } catch (const lca::Error&) {
        // The only way load may refuse.
      }
    }
  } catch (const lca::Error&) {
    // cache_seal refuses streams that have no room for a checksum.
  }
  return 0;
}
