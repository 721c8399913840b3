// Entry positions (mechanism §10) against the list of entries itself.

#include "attention/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace lca {
namespace {

/// What a query sees, in order: positions of tokens, and −1 − j for representative j.
std::vector<std::int64_t> entry_list(const Layout& layout, std::int64_t t) {
  const Visible seen = layout.visible(t);
  std::vector<std::int64_t> list;
  for (std::int64_t i = seen.sink.begin; i < seen.sink.end; ++i) list.push_back(i);
  for (std::int64_t j = 0; j < seen.groups; ++j) list.push_back(-1 - j);
  for (std::int64_t i = seen.window.begin; i < seen.window.end; ++i) list.push_back(i);
  return list;
}

TEST(EntryLayout, AnEntrysPositionIsItsPlaceInTheListOfWhatAQuerySees) {
  for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    for (std::int64_t g = 1; g <= 5; ++g) {
      for (std::int64_t w = 1; w <= 5; ++w) {
        for (std::int64_t s = 0; s <= 4; ++s) {
          Settings settings;
          settings.method = method;
          settings.group = g;
          settings.window = w;
          settings.sink = s;
          const Layout layout(settings);
          const Layout32 narrow = layout32(layout);
          for (std::int64_t t = 0; t < 40; ++t) {
            const std::vector<std::int64_t> list = entry_list(layout, t);
            const std::int64_t own = layout.entry_position(t);
            ASSERT_EQ(list.at(static_cast<std::size_t>(own)), t);
            EXPECT_EQ(layout.entries(t + 1), static_cast<std::int64_t>(list.size()));
            EXPECT_EQ(narrow.entry_position(static_cast<std::int32_t>(t)), own);
            for (std::size_t p = 0; p < list.size(); ++p) {
              const auto position = static_cast<std::int64_t>(p);
              if (list[p] < 0) {
                EXPECT_EQ(layout.group_position(-1 - list[p]), position);
              } else if (list[p] < s) {
                EXPECT_EQ(list[p], position);  // the sink keeps its positions
              } else {
                EXPECT_EQ(own - position, t - list[p]);  // the window its distances
              }
            }
          }
        }
      }
    }
  }
}

TEST(EntryLayout, PositionsGrowByOneForEachGroupAndStayInsideAWindow) {
  Settings settings;
  settings.sink = 16;
  const Layout lca(settings);
  EXPECT_EQ(lca.entry_position(1024 + 16 + 14), 1024 + 16 + 14);  // nothing condensed yet
  EXPECT_EQ(lca.entry_position(1024 + 16 + 15), 1024 + 16 + 15 - 15);
  EXPECT_EQ(lca.entries(100'000), 16 + (100'000 - 16 - 1024) / 16 + 1024 + (100'000 - 1040) % 16);
  settings.method = MethodKind::window;
  EXPECT_EQ(Layout(settings).entry_position(5'000'000), 16 + 1024 - 1);
}

}  // namespace
}  // namespace lca
