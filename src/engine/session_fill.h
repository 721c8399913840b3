#pragma once
/// Sessions without reading, for measurements.

#include <lca/session.h>

#include <cstdint>
#include <vector>

namespace lca {

/// An empty session takes `tokens` without running the model: its caches are filled with random
/// numbers. Throws Error where the device cannot, or memory is short; the session is empty then.
void session_fill(Session& session, std::vector<std::int32_t> tokens, std::uint32_t seed);

}  // namespace lca
