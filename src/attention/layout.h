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
template <typename Int>
struct BasicRange {
  Int begin = 0;
  Int end = 0;

  LCA_HOST_DEVICE constexpr Int size() const { return end > begin ? end - begin : 0; }
  LCA_HOST_DEVICE constexpr bool contains(Int i) const { return begin <= i && i < end; }
  constexpr bool operator==(const BasicRange&) const = default;
};
using Range = BasicRange<std::int64_t>;

/// What one query sees: representatives [0, groups), tokens of `sink`, tokens of `window`. When
/// nothing lies between sink and window the two ranges touch.
template <typename Int>
struct BasicVisible {
  Int groups = 0;
  BasicRange<Int> sink;
  BasicRange<Int> window;

  LCA_HOST_DEVICE constexpr Int pairs() const { return groups + sink.size() + window.size(); }
};
using Visible = BasicVisible<std::int64_t>;

/// The law for one setting of method, g, w, s and n_q. In 64 bits everywhere but on the GPU, where
/// a 64-bit division takes as long as a small tile.
template <typename Int>
struct BasicLayout {
  MethodKind method = MethodKind::lca;
  Int group = 16;
  Int window = 1024;
  Int sink = 0;
  Int summary_queries = 16;

  BasicLayout() = default;
  explicit BasicLayout(const Settings& settings)
      : method(settings.method),
        group(static_cast<Int>(settings.group)),
        window(static_cast<Int>(settings.window)),
        sink(static_cast<Int>(settings.sink)),
        summary_queries(static_cast<Int>(settings.summary_queries)) {}

  /// m(n): groups condensed in a prefix of n tokens.
  LCA_HOST_DEVICE constexpr Int groups(Int n) const {
    if (method != MethodKind::lca || n < sink + window + group) return 0;
    return (n - window - sink) / group;
  }

  /// Positions of group j.
  LCA_HOST_DEVICE constexpr BasicRange<Int> group_range(Int j) const {
    return {sink + j * group, sink + (j + 1) * group};
  }

  /// e_j: the first query that sees representative j, at which the group leaves the window.
  LCA_HOST_DEVICE constexpr Int group_exit(Int j) const {
    return sink + (j + 1) * group + window - 1;
  }

  /// Queries whose mean scores group j: those that end at e_j, or at the prompt's end where the
  /// prompt (of `prompt` tokens; 0 in `streaming` mode) ends later.
  LCA_HOST_DEVICE constexpr BasicRange<Int> summary_range(Int j, Int prompt) const {
    const Int exit = group_exit(j);
    const Int last = exit > prompt - 1 ? exit : prompt - 1;
    const Int first = last + 1 - summary_queries;
    return {first > 0 ? first : 0, last + 1};
  }

  /// Of a sequence's first `count` groups those that query t scores in `streaming` mode: whose
  /// summary_range(j, 0) holds it.
  LCA_HOST_DEVICE constexpr BasicRange<Int> summary_groups(Int t, Int count) const {
    const Int first = group_exit(0);
    const Int last = t + summary_queries - 1 - first;  // how far behind e_0 the last range may end
    if (last < 0) return {0, 0};
    const Int end = last / group + 1;
    return {t > first ? (t - first + group - 1) / group : 0, end < count ? end : count};
  }

  /// Tokens after the sink that a prefix of n tokens no longer holds: condensed, or (method
  /// `window`) forgotten. Positions [sink, sink + dropped(n)) are gone.
  LCA_HOST_DEVICE constexpr Int dropped(Int n) const {
    if (method == MethodKind::lca) return groups(n) * group;
    if (method == MethodKind::window && n > sink + window) return n - window - sink;
    return 0;
  }

  /// By how much entry positions lie behind token positions in a prefix of n tokens: what is gone
  /// counts as its representatives alone (mechanism §10).
  LCA_HOST_DEVICE constexpr Int position_shift(Int n) const { return dropped(n) - groups(n); }

  /// P(t): the index of query t's own token among the entries it sees (sink, representatives,
  /// window). Sink and representatives are seen from here, the window from t.
  LCA_HOST_DEVICE constexpr Int entry_position(Int t) const { return t - position_shift(t + 1); }

  /// The index of representative j among the entries.
  LCA_HOST_DEVICE constexpr Int group_position(Int j) const { return sink + j; }

  /// Entries a prefix of n tokens leaves: sink, representatives, window.
  LCA_HOST_DEVICE constexpr Int entries(Int n) const { return n - position_shift(n); }

  /// The shortest prefix whose dropped(n) is at least `gone`.
  LCA_HOST_DEVICE constexpr Int shortest_prefix(Int gone) const {
    return gone == 0 ? 0 : sink + window + gone;
  }

  /// The first query that the next condensation of a prefix of n tokens needs.
  LCA_HOST_DEVICE constexpr Int first_query_needed(Int n) const {
    return summary_range(groups(n), 0).begin;
  }

  /// What the query at position t sees.
  LCA_HOST_DEVICE constexpr BasicVisible<Int> visible(Int t) const {
    const Int n = t + 1;
    const Int sink_end = sink < n ? sink : n;
    return {groups(n), {0, sink_end}, {sink_end + dropped(n), n}};
  }

  /// The queries of a document of n tokens that see token i, and those that see representative j:
  /// `visible` turned round.
  LCA_HOST_DEVICE constexpr BasicRange<Int> token_queries(Int i, Int n) const {
    if (i < sink || method == MethodKind::dense) return {i, n};
    const Int end = method == MethodKind::lca ? group_exit((i - sink) / group) : i + window;
    return {i, end < n ? end : n};
  }
  LCA_HOST_DEVICE constexpr BasicRange<Int> group_queries(Int j, Int n) const {
    return {group_exit(j), n};
  }

  /// Pairs of a query and something it sees, over queries 0 … n−1.
  Int pairs(Int n) const;
};
using Layout = BasicLayout<std::int64_t>;
template <>
std::int64_t Layout::pairs(std::int64_t n) const;

/// The longest document a Layout32 is right for.
inline constexpr std::int64_t kLongestLayout32 = std::int64_t{1} << 29;

/// The same law in 32 bits, for documents of up to kLongestLayout32 tokens.
using Layout32 = BasicLayout<std::int32_t>;

/// Widths beyond any document are cut to what 32 bits can add up; the law is the same.
inline Layout32 layout32(const Layout& layout) {
  const auto cut = [](std::int64_t value) {
    return static_cast<std::int32_t>(value < kLongestLayout32 ? value : kLongestLayout32);
  };
  Layout32 narrow;
  narrow.method = layout.method;
  narrow.group = cut(layout.group);
  narrow.window = cut(layout.window);
  narrow.sink = cut(layout.sink);
  narrow.summary_queries = cut(layout.summary_queries);
  return narrow;
}

}  // namespace lca
