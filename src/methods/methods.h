#pragma once
/// The methods, one line for each, and the functions they share.

#include <lca/method.h>

#include <span>

namespace lca {

const Method& method_dense();
const Method& method_lca();
const Method& method_window();

/// Throws Error if a run has no cache of this method, the runs belong to different layers, or a
/// view has the wrong shape.
void runs_check(const LayerWeights& weights, std::span<const Run> runs, MethodKind method);

/// Checks the runs' entries and appends them to their caches.
void runs_append(Context& context, std::span<const Run> runs);

/// Checks that the caches hold what the queries see, and attends.
void runs_attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first);

}  // namespace lca
