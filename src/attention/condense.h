#pragma once
/// Condensation on the CPU: from queries and exact tokens to representatives (mechanism §3–§5).

#include <lca/context.h>
#include <lca/method.h>

#include <cstdint>
#include <span>

namespace lca {

/// Scores, pools and appends every group of each run's cache that the index law says is condensed
/// at its length and that is not there yet. The runs' entries must have been appended already, and
/// their queries not yet.
void condense(Context& context, const LayerWeights& weights, std::span<const Run> runs);

/// Scratch bytes `condense` needs with this many threads.
std::size_t condense_workspace_bytes(const LayerSpec& spec, int threads);

}  // namespace lca
