#include "core/error.h"

namespace lca {
namespace {

// Made in advance: copying an exception shares its text, so throwing it takes no memory.
const Error kOutOfMemory(ErrorKind::out_of_memory,
                         "not enough memory; use a shorter context, smaller chunks or fewer "
                         "sessions");

}  // namespace

void fail_out_of_memory() { throw Error(kOutOfMemory); }

}  // namespace lca
