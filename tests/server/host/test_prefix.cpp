// Beginnings of prompts that are kept.

#include "server/host/hash_ring.h"
#include "server/host/host_bench.h"
#include "server/host/prompt_cuts.h"

namespace lca::test {
namespace {

using server::HostOptions;
using server::Job;
using server::Kept;

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

/// The cache alone, filled with sessions of a tiny model.
struct KeptBench : Bench {
  KeptBench() : Bench("llama") {}

  static std::vector<std::int64_t> all_lengths(std::int64_t most) {
    std::vector<std::int64_t> cuts;
    for (std::int64_t at = 1; at <= most; ++at) cuts.push_back(at);
    return cuts;
  }
  static Settings settings() {
    Settings made = small_settings();
    made.window = 200;
    return made;
  }
  /// How many of the tokens are found.
  static std::int64_t found(server::PrefixCache& cache, std::span<const std::int32_t> tokens) {
    const auto session = cache.find(tokens, all_lengths(std::ssize(tokens)));
    return session ? session->length() : 0;
  }
};

TEST(Prefix, BeginningsThatBeginAlikeAreCountedOnce) {
  KeptBench bench;
  const auto all = bench.tokens(600);
  server::PrefixCache cache(std::size_t{64} << 20);
  Session session = bench.session({KeptBench::settings()});
  session.prefill(std::span(all).first(400));
  cache.put(session, Kept::turn);
  const std::size_t one = cache.counts().bytes;
  for (int turn = 0; turn < 10; ++turn) {
    session.prefill(std::span(all).subspan(static_cast<std::size_t>(session.length()), 8));
    cache.put(session, Kept::turn);
  }
  const auto counts = cache.counts();
  EXPECT_EQ(counts.entries, 11);
  EXPECT_LT(counts.bytes, 3 * one) << "80 tokens more, and queries";
  cache.clear();
  EXPECT_EQ(cache.counts().bytes, 0U);
}

TEST(Prefix, AStoneGoesWhenALaterPositionIsKept) {
  KeptBench bench;
  const auto all = bench.tokens(300);
  server::PrefixCache cache(std::size_t{64} << 20);
  Session session = bench.session({KeptBench::settings()});
  const auto read_to = [&](std::int64_t length) {
    const auto at = static_cast<std::size_t>(session.length());
    session.prefill(std::span(all).subspan(at, static_cast<std::size_t>(length) - at));
  };
  read_to(64);
  cache.put(session, Kept::stone);
  read_to(128);
  cache.put(session, Kept::stone);
  EXPECT_EQ(cache.counts().entries, 1) << "the second took the first one's place";
  EXPECT_EQ(KeptBench::found(cache, std::span(all).first(200)), 128) << "broken off, asked again";
  read_to(192);
  cache.put(session, Kept::turn);
  EXPECT_EQ(cache.counts().entries, 2) << "one that was needed stays";
}

TEST(Prefix, TheEndOfAReplyGoesWhenTheNextTurnIsKept) {
  KeptBench bench;
  const auto all = bench.tokens(300);
  server::PrefixCache cache(std::size_t{64} << 20);
  Session session = bench.session({KeptBench::settings()});
  session.prefill(std::span(all).first(100));
  cache.put(session, Kept::reply);
  session.prefill(std::span(all).subspan(100, 40));
  cache.put(session, Kept::turn);
  EXPECT_EQ(cache.counts().entries, 2) << "far behind it";
  cache.put(session, Kept::reply);
  session.prefill(std::span(all).subspan(140, 2));
  cache.put(session, Kept::turn);
  EXPECT_EQ(cache.counts().entries, 2);
  EXPECT_EQ(KeptBench::found(cache, std::span(all).first(142 + 20)), 142);
  EXPECT_EQ(KeptBench::found(cache, std::span(all).first(120)), 100);
}

TEST(Prefix, AConversationLeavesItsOldTurnsBehind) {
  HostBench bench;
  Talk talk = {{"system", long_text(60)}, {"user", "begin"}};
  for (int turn = 0; turn < 12; ++turn) {
    const auto reply = bench.run(HostBench::chat(talk, 12, 70 + static_cast<unsigned>(turn)));
    talk.emplace_back("assistant", reply->text());
    talk.emplace_back("user", "and then " + std::to_string(turn));
    // Two for every turn would be 24; the counts may be a step old.
    EXPECT_LE(bench.host.counts().prefix.entries, 10) << turn;
  }
  // The first turn is kept: another conversation may begin with it.
  const auto other = bench.run(HostBench::chat({{"system", long_text(60)}, {"user", "else"}}));
  EXPECT_GT(other->last().usage.cached, 50);
}

TEST(Prefix, ATurnThatWasAskedAgainStays) {
  KeptBench bench;
  const auto all = bench.tokens(300);
  server::PrefixCache cache(std::size_t{64} << 20);
  Session session = bench.session({KeptBench::settings()});
  for (const std::int64_t length : {50, 100, 150, 200}) {
    const auto at = static_cast<std::size_t>(session.length());
    session.prefill(std::span(all).subspan(at, static_cast<std::size_t>(length) - at));
    cache.put(session, Kept::turn);
  }
  EXPECT_EQ(KeptBench::found(cache, std::span(all).first(110)), 100);
  const std::vector<std::int64_t> wanted = {50, 200};
  auto other = bench.tokens(300, 99);
  cache.leave(other, wanted);
  EXPECT_EQ(cache.counts().entries, 4) << "another conversation's";
  cache.leave(all, wanted);
  EXPECT_EQ(cache.counts().entries, 3);
  EXPECT_EQ(KeptBench::found(cache, std::span(all).first(190)), 100);
}

TEST(Prefix, TheBudgetHoldsWithSharedBlocksInAnyOrderOfUse) {
  KeptBench bench;
  const auto all = bench.tokens(700);
  std::size_t most = 0;
  {
    server::PrefixCache cache(std::size_t{64} << 20);
    Session session = bench.session({KeptBench::settings()});
    session.prefill(std::span(all).first(400));
    cache.put(session, Kept::turn);
    most = 2 * cache.counts().bytes;
  }
  server::PrefixCache cache(most);
  std::vector<Session> trunks;
  for (std::uint32_t i = 0; i < 3; ++i) {
    trunks.push_back(bench.session({KeptBench::settings()}));
    trunks.back().prefill(bench.tokens(300, 50 + i));
  }
  std::uint32_t seed = 1;
  for (int step = 0; step < 60; ++step) {
    seed = seed * 1664525u + 1013904223u;
    const Session& trunk = trunks[(seed >> 8) % trunks.size()];
    auto tokens = trunk.tokens();
    const auto more = bench.tokens(1 + (seed >> 16) % 50, seed);
    tokens.insert(tokens.end(), more.begin(), more.end());
    if (step % 4 == 0) cache.put(trunk, Kept::turn);
    auto begun = cache.find(tokens, KeptBench::all_lengths(std::ssize(tokens) - 1));
    const std::int64_t have = begun ? begun->length() : 0;
    Session session = begun ? std::move(*begun) : bench.session({KeptBench::settings()});
    session.prefill(std::span(tokens).subspan(static_cast<std::size_t>(have)));
    Session fresh = bench.session({KeptBench::settings()});
    fresh.prefill(tokens);
    EXPECT_LE(logits_error(logits_of(fresh), session.logits()), kSameLogits);
    cache.put(session, step % 3 == 0 ? Kept::reply : Kept::turn);
    EXPECT_LE(cache.counts().bytes, most);
  }
  EXPECT_GT(cache.counts().evicted, 0);
  EXPECT_GT(cache.counts().hits, 0);
}

TEST(Prefix, NumbersThatWereSeenAreTheNewestOnes) {
  server::HashRing ring(100);
  EXPECT_FALSE(ring.contains(0));
  ring.insert(0);
  ring.insert(0);
  EXPECT_TRUE(ring.contains(0));
  EXPECT_EQ(ring.size(), 1u);
  for (std::uint64_t at = 1; at <= 1000; ++at) {
    const std::uint64_t number = at << 20;  // which begin alike in a table
    EXPECT_FALSE(ring.contains(number));
    ring.insert(number);
    EXPECT_LE(ring.size(), 200u);
    for (std::uint64_t old = at > 100 ? at - 99 : 1; old <= at; ++old) {
      ASSERT_TRUE(ring.contains(old << 20)) << at;
    }
    if (at > 200) ASSERT_FALSE(ring.contains((at - 200) << 20)) << at;
  }
}

TEST(Prefix, TheBookOfRepliesKeepsTheNewestInItsBytes) {
  const Tokenizer tokenizer = *HostBench::usual().tokenizer;
  server::ReplyBook book(std::size_t{64} << 10);
  const auto prompt_of = [](std::uint32_t at) {
    auto prompt = some_tokens(50, 80, at);
    for (auto& token : prompt) token += 4;
    prompt.push_back(1);
    return prompt;
  };
  // Spelt letter by letter; text encodes the two as one token.
  const std::vector<std::int32_t> reply = {*tokenizer.find("t"), *tokenizer.find("h")};
  const auto restored = [&](std::uint32_t at) {
    std::vector<std::int32_t> sent = prompt_of(at);
    sent.push_back(*tokenizer.find("th"));
    sent.push_back(2);
    return book.restore(sent, tokenizer).size() == sent.size() + 1;
  };
  for (std::uint32_t at = 0; at < 2000; ++at) {
    book.add(prompt_of(at), reply, tokenizer);
    EXPECT_LE(book.bytes(), std::size_t{64} << 10);
  }
  EXPECT_TRUE(restored(1999));
  EXPECT_FALSE(restored(0)) << "the oldest went";
  const std::size_t bytes = book.bytes();
  book.add(prompt_of(1999), reply, tokenizer);
  EXPECT_EQ(book.bytes(), bytes) << "the same once more";
}

TEST(Prefix, InAnEarlierMessageNoSteadyDistancesAreKept) {
  server::TurnTokens turns;
  turns.begins = {1};
  std::vector<std::int32_t> tokens = some_tokens(600, 90, 3);
  for (auto& token : tokens) token += 4;
  for (const std::size_t at : {0, 500, 590}) tokens[at] = 1;
  const auto cuts = server::prompt_cuts(tokens, turns, 64);
  EXPECT_EQ(server::marks_wanted(tokens, cuts, turns, 64, 0),
            (std::vector<std::int64_t>{500, 512, 576, 590}));
  EXPECT_EQ(server::marks_wanted(tokens, cuts, turns, 64, 128),
            (std::vector<std::int64_t>{128, 500, 512, 576, 590}));
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
  // A token that begins every text is no turn of its own.
  const auto starts = server::turn_starts(tokens, turns);
  tokens.insert(tokens.begin(), 0);
  auto later = server::turn_starts(tokens, turns);
  for (auto& start : later) --start;
  EXPECT_EQ(later, starts);
}

}  // namespace
}  // namespace lca::test
