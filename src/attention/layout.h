#pragma once
/// The index law of the mechanism: which tokens are condensed, which stay exact, what a query
/// sees, and which queries score a group. Nothing else in the project computes with g, w and s.
///
/// Positions are 0-based and count from the start of a document. A prefix of n tokens is positions
/// 0 … n−1; the query at position t sees the prefix n = t + 1.

#include <lca/settings.h>

#include <cstdint>

#if defined(__CUDACC__)
#define LCA_HOST_DEVICE __host__ __device__
#else
#define LCA_HOST_DEVICE
#endif

namespace lca {

/// A half-open range of positions (or of indices).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  LCA_HOST_DEVICE constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
  LCA_HOST_DEVICE constexpr bool contains(std::int64_t i) const { return begin <= i && i < end; }
  constexpr bool operator==(const Range&) const = default;
};

/// What one query sees: representatives [0, groups), tokens of `sink`, tokens of `window`. When
/// nothing lies between sink and window the two ranges touch.
struct Visible {
  std::int64_t groups = 0;
  Range sink;
  Range window;

  LCA_HOST_DEVICE constexpr std::int64_t pairs() const {
    return groups + sink.size() + window.size();
  }
};

/// The law for one setting of method, g, w, s and n_q.
struct Layout {
  MethodKind method = MethodKind::lca;
  std::int64_t group = 16;
  std::int64_t window = 1024;
  std::int64_t sink = 0;
  std::int64_t summary_queries = 16;

  Layout() = default;
  explicit Layout(const Settings& settings)
      : method(settings.method),
        group(settings.group),
        window(settings.window),
        sink(settings.sink),
        summary_queries(settings.summary_queries) {}

  /// m(n): groups condensed in a prefix of n tokens.
  LCA_HOST_DEVICE constexpr std::int64_t groups(std::int64_t n) const {
    if (method != MethodKind::lca || n < sink + window + group) return 0;
    return (n - window - sink) / group;
  }

  /// Positions of group j.
  LCA_HOST_DEVICE constexpr Range group_range(std::int64_t j) const {
    return {sink + j * group, sink + (j + 1) * group};
  }

  /// e_j: the first query that sees representative j, at which the group leaves the window.
  LCA_HOST_DEVICE constexpr std::int64_t group_exit(std::int64_t j) const {
    return sink + (j + 1) * group + window - 1;
  }

  /// Queries whose mean scores group j: those that end at e_j, or at the prompt's end where the
  /// prompt (of `prompt` tokens; 0 in `streaming` mode) ends later.
  LCA_HOST_DEVICE constexpr Range summary_range(std::int64_t j, std::int64_t prompt) const {
    const std::int64_t exit = group_exit(j);
    const std::int64_t last = exit > prompt - 1 ? exit : prompt - 1;
    const std::int64_t first = last + 1 - summary_queries;
    return {first > 0 ? first : 0, last + 1};
  }

  /// Tokens after the sink that a prefix of n tokens no longer holds: condensed, or (method
  /// `window`) forgotten. Positions [sink, sink + dropped(n)) are gone.
  LCA_HOST_DEVICE constexpr std::int64_t dropped(std::int64_t n) const {
    if (method == MethodKind::lca) return groups(n) * group;
    if (method == MethodKind::window && n > sink + window) return n - window - sink;
    return 0;
  }

  /// The shortest prefix whose dropped(n) is at least `gone`.
  LCA_HOST_DEVICE constexpr std::int64_t shortest_prefix(std::int64_t gone) const {
    return gone == 0 ? 0 : sink + window + gone;
  }

  /// The first query that the next condensation of a prefix of n tokens needs.
  LCA_HOST_DEVICE constexpr std::int64_t first_query_needed(std::int64_t n) const {
    return summary_range(groups(n), 0).begin;
  }

  /// What the query at position t sees.
  LCA_HOST_DEVICE constexpr Visible visible(std::int64_t t) const {
    const std::int64_t n = t + 1;
    const std::int64_t sink_end = sink < n ? sink : n;
    return {groups(n), {0, sink_end}, {sink_end + dropped(n), n}};
  }

  /// Pairs of a query and something it sees, over queries 0 … n−1.
  std::int64_t pairs(std::int64_t n) const;
};

}  // namespace lca
