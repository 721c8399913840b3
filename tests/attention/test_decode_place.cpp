// Which tiles a decode step on the GPU reads: everything a query sees, once, from the right row.
// Tests the kernel's index computations; no GPU is needed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/cuda/decode/decode_place.h"
#include "support/random.h"

namespace lca::test {
namespace {

using cuda::decoding::kTile;
using cuda::decoding::Place;
using cuda::decoding::Rows;
using cuda::decoding::Schedule;

struct Step {
  Layout32 layout;
  int length = 0;
  int ring = 0;
  int blocks = 1;
  int fewest_tiles = 1;
  int exact_tile = kTile;

  std::string text() const {
    return "g " + std::to_string(layout.group) + ", w " + std::to_string(layout.window) + ", s " +
           std::to_string(layout.sink) + ", length " + std::to_string(length) + ", ring " +
           std::to_string(ring) + ", blocks " + std::to_string(blocks) + " of " +
           std::to_string(fewest_tiles) + " tiles, of " + std::to_string(exact_tile) +
           " exact tokens";
  }
};

void expect_everything_once(const Step& step) {
  SCOPED_TRACE(step.text());
  const Place at(step.layout, step.length, step.ring);
  const BasicVisible<std::int32_t> seen = step.layout.visible(step.length);
  std::vector<int> groups(static_cast<std::size_t>(seen.groups));
  std::vector<int> tokens(static_cast<std::size_t>(step.length) + 1);
  int next_tile = 0, active = 0, token_owners = 0, group_owners = 0;
  for (int block = 0; block < step.blocks; ++block) {
    const Schedule tiles(at, step.blocks, step.fewest_tiles, block, step.exact_tile);
    // A block without tiles comes after all that have some.
    ASSERT_EQ(tiles.first, block < tiles.active ? next_tile : tiles.count);
    ASSERT_EQ(tiles.first < tiles.last, block < tiles.active);
    next_tile = tiles.last;
    active = tiles.active;
    token_owners += tiles.owns_newest_token() ? 1 : 0;
    group_owners += tiles.owns_newest_group() ? 1 : 0;
    bool has_newest_token = false, makes_group = false;
    for (int i = tiles.first; i < tiles.last; ++i) {
      const Rows rows = tiles(i);
      ASSERT_GT(rows.count, 0);
      ASSERT_LE(rows.count, rows.kind == Rows::page ? kTile : step.exact_tile);
      ASSERT_EQ(rows.kind != Rows::made, i < tiles.loads);
      for (int k = 0; k < rows.count; ++k) {
        const int entry = rows.first + k;
        if (rows.kind == Rows::exact) {
          // Entry of the list → position → row of the ring, against the row that is read.
          const int e = entry - seen.groups;
          const int position = e < seen.sink.size() ? e : seen.window.begin + e - seen.sink.size();
          ASSERT_LT(position, step.length + 1);
          ++tokens[static_cast<std::size_t>(position)];
          ASSERT_EQ(rows.row + k, at.position_row(position));
          ASSERT_LT(rows.row + k, step.layout.sink + step.ring);
          if (position == step.length) has_newest_token = true;
        } else {
          ASSERT_LT(entry, seen.groups);
          ++groups[static_cast<std::size_t>(entry)];
          if (rows.kind == Rows::page) {
            ASSERT_EQ(entry, rows.row * kTile + k);  // a tile is a page
          } else {
            ASSERT_TRUE(at.leaves);
            ASSERT_EQ(entry, seen.groups - 1);
            makes_group = true;
          }
        }
      }
    }
    ASSERT_EQ(has_newest_token, tiles.owns_newest_token());
    ASSERT_EQ(makes_group, tiles.owns_newest_group());
    if (block + 1 == step.blocks) {
      ASSERT_EQ(tiles.last, tiles.count);
    }
  }
  EXPECT_EQ(token_owners, 1);
  EXPECT_EQ(group_owners, at.leaves ? 1 : 0);
  EXPECT_LE(active, step.blocks);
  EXPECT_TRUE(std::all_of(groups.begin(), groups.end(), [](int times) { return times == 1; }));
  for (int p = 0; p <= step.length; ++p) {
    const bool visible = seen.sink.contains(p) || seen.window.contains(p);
    ASSERT_EQ(tokens[static_cast<std::size_t>(p)], visible ? 1 : 0) << "position " << p;
  }
}

TEST(DecodePlace, ABlockOfEverySizeReadsItsTilesOnce) {
  Random random(11);
  const auto draw = [&](int first, int last) {
    return static_cast<int>(random.integer(first, last));
  };
  for (int round = 0; round < 4000; ++round) {
    Step step;
    step.layout.group = draw(1, 40);
    step.layout.window = draw(1, 300);
    step.layout.sink = draw(0, 3) == 0 ? draw(0, 150) : 0;
    step.ring = step.layout.window + step.layout.group + draw(0, 5);
    step.length = draw(0, 3000);
    step.blocks = draw(1, 24);
    step.fewest_tiles = draw(1, 6);
    step.exact_tile = draw(0, 1) == 0 ? kTile : kTile / 2;
    ASSERT_NO_FATAL_FAILURE(expect_everything_once(step));
    if (::testing::Test::HasNonfatalFailure()) return;
  }
}

TEST(DecodePlace, TheWindowOfModelsAroundEveryWrapOfTheRing) {
  // g 16, w 1024: two groups' worth of lengths, and the ring's first end.
  for (int length : {0, 1, 15, 1023, 1024, 1038, 1039, 1040, 131072}) {
    for (int more = 0; more < 34; ++more) {
      Step step;
      step.length = length + more;
      step.ring = 1024 + 16;
      step.blocks = 80;
      step.fewest_tiles = 2;
      ASSERT_NO_FATAL_FAILURE(expect_everything_once(step));
    }
  }
}

TEST(DecodePlace, NoBlockHasMoreTilesThanNecessary) {
  for (int blocks : {1, 2, 7, 80, 200}) {
    const Layout32 layout;
    const Place at(layout, 131072 + 5, 1040);
    int most = 0, count = 0;
    for (int block = 0; block < blocks; ++block) {
      const Schedule tiles(at, blocks, 1, block);
      most = std::max(most, tiles.last - tiles.first);
      count = tiles.count;
    }
    EXPECT_EQ(most, (count + blocks - 1) / blocks);
  }
}

}  // namespace
}  // namespace lca::test
