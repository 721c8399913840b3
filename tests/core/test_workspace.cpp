#include "core/workspace.h"

#include "support/sanitized.h"

#include <gtest/gtest.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

namespace lca {
namespace {

TEST(Workspace, MemoryOfSessionsIsAlignedAndItsOwn) {
  std::deque<SessionBytes> pieces;
  const std::size_t sizes[] = {0,      1,      63,      64,      1000,   131071,
                               131072, 131073, 1 << 20, 4194303, 4 << 20};
  for (const std::size_t bytes : sizes) {
    pieces.push_back(session_bytes(bytes));
    std::byte* memory = pieces.back().get();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kAlignment, 0u) << bytes;
    std::memset(memory, static_cast<int>(pieces.size()), bytes);
  }
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    for (std::size_t byte = 0; byte < sizes[at]; byte += sizes[at] / 7 + 1) {
      EXPECT_EQ(pieces[at][byte], static_cast<std::byte>(at + 1));
    }
  }
}

TEST(Workspace, PiecesOfSessionsFitWhereEarlierOnesWere) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer has a heap of its own";
  // Pieces come and go; what stays longer lies between them, as in a server.
  constexpr std::size_t kPieces = 500, kPiece = 1024, kOthers = 5000, kOther = 100;
  std::deque<SessionBytes> pieces;
  std::deque<std::unique_ptr<std::byte[]>> others;
  const std::size_t before = ::mallinfo2().arena;
  for (int round = 0; round < 20000; ++round) {
    pieces.push_back(session_bytes(kPiece));
    if (pieces.size() > kPieces) pieces.pop_front();
    others.push_back(std::make_unique<std::byte[]>(kOther));
    if (others.size() > kOthers) others.pop_front();
  }
  // With std::aligned_alloc and glibc 2.36 it was six times what is in use.
  EXPECT_LE(::mallinfo2().arena, before + 2 * (kPieces * kPiece + kOthers * kOther));
#else
  GTEST_SKIP() << "this heap does not say what it takes";
#endif
}

}  // namespace
}  // namespace lca
