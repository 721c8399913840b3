#include "server/app/number_tokenizer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace lca::test {
namespace {

TEST(NumberTokenizer, EveryTokenReadsItsNumber) {
  const Tokenizer tokenizer = server::number_tokenizer(1200);
  EXPECT_EQ(tokenizer.size(), 1200);
  std::vector<std::int32_t> ids(1200);
  std::iota(ids.begin(), ids.end(), 0);
  std::string all;
  for (const std::int32_t id : ids) all += " " + std::to_string(id);
  EXPECT_EQ(tokenizer.decode(ids), all);
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(1199), " 1199");
  EXPECT_FALSE(tokenizer.end_token());
}

}  // namespace
}  // namespace lca::test
