// The index law against a second implementation of mechanism §2: a sequence that grows token by
// token, a sink that fills first, and a buffer that releases its oldest g tokens when it holds w +
// g.

#include "attention/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "support/random.h"

namespace lca {
namespace {

constexpr std::int64_t kTokens = 40;
constexpr std::int64_t kMostGroup = 6;
constexpr std::int64_t kMostWindow = 6;
constexpr std::int64_t kMostSink = 5;
constexpr std::int64_t kMostQueries = 5;

using Indices = std::vector<std::int64_t>;

// Where every position of a prefix is: kSink, kWindow, kForgotten, or the number of its group.
constexpr std::int64_t kSink = -1;
constexpr std::int64_t kWindow = -2;
constexpr std::int64_t kForgotten = -3;

// The state of a sequence after each of its tokens.
struct Grown {
  std::vector<Indices> place;        // place[n][i], for the prefix of n tokens
  std::vector<std::int64_t> groups;  // groups[n]
  std::vector<Indices> members;      // members[j], the positions of group j
  Indices exit;                      // exit[j], the token whose arrival condensed group j
};

Grown grow(const Layout& layout) {
  Grown grown;
  Indices place;
  std::deque<std::int64_t> buffer;
  grown.place.push_back(place);
  grown.groups.push_back(0);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const bool in_sink = t < layout.sink;
    place.push_back(in_sink ? kSink : kWindow);
    if (!in_sink) buffer.push_back(t);
    const auto held = static_cast<std::int64_t>(buffer.size());
    if (layout.method == MethodKind::lca && held == layout.window + layout.group) {
      Indices group;
      for (std::int64_t k = 0; k < layout.group; ++k) {
        group.push_back(buffer.front());
        place[static_cast<std::size_t>(buffer.front())] =
            static_cast<std::int64_t>(grown.members.size());
        buffer.pop_front();
      }
      grown.members.push_back(group);
      grown.exit.push_back(t);
    }
    if (layout.method == MethodKind::window && held > layout.window) {
      place[static_cast<std::size_t>(buffer.front())] = kForgotten;
      buffer.pop_front();
    }
    grown.place.push_back(place);
    grown.groups.push_back(static_cast<std::int64_t>(grown.members.size()));
  }
  return grown;
}

Indices positions(const Range& range) {
  Indices all;
  for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
  return all;
}

// Calls `check` for every small layout, and reports which one failed.
template <typename Check>
void for_all(Check&& check) {
  for (MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    for (std::int64_t g = 1; g <= kMostGroup; ++g) {
      for (std::int64_t w = 1; w <= kMostWindow; ++w) {
        for (std::int64_t s = 0; s <= kMostSink; ++s) {
          for (std::int64_t queries = 1; queries <= kMostQueries; ++queries) {
            Settings settings;
            settings.method = method;
            settings.group = g;
            settings.window = w;
            settings.sink = s;
            settings.summary_queries = queries;
            const Layout layout(settings);
            check(layout, grow(layout));
            if (::testing::Test::HasFailure()) {
              FAIL() << "method " << static_cast<int>(method) << " g=" << g << " w=" << w
                     << " s=" << s << " n_q=" << queries;
            }
          }
        }
      }
    }
  }
}

TEST(Layout, EveryPositionIsInTheSinkInOneGroupOrInTheWindow) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::int64_t n = 1; n <= kTokens; ++n) {
      const Visible visible = layout.visible(n - 1);
      ASSERT_EQ(visible.groups, layout.groups(n));
      ASSERT_GE(visible.sink.begin, 0);
      ASSERT_LE(visible.window.end, n);
      Indices place(static_cast<std::size_t>(n), kForgotten);
      std::int64_t put = 0;
      const auto mark = [&](const Range& range, std::int64_t as) {
        for (std::int64_t i = range.begin; i < range.end; ++i, ++put) {
          place[static_cast<std::size_t>(i)] = as;
        }
      };
      mark(visible.sink, kSink);
      mark(visible.window, kWindow);
      for (std::int64_t j = 0; j < visible.groups; ++j) mark(layout.group_range(j), j);
      ASSERT_EQ(place, grown.place[static_cast<std::size_t>(n)]) << "n=" << n;
      // As many entries as positions: none was set twice.
      const auto forgotten = std::count(place.begin(), place.end(), kForgotten);
      ASSERT_EQ(put, n - forgotten) << "n=" << n;
      if (layout.method != MethodKind::window) {
        ASSERT_EQ(forgotten, 0);
      }
    }
  });
}

TEST(Layout, QueriesThatSeeAKeyAreThoseToWhichItIsVisible) {
  for_all([](const Layout& layout, const Grown&) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{7}, kTokens}) {
      for (std::int64_t i = 0; i < n; ++i) {
        const Range queries = layout.token_queries(i, n);
        for (std::int64_t t = 0; t < n; ++t) {
          const Visible visible = layout.visible(t);
          ASSERT_EQ(queries.contains(t), visible.sink.contains(i) || visible.window.contains(i));
        }
      }
      for (std::int64_t j = 0; j < layout.groups(n); ++j) {
        const Range queries = layout.group_queries(j, n);
        for (std::int64_t t = 0; t < n; ++t) {
          ASSERT_EQ(queries.contains(t), j < layout.visible(t).groups);
        }
      }
    }
  });
}

TEST(Layout, TheNumberOfGroupsIsTheNumberThatLeftTheWindow) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      ASSERT_EQ(layout.groups(n), grown.groups[static_cast<std::size_t>(n)]) << "n=" << n;
    }
  });
}

TEST(Layout, GroupsFollowEachOtherFromTheSinkOn) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::size_t j = 0; j < grown.members.size(); ++j) {
      const Range range = layout.group_range(static_cast<std::int64_t>(j));
      ASSERT_EQ(positions(range), grown.members[j]) << "j=" << j;
      ASSERT_EQ(range.size(), layout.group);
    }
  });
}

TEST(Layout, TheWindowHoldsAtLeastWTokensOnceThereAreThatMany) {
  for_all([](const Layout& layout, const Grown&) {
    for (std::int64_t n = layout.sink + layout.window; n <= kTokens; ++n) {
      const std::int64_t held = layout.visible(n - 1).window.size();
      ASSERT_GE(held, layout.window) << "n=" << n;
      if (layout.method == MethodKind::lca) {
        ASSERT_EQ(held, layout.window + (n - layout.window - layout.sink) % layout.group);
        ASSERT_LT(held, layout.window + layout.group);
      }
      if (layout.method == MethodKind::window) {
        ASSERT_EQ(held, layout.window);
      }
    }
  });
}

TEST(Layout, TheFirstQueryThatSeesAGroupIsItsExit) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::size_t j = 0; j < grown.exit.size(); ++j) {
      const auto group = static_cast<std::int64_t>(j);
      ASSERT_EQ(layout.group_exit(group), grown.exit[j]) << "j=" << j;
      ASSERT_EQ(layout.visible(grown.exit[j]).groups, group + 1);
      ASSERT_EQ(layout.visible(grown.exit[j] - 1).groups, group);
    }
  });
}

TEST(Layout, AStepAfterAPrefillSeesWhatTheQueryAtThatPositionSees) {
  for_all([](const Layout& layout, const Grown& grown) {
    // Prefill of n tokens leaves place[n]; the step adds token n and condenses at most one group.
    for (std::int64_t n = 1; n < kTokens; ++n) {
      Indices kept = grown.place[static_cast<std::size_t>(n)];
      const Visible step = layout.visible(n);
      kept.push_back(n < layout.sink ? kSink : kWindow);
      ASSERT_LE(step.groups - layout.groups(n), 1);
      for (std::int64_t i = 0; i <= n; ++i) {
        const std::int64_t before = kept[static_cast<std::size_t>(i)];
        // Tokens that the step sees exactly must be exact after the prefill.
        if (step.sink.contains(i)) {
          ASSERT_EQ(before, kSink);
        }
        if (step.window.contains(i)) {
          ASSERT_EQ(before, kWindow);
        }
        // Tokens that are condensed stay in their group.
        if (before >= 0) {
          ASSERT_TRUE(layout.group_range(before).contains(i) && before < step.groups);
        }
      }
    }
  });
}

TEST(Layout, AGroupIsScoredByTheLastQueriesAtItsExitOrAtThePromptsEnd) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::size_t j = 0; j < grown.exit.size(); ++j) {
      // Prompt 0 is `streaming`: no prompt ends after the exit.
      for (std::int64_t prompt = 0; prompt <= kTokens; ++prompt) {
        // Of all queries that exist when the group is condensed, the last.
        const std::int64_t queries = std::max(grown.exit[j] + 1, prompt);
        Indices asked;
        for (std::int64_t t = std::max<std::int64_t>(0, queries - layout.summary_queries);
             t < queries; ++t) {
          asked.push_back(t);
        }
        ASSERT_EQ(positions(layout.summary_range(static_cast<std::int64_t>(j), prompt)), asked)
            << "j=" << j << " P=" << prompt;
      }
    }
  });
}

TEST(Layout, AQueryScoresTheGroupsWhoseRangeHoldsIt) {
  test::Random random(214);
  for (int draw = 0; draw < 200; ++draw) {
    Settings settings;
    settings.group = random.integer(1, 9);
    settings.window = random.integer(1, 20);
    settings.sink = random.integer(0, 5);
    settings.summary_queries = random.integer(1, 40);
    const Layout layout(settings);
    const std::int64_t count = layout.groups(120);
    for (std::int64_t t = 0; t < 120; ++t) {
      const Range scored = layout.summary_groups(t, count);
      for (std::int64_t j = 0; j < count; ++j) {
        ASSERT_EQ(scored.contains(j), layout.summary_range(j, 0).contains(t))
            << "query " << t << ", group " << j;
      }
    }
  }
}

TEST(Layout, DroppedTokensAreThoseAfterTheSinkThatAreNotExact) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      std::int64_t gone = 0;
      for (std::int64_t place : grown.place[static_cast<std::size_t>(n)]) {
        if (place != kSink && place != kWindow) ++gone;
      }
      ASSERT_EQ(layout.dropped(n), gone) << "n=" << n;
    }
  });
}

TEST(Layout, TheShortestPrefixIsTheFirstThatDroppedAsMuch) {
  for_all([](const Layout& layout, const Grown&) {
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      std::int64_t shortest = 0;
      while (layout.dropped(shortest) < layout.dropped(n)) ++shortest;
      ASSERT_EQ(layout.shortest_prefix(layout.dropped(n)), shortest) << "n=" << n;
    }
  });
}

TEST(Layout, NoLaterGroupNeedsAnEarlierQueryThanTheNextOne) {
  for_all([](const Layout& layout, const Grown& grown) {
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      for (std::size_t j = 0; j < grown.exit.size(); ++j) {
        if (grown.exit[j] < n) continue;  // condensed already
        const std::int64_t needed =
            std::max<std::int64_t>(0, grown.exit[j] + 1 - layout.summary_queries);
        ASSERT_LE(layout.first_query_needed(n), needed) << "n=" << n << " j=" << j;
        if (static_cast<std::int64_t>(j) == grown.groups[static_cast<std::size_t>(n)]) {
          ASSERT_EQ(layout.first_query_needed(n), needed) << "n=" << n << " j=" << j;
        }
      }
    }
  });
}

TEST(Layout, PairsCountEverythingEveryQuerySees) {
  for_all([](const Layout& layout, const Grown& grown) {
    std::int64_t pairs = 0;
    ASSERT_EQ(layout.pairs(0), 0);
    for (std::int64_t n = 1; n <= kTokens; ++n) {
      for (std::int64_t place : grown.place[static_cast<std::size_t>(n)]) {
        if (place == kSink || place == kWindow) ++pairs;
      }
      pairs += grown.groups[static_cast<std::size_t>(n)];
      ASSERT_EQ(layout.pairs(n), pairs) << "n=" << n;
    }
  });
}

TEST(Layout, TheLargestSettingsAFileMayNameDoNotOverflow) {
  constexpr std::int64_t kLargest = 2147483647;
  Settings settings;
  settings.group = settings.window = settings.sink = settings.summary_queries = kLargest;
  const Layout layout(settings);
  EXPECT_EQ(layout.groups(1 << 20), 0);
  EXPECT_EQ(layout.groups(3 * kLargest - 1), 0);
  EXPECT_EQ(layout.groups(3 * kLargest), 1);
  EXPECT_EQ(layout.group_exit(0), 3 * kLargest - 1);
  EXPECT_EQ(layout.summary_range(0, 0), (Range{2 * kLargest, 3 * kLargest}));
  EXPECT_EQ(layout.visible(9).pairs(), 10);
}

TEST(Layout, The32BitLawIsTheSameUpToTheLongestDocument) {
  constexpr std::int64_t kLargest = 2147483647;
  const std::int64_t lengths[] = {1, 7, 1039, 1040, 1041, 131072, kLongestLayout32};
  for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    for (const std::int64_t group : {std::int64_t{1}, std::int64_t{16}, kLargest}) {
      for (const std::int64_t window : {std::int64_t{1}, std::int64_t{1024}, kLargest}) {
        for (const std::int64_t sink : {std::int64_t{0}, std::int64_t{16}, kLargest}) {
          Settings settings;
          settings.method = method;
          settings.group = group;
          settings.window = window;
          settings.sink = sink;
          const Layout wide(settings);
          const Layout32 narrow = layout32(wide);
          for (const std::int64_t n : lengths) {
            const Visible expected = wide.visible(n - 1);
            const auto got = narrow.visible(static_cast<std::int32_t>(n - 1));
            ASSERT_EQ(got.groups, expected.groups) << n;
            ASSERT_EQ(got.sink.end, expected.sink.end) << n;
            ASSERT_EQ(got.window.begin, expected.window.begin) << n;
            ASSERT_EQ(got.window.end, expected.window.end) << n;
          }
        }
      }
    }
  }
}

TEST(Layout, TheExampleOfThePresetsHoldsAt128K) {
  // 9,152 entries a layer at 128K tokens, w = 1024, g = 16 (mechanism §7).
  const Layout layout{Settings{}};
  constexpr std::int64_t kLength = 128 * 1024;
  EXPECT_EQ(layout.groups(kLength) + kLength - layout.dropped(kLength), 9152);
}

}  // namespace
}  // namespace lca
