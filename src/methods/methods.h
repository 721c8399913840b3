#pragma once
/// What the methods share, and the registry's other half: one line here for each method.

#include <lca/method.h>

#include <span>

namespace lca {

const Method& method_dense();
const Method& method_lca();
const Method& method_window();

/// Throws Error where a run lacks a cache of this method, the runs do not belong to one layer, or a
/// view has the wrong shape.
void runs_check(const LayerWeights& weights, std::span<const Run> runs, MethodKind method);

/// Checks the runs' entries and appends them to their caches.
void runs_append(Context& context, std::span<const Run> runs);

/// Checks that the caches can answer, and attends.
void runs_attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first);

}  // namespace lca
