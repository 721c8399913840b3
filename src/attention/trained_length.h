#pragma once
/// How long a context may be before RoPE counts positions that a model was not trained on
/// (mechanism §10). With positions `token` a position is a token; with `entry` it is one of the
/// entries that a query sees: sink, representatives, window.

#include <lca/settings.h>

#include <cstdint>
#include <limits>
#include <span>

namespace lca {

/// The length of a context that no number of positions limits.
inline constexpr std::int64_t kEndlessContext = std::numeric_limits<std::int64_t>::max();

/// Positions that the queries of a prefix of n tokens need: those of the one that needs most, which
/// with `entry` may be an earlier one, just before a group was condensed.
std::int64_t positions_needed(const Settings& settings, std::int64_t n);
/// The same over all layers.
std::int64_t positions_needed(std::span<const Settings> layers, std::int64_t n);

/// The longest context that needs at most `positions` ≥ 1, or kEndlessContext.
std::int64_t longest_context(const Settings& settings, std::int64_t positions);
/// The same over all layers.
std::int64_t longest_context(std::span<const Settings> layers, std::int64_t positions);

}  // namespace lca
