// Beginnings of prompts that are kept.

#include "server/host/host_bench.h"
#include "server/host/prompt_cuts.h"

namespace lca::test {
namespace {

using server::HostOptions;
using server::Job;

std::vector<std::pair<std::string, std::string>> document(const std::string& question) {
  return {{"system", long_text(100)}, {"user", long_text(900, 3)}, {"user", question}};
}

TEST(Prefix, AFollowUpTurnReadsOnlyWhatIsNew) {
  HostBench bench;
  auto talk = document("what is it?");
  const auto first = bench.run(HostBench::chat(talk));
  ASSERT_EQ(first->status(), 200);
  EXPECT_EQ(first->last().usage.cached, 0);
  for (int turn = 0; turn < 3; ++turn) {
    const auto read = bench.host.counts().engine.prefilled_tokens;
    const auto before = bench.run(HostBench::chat(talk, 12, 40 + static_cast<unsigned>(turn)));
    talk.emplace_back("assistant", before->text());
    talk.emplace_back("user", "and then " + std::to_string(turn));
    const auto mid = bench.host.counts().engine.prefilled_tokens;
    EXPECT_LT(mid - read, 40) << "the same question again";
    const auto next = bench.run(HostBench::chat(talk));
    ASSERT_EQ(next->status(), 200);
    // The end of the reply, the turn, and where the assistant begins.
    EXPECT_LT(bench.host.counts().engine.prefilled_tokens - mid, 45) << turn;
    EXPECT_GT(next->last().usage.cached, next->last().usage.prompt - 45);
  }
}

TEST(Prefix, AReplyThatComesBackAsTextKeepsItsIds) {
  HostOptions options = HostBench::usual();
  options.hooks.adjust = [](const Job&, int, std::int64_t) {
    return [](std::span<const std::int32_t>, std::span<float> logits) {
      const Tokenizer tokenizer = *HostBench::usual().tokenizer;
      std::vector<float> left(logits.size(), -std::numeric_limits<float>::infinity());
      for (const char* text : {"t", "h", "th", "a"}) {
        const auto id = static_cast<std::size_t>(*tokenizer.find(text));
        left[id] = logits[id];
      }
      std::ranges::copy(left, logits.begin());
    };
  };
  HostBench bench(options);
  bool differed = false;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::vector<std::pair<std::string, std::string>> talk = {{"user", long_text(80, 7)}};
    const auto reply = bench.run(HostBench::chat(talk, 40, seed));
    const Tokenizer tokenizer = *HostBench::usual().tokenizer;
    const std::int64_t again = std::ssize(tokenizer.encode(reply->text()));
    differed = differed || again != reply->last().usage.completion;
    talk.emplace_back("assistant", reply->text());
    talk.emplace_back("user", "on");
    const auto next = bench.run(HostBench::chat(talk));
    EXPECT_GE(next->last().usage.cached, reply->last().usage.prompt + 40) << seed;
  }
  EXPECT_TRUE(differed) << "no reply has another spelling: the test shows nothing";
}

TEST(Prefix, AHitRepliesAsAMissWould) {
  for (int round = 0; round < 4; ++round) {
    HostBench warm;
    const auto talk = document("first " + std::to_string(round));
    warm.run(HostBench::chat(talk));
    for (const std::string question : {"second?", "third, which is longer"}) {
      Job job = HostBench::chat(document(question), 30, 9);
      job.generate.logprobs = true;
      const auto hit = warm.run(job);
      HostBench fresh;
      const auto miss = fresh.run(job);
      EXPECT_GT(hit->last().usage.cached, 900);
      EXPECT_EQ(miss->last().usage.cached, 0);
      ASSERT_EQ(hit->text(), miss->text());
      std::vector<float> a;
      std::vector<float> b;
      for (const auto& event : hit->all) {
        for (const auto& token : event.tokens) a.push_back(*token.logprob);
      }
      for (const auto& event : miss->all) {
        for (const auto& token : event.tokens) b.push_back(*token.logprob);
      }
      EXPECT_EQ(a, b);
    }
  }
}

TEST(Prefix, OneMessageWithDocumentAndQuestionIsKeptAtSteadyDistances) {
  HostBench bench;
  const std::string text = long_text(1000, 11);
  bench.run(HostBench::chat({{"user", text + " who?"}}));
  const auto second = bench.run(HostBench::chat({{"user", text + " and where was it?"}}));
  EXPECT_GT(second->last().usage.cached, second->last().usage.prompt - 100);
}

TEST(Prefix, TheBudgetHoldsAndTheLeastRecentlyUsedGoes) {
  HostOptions options = HostBench::usual();
  options.prefix_bytes = std::size_t{1} << 20;
  HostBench bench(options);
  for (std::uint32_t i = 0; i < 40; ++i) {
    bench.run(HostBench::ids(600, 100 + i, 2));
    const auto kept = bench.host.counts().prefix;
    EXPECT_LE(kept.bytes, kept.budget);
    EXPECT_LT(kept.bytes, kept.dense_bytes);
  }
  EXPECT_GT(bench.host.counts().prefix.evicted, 0);
  EXPECT_GT(bench.run(HostBench::ids(600, 139, 2))->last().usage.cached, 500);
  EXPECT_EQ(bench.run(HostBench::ids(600, 100, 2))->last().usage.cached, 0);
}

TEST(Prefix, CutsFollowFromTheTokensBeforeThem) {
  server::TurnTokens turns;
  turns.begins = {1};
  std::vector<std::int32_t> tokens = some_tokens(300, 90, 3);
  for (auto& token : tokens) token += 4;
  for (const std::size_t at : {0, 40, 64, 200}) tokens[at] = 1;
  const auto cuts = server::prompt_cuts(tokens, turns, 64);
  EXPECT_EQ(cuts, (std::vector<std::int64_t>{40, 64, 128, 192, 200, 256}));
  const auto marks = server::marks_wanted(tokens, cuts, turns, 64, 0);
  EXPECT_EQ(marks, (std::vector<std::int64_t>{40, 64, 192, 200, 256}));
}

}  // namespace
}  // namespace lca::test
