// Sessions whose caches hold rows of 8 bits: files, marks, forks and batches.

#include <gtest/gtest.h>

#include <random>

#include "engine/engine_bench.h"
#include "engine/saved_session.h"

namespace lca::test {
namespace {

std::vector<Settings> kinds() {
  Settings scored = small_settings();
  scored.mass = Mass::score;
  scored.semantic_pool = Pool::select;
  Settings entry = small_settings();
  entry.positions = Positions::entry;
  return {small_settings(), scored,           entry, small_settings(MethodKind::window),
          dense_settings(), prompt_settings()};
}

constexpr std::array kModels = {"llama", "deepseek_v2"};

TEST(Int8Sessions, ASavedSessionGoesOnBitForBit) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for (const char* name : kModels) {
      for (const Settings& settings : kinds()) {
        Bench bench(name, precision, CacheStorage::int8);
        Session live = bench.spoken({settings}, 40, 5);
        if (settings.summary != Summary::prompt) live.mark();
        live.decode(2);
        live.save(path);
        Session taken = Session::load(bench.model, bench.context, path, {{}, 16});
        EXPECT_TRUE(taken.notices().empty());
        EXPECT_EQ(taken.cache_bytes(), live.cache_bytes());
        EXPECT_EQ(taken.marks(), live.marks());
        EXPECT_EQ(image(taken), image(live));
        for (const std::int32_t token : bench.tokens(20, 3)) {
          live.decode(token);
          taken.decode(token);
          ASSERT_EQ(logits_of(live), logits_of(taken)) << name;
        }
      }
    }
  }
}

TEST(Int8Sessions, ASessionOfAnotherKindOfCacheIsRefusedWithAdvice) {
  const ScratchFolder folder;
  Bench plain("llama", Precision::bf16);
  Bench narrow("llama", Precision::bf16, CacheStorage::int8);
  plain.spoken({small_settings()}, 40, 0).save(folder / "plain");
  narrow.spoken({small_settings()}, 40, 0).save(folder / "int8");
  const auto message = [&](Bench& bench, const char* name) -> std::string {
    try {
      Session::load(bench.model, bench.context, folder / name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::incompatible);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(plain, "int8").find("with --cache int8"), std::string::npos);
  EXPECT_NE(message(narrow, "plain").find("without --cache int8"), std::string::npos);
}

TEST(Int8Sessions, CachesMarksAndFilesShrink) {
  for (const char* name : kModels) {
    Bench plain(name, Precision::f32);
    Bench narrow(name, Precision::f32, CacheStorage::int8);
    Settings settings = small_settings();
    settings.window = 64;
    std::array<std::size_t, 2> caches{};
    std::array<std::size_t, 2> files{};
    std::array<Bench*, 2> both{&plain, &narrow};
    for (std::size_t i = 0; i < 2; ++i) {
      Session session = both[i]->spoken({settings}, 200, 0);
      session.mark();
      session.decode(1);
      caches[i] = session.cache_bytes();
      files[i] = image(session).size();
    }
    EXPECT_LT(caches[1] * 3, caches[0] * 2) << name;
    EXPECT_LT(files[1] + (caches[0] - caches[1]), files[0]) << "marks shrink too";
  }
}

TEST(Int8Sessions, AForkAtAMarkIsWhatTheSessionWasThere) {
  for (const char* name : kModels) {
    Bench bench(name, Precision::bf16, CacheStorage::int8);
    for (const Settings& settings : kinds()) {
      if (settings.summary == Summary::prompt) continue;
      Session session = bench.spoken({settings}, 61, 0);
      session.mark();
      session.prefill(bench.tokens(90, 2));
      Session fork = session.fork(61);
      Session straight = bench.spoken({settings}, 61, 0);
      session.truncate(61);
      for (const std::int32_t token : bench.tokens(40, 3)) {
        for (Session* one : {&fork, &straight, &session}) one->decode(token);
        ASSERT_EQ(logits_of(fork), logits_of(straight)) << name;
        ASSERT_EQ(logits_of(session), logits_of(straight)) << name;
      }
    }
  }
}

TEST(Int8Sessions, RequestsThatShareStepsGetWhatTheyGetAlone) {
  for (const char* name : kModels) {
    EngineBench bench(name, {}, Precision::bf16, CacheStorage::int8);
    std::vector<Wish> wishes;
    std::vector<Outcome> outcomes(12);
    std::mt19937 random(3);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      Wish wish =
          bench.wish(1 + static_cast<std::int64_t>(random() % 70),
                     static_cast<std::int64_t>(random() % 30), static_cast<std::uint32_t>(i));
      wish.settings = {kinds()[i % kinds().size()]};
      bench.submit(wish, outcomes[i]);
      wishes.push_back(std::move(wish));
    }
    bench.run_all();
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      ASSERT_FALSE(outcomes[i].error) << outcomes[i].error->what();
      EXPECT_EQ(outcomes[i].text, bench.alone(wishes[i]).text) << name << " " << i;
    }
  }
}

TEST(Int8Sessions, TheLogitsStayNearThoseOfAPlainCache) {
  for (const char* name : kModels) {
    Bench plain(name);
    Bench narrow(name, Precision::f32, CacheStorage::int8);
    Settings settings = small_settings();
    Session a = plain.spoken({settings}, 60, 10);
    Session b = narrow.spoken({settings}, 60, 10);
    EXPECT_LT(logits_error(logits_of(a), logits_of(b)), 0.05) << name;
    EXPECT_GT(logits_error(logits_of(a), logits_of(b)), 0.0) << name;
  }
}

}  // namespace
}  // namespace lca::test
