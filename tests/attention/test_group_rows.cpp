// Pages of representatives that several holders share.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "attention/group_rows.h"

namespace lca::test {
namespace {

constexpr GroupRowBytes kBytes{.semantic = 8, .positional = 8, .bias = 4};
constexpr std::size_t kRow = 20;

void write(GroupRows& rows, std::int64_t from, std::int64_t tag) {
  for (std::int64_t j = from; j < rows.rows(); ++j) {
    const std::int64_t value = tag * 1'000'000 + j;
    const auto bias = static_cast<float>(value);
    std::memcpy(rows.semantic(j), &value, sizeof(value));
    std::memcpy(rows.positional(j), &value, sizeof(value));
    std::memcpy(rows.bias(j), &bias, sizeof(bias));
  }
}

/// Appends `count` rows that hold `tag`.
void extend(GroupRows& rows, std::int64_t count, std::int64_t tag) {
  const std::int64_t before = rows.rows();
  rows.grow(count);
  write(rows, before, tag);
}

/// Whether rows [begin, end) hold `tag`.
bool holds(const GroupRows& rows, std::int64_t begin, std::int64_t end, std::int64_t tag) {
  for (std::int64_t j = begin; j < end; ++j) {
    const std::int64_t value = tag * 1'000'000 + j;
    const auto bias = static_cast<float>(value);
    if (std::memcmp(rows.semantic(j), &value, sizeof(value)) != 0 ||
        std::memcmp(rows.positional(j), &value, sizeof(value)) != 0 ||
        std::memcmp(rows.bias(j), &bias, sizeof(bias)) != 0) {
      return false;
    }
  }
  return true;
}

/// Where the contiguous pieces end.
std::vector<std::int64_t> ends(const GroupRows& rows) {
  std::vector<std::int64_t> list;
  for (std::int64_t j = 0; j < rows.rows(); j = list.back()) {
    list.push_back(j + rows.contiguous(j));
  }
  return list;
}

TEST(GroupRows, HoldersThatSharePagesNeverWriteOverEachOther) {
  for (const std::int64_t shared : {0, 1, 40, 63, 64, 65, 191, 192, 200, 384}) {
    GroupRows one(kBytes);
    extend(one, 500, 1);
    GroupRows two = one.share(shared);
    GroupRows three = one.share(one.rows());
    EXPECT_EQ(two.rows(), shared);
    if (shared > 0) {
      EXPECT_EQ(ends(two).back(), shared);
    }
    for (int round = 0; round < 3; ++round) {
      extend(two, 77, 2);
      extend(three, 50, 3);
      extend(one, 60, 4);
    }
    EXPECT_TRUE(holds(one, 0, 500, 1)) << shared;
    EXPECT_TRUE(holds(one, 500, one.rows(), 4)) << shared;
    EXPECT_TRUE(holds(two, 0, shared, 1)) << shared;
    EXPECT_TRUE(holds(two, shared, two.rows(), 2)) << shared;
    EXPECT_TRUE(holds(three, 0, 500, 1)) << shared;
    EXPECT_TRUE(holds(three, 500, three.rows(), 3)) << shared;
    EXPECT_EQ(ends(two).back(), two.rows()) << shared;
  }
}

// The kernels' blocks lie inside one page, but for the one in which a fork begins.
TEST(GroupRows, PagesEndAtTheKernelsBlocksAlsoInAFork) {
  GroupRows one(kBytes);
  for (int i = 0; i < 600; ++i) one.grow(1);
  EXPECT_EQ(ends(one), (std::vector<std::int64_t>{64, 128, 192, 384, 576, 600}));
  for (const std::int64_t shared : {10, 100, 250}) {
    GroupRows fork = one.share(shared);
    fork.grow(600 - shared);
    for (const std::int64_t end : ends(fork)) {
      EXPECT_TRUE(end == shared || end == 600 || end % (end <= 192 ? 64 : 192) == 0)
          << shared << " " << end;
    }
  }
}

TEST(GroupRows, WhatIsTakenBackIsUsedAgain) {
  GroupRows rows(kBytes);
  extend(rows, 300, 1);
  const std::size_t capacity = rows.capacity_bytes();
  const std::vector<std::int64_t> pieces = ends(rows);
  for (const std::int64_t more : {1, 30, 84, 85, 400}) {
    extend(rows, more, 2);
    rows.take_back(300);
    EXPECT_EQ(rows.rows(), 300);
    EXPECT_EQ(ends(rows), pieces) << more;
    EXPECT_EQ(rows.capacity_bytes(), capacity) << more;
  }
  extend(rows, 50, 3);
  EXPECT_EQ(rows.capacity_bytes(), capacity) << "the page had free slots for them";
  EXPECT_TRUE(holds(rows, 0, 300, 1));
  EXPECT_TRUE(holds(rows, 300, 350, 3));
  rows.take_back(0);
  EXPECT_EQ(rows.capacity_bytes(), 0U);
}

// A fork that ends inside a page and removes its rows leaves the page to the original.
TEST(GroupRows, TakingBackInAForkLeavesTheOriginalAlone) {
  GroupRows one(kBytes);
  extend(one, 40, 1);
  GroupRows fork = one.share(40);
  extend(fork, 10, 2);  // the free slots behind row 40 are now the fork's
  extend(one, 10, 3);
  fork.take_back(40);
  EXPECT_TRUE(holds(one, 40, 50, 3));
  extend(fork, 20, 4);
  extend(one, 20, 5);
  EXPECT_TRUE(holds(one, 0, 40, 1) && holds(one, 40, 50, 3) && holds(one, 50, 70, 5));
  EXPECT_TRUE(holds(fork, 0, 40, 1) && holds(fork, 40, 60, 4));
}

TEST(GroupRows, OnlyPagesThatOthersHoldCountAsShared) {
  GroupRows one(kBytes);
  one.grow(100);
  EXPECT_EQ(one.bytes(), 100 * kRow);
  EXPECT_EQ(one.shared_bytes(), 0U);
  {
    const GroupRows other = one.share(64);
    EXPECT_EQ(one.shared_bytes(), 64 * kRow);
    EXPECT_EQ(other.shared_bytes(), 64 * kRow);
    one.grow(28);
    EXPECT_EQ(one.shared_bytes(), 64 * kRow);
  }
  EXPECT_EQ(one.shared_bytes(), 0U);
}

}  // namespace
}  // namespace lca::test
