// Sessions with entry positions (mechanism §10): going on, going back, saving, and the frequencies
// of models whose RoPE depends on the length.

#include <gtest/gtest.h>

#include "engine/saved_session.h"
#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca::test {
namespace {

constexpr double kTolerance = 2e-5;

Settings entry_settings(MethodKind method = MethodKind::lca) {
  Settings settings = small_settings(method);
  settings.mass = Mass::score;
  settings.positions = Positions::entry;
  return settings;
}

/// The logits after each of `tokens`, read at once.
std::vector<std::vector<float>> all_logits(Session& session, std::span<const std::int32_t> tokens) {
  std::vector<std::vector<float>> rows;
  const std::int64_t vocabulary = session.model().info().vocabulary;
  session.prefill(tokens, {}, [&](std::int64_t, std::int64_t count, const float* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      rows.emplace_back(out + i * vocabulary, out + (i + 1) * vocabulary);
    }
  });
  return rows;
}

/// RoPE frequencies that the session's caches rotate by.
std::vector<double> frequencies_of(const Session& session) {
  return session.state().caches->to_host().front().spec().rotation.frequencies;
}

std::vector<double> model_frequencies(const Bench& bench, std::int64_t length) {
  return bench.model->state().rope.frequencies(length);
}

/// Models whose frequencies depend on the length, beyond 24 positions.
constexpr const char* kByLength[] = {"llama_dynamic", "llama_longrope", "minicpm3_longrope"};

TEST(EntryPositions, ADecodedTokenSeesWhatAPrefilledOneDoesInChunksOfAnySize) {
  for (const char* name : {"llama", "llama_yarn", "llama_dynamic", "deepseek_v2", "minicpm3"}) {
    Bench bench(name);
    for (const Settings& settings : {entry_settings(), entry_settings(MethodKind::window)}) {
      const auto tokens = bench.tokens(70);
      Session whole = bench.session({settings}, 1024);
      const auto rows = all_logits(whole, tokens);
      for (const std::int64_t chunk : {1, 7, 33}) {
        Session session = bench.session({settings}, chunk);
        const auto others = all_logits(session, tokens);
        for (std::size_t t = 0; t < rows.size(); ++t) {
          EXPECT_LE(logits_error(rows[t], others[t]), kTolerance) << name << " at " << t;
        }
      }
      if (std::string(name) == "llama_dynamic") continue;  // a shorter prompt decides otherwise
      Session decoded = bench.session({settings});
      decoded.prefill(std::span(tokens).first(20));
      for (std::size_t t = 20; t < tokens.size(); ++t) {
        decoded.decode(tokens[t]);
        EXPECT_LE(logits_error(rows[t], decoded.logits()), kTolerance) << name << " at " << t;
      }
    }
  }
}

TEST(EntryPositions, AShortSessionIsOneWithTokenPositionsBitForBit) {
  for (const char* name : {"llama", "llama_longrope", "deepseek_v2", "minicpm3_longrope"}) {
    Bench bench(name);
    Settings token = entry_settings();
    token.positions = Positions::token;
    const auto tokens = bench.tokens(13);  // s + w + g − 1
    Session ours = bench.session({entry_settings()});
    Session theirs = bench.session({token});
    EXPECT_EQ(all_logits(ours, tokens), all_logits(theirs, tokens)) << name;
    ours.decode(1);  // one group is condensed
    theirs.decode(1);
    EXPECT_NE(logits_of(ours), logits_of(theirs)) << name;
  }
}

TEST(EntryPositions, AForkAtAnyLengthIsWhereTheSessionWas) {
  for (const char* name : {"llama", "llama_dynamic", "deepseek_v2", "minicpm3_longrope"}) {
    Bench bench(name);
    Session from = bench.session({entry_settings()});
    const auto rows = all_logits(from, bench.tokens(80));
    for (std::int64_t length = 1; length <= 80; length += 3) {
      const Session fork = from.fork(length);
      EXPECT_LE(logits_error(rows[static_cast<std::size_t>(length - 1)], fork.logits()), kTolerance)
          << name << " at " << length;
      EXPECT_EQ(frequencies_of(fork), frequencies_of(from));
    }
    Session fork = from.fork(80);
    for (const std::int32_t token : bench.tokens(9, 2)) {
      fork.decode(token);
      from.decode(token);
      EXPECT_EQ(logits_of(fork), logits_of(from));
    }
  }
}

TEST(EntryPositions, ASavedSessionGoesOnBitForBit) {
  const ScratchFolder folder;
  for (const char* name :
       {"llama", "llama_dynamic", "llama_longrope", "deepseek_v2", "minicpm3_longrope"}) {
    Bench bench(name);
    Session session = bench.spoken({entry_settings()}, 110, 5);
    const std::string path = folder / (std::string(name) + ".session");
    session.save(path);
    Session loaded = Session::load(bench.model, bench.context, path);
    EXPECT_EQ(loaded.settings(), session.settings());
    EXPECT_EQ(frequencies_of(loaded), frequencies_of(session));
    for (const std::int32_t token : bench.tokens(20, 3)) {
      session.decode(token);
      loaded.decode(token);
      ASSERT_EQ(logits_of(loaded), logits_of(session)) << name;
    }
    const auto turn = bench.tokens(40, 4);
    session.prefill(turn);
    loaded.prefill(turn);
    EXPECT_EQ(logits_of(loaded), logits_of(session)) << name;
  }
}

TEST(EntryPositions, MarksLeadBackAlsoAfterSaving) {
  const ScratchFolder folder;
  for (const char* name : {"llama", "llama_dynamic", "deepseek_v2"}) {
    Bench bench(name);
    Session session = bench.spoken({entry_settings()}, 60, 0);
    session.mark();
    const std::vector<float> there = logits_of(session);
    session.prefill(bench.tokens(50, 2));
    session.save(folder / "marked");
    Session loaded = Session::load(bench.model, bench.context, folder / "marked");
    for (Session* one : {&session, &loaded}) {
      one->truncate(60);
      EXPECT_EQ(logits_of(*one), there) << name;
      one->decode(5);
    }
    EXPECT_EQ(logits_of(loaded), logits_of(session));
    Session straight = bench.spoken({entry_settings()}, 60, 0);
    straight.decode(5);
    EXPECT_EQ(logits_of(straight), logits_of(session)) << name;
  }
}

TEST(EntryPositions, TruncatingInsideTheWindowIsWhereTheSessionWas) {
  Bench bench("llama");
  Session session = bench.session({entry_settings()});
  const auto tokens = bench.tokens(80);
  const auto rows = all_logits(session, tokens);
  const std::int64_t floor = session.truncate_floor();
  ASSERT_LT(floor, 80);
  session.truncate(floor);
  for (std::int64_t t = floor; t < 80; ++t) {
    session.decode(tokens[static_cast<std::size_t>(t)]);
    EXPECT_LE(logits_error(rows[static_cast<std::size_t>(t)], session.logits()), kTolerance);
  }
}

// --- frequencies that depend on the length -----------------------------------------------------

TEST(EntryPositionsByLength, TheFirstPromptsEntriesDecideForTheSessionsLife) {
  for (const char* name : kByLength) {
    Bench bench(name);
    // 80 tokens leave 2 + 17 + 10 = 29 entries, 40 leave 19; the model knows 24 positions.
    Session shorter = bench.spoken({entry_settings()}, 40, 0);
    EXPECT_EQ(frequencies_of(shorter), model_frequencies(bench, 1)) << name;
    shorter.prefill(bench.tokens(120, 2));
    EXPECT_EQ(frequencies_of(shorter), model_frequencies(bench, 1)) << name;
    Session longer = bench.spoken({entry_settings()}, 80, 0);
    EXPECT_EQ(frequencies_of(longer), model_frequencies(bench, 29)) << name;
    EXPECT_NE(frequencies_of(longer), model_frequencies(bench, 1)) << name;
    // One step that is the whole prompt decides as prefill does.
    Session stepped = bench.session({entry_settings()});
    const auto tokens = bench.tokens(80);
    const Step step{.session = &stepped, .tokens = tokens, .prompt = true};
    sessions_forward({&step, 1});
    EXPECT_EQ(frequencies_of(stepped), frequencies_of(longer)) << name;
  }
}

TEST(EntryPositionsByLength, AnEmptySessionDecidesAnew) {
  for (const char* name : kByLength) {
    Bench bench(name);
    const std::vector<float> fresh = logits_of(bench.spoken({entry_settings()}, 40, 3));
    const auto tokens = bench.tokens(43);
    const auto speak = [&](Session& session) {
      session.prefill(std::span(tokens).first(40));
      for (std::size_t t = 40; t < 43; ++t) session.decode(tokens[t]);
      return logits_of(session);
    };
    Session marked = bench.session({entry_settings()});
    marked.mark();  // of an empty session
    marked.prefill(bench.tokens(90, 2));
    marked.truncate(0);
    EXPECT_EQ(speak(marked), fresh) << name;

    Session cancelled = bench.session({entry_settings()});
    EXPECT_THROW(cancelled.prefill(bench.tokens(90, 2), [](PrefillProgress) { return false; }),
                 Error);
    EXPECT_EQ(speak(cancelled), fresh) << name;

    Session from = bench.spoken({entry_settings()}, 90, 0);
    Session fork = from.fork(0);
    EXPECT_EQ(speak(fork), fresh) << name;

    Session other = bench.spoken({entry_settings()}, 90, 0);
    EXPECT_EQ(other.keep_prefix(bench.tokens(43, 9)), 0);
    EXPECT_EQ(speak(other), fresh) << name;
  }
}

TEST(EntryPositionsByLength, APromptKeepsAPrefixOnlyWhereItRotatesTheSameWay) {
  for (const char* name : kByLength) {
    Bench bench(name);
    const auto tokens = bench.tokens(160);
    const auto prompt = [&](std::size_t count) { return std::span(tokens).first(count); };
    Session session = bench.session({entry_settings()});
    session.prefill(prompt(40));
    EXPECT_EQ(session.keep_prefix(prompt(55)), 40) << name;  // 22 entries: short as before
    EXPECT_EQ(session.keep_prefix(prompt(160)), 0) << name;  // 49 entries
  }
  Bench plain("llama");
  const auto tokens = plain.tokens(300);
  Session session = plain.session({entry_settings()});
  session.prefill(std::span(tokens).first(40));
  EXPECT_EQ(session.keep_prefix(tokens), 40);
}

TEST(EntryPositionsByLength, ALayerWithTokenPositionsCountsItsTokens) {
  Bench bench("llama_dynamic");
  Settings token = small_settings();
  Session session = bench.session({entry_settings(), token});
  session.prefill(bench.tokens(40));
  const auto caches = session.state().caches->to_host();
  EXPECT_EQ(caches[0].spec().rotation.frequencies, model_frequencies(bench, 40));
  EXPECT_TRUE(caches[1].spec().rotation.frequencies.empty());
}

TEST(EntryPositionsByLength, TokenPositionsAndDenseAttentionFollowTheLengthAsBefore) {
  Bench bench("llama_dynamic");
  Settings entry = dense_settings();
  entry.positions = Positions::entry;
  Session ours = bench.spoken({entry}, 20, 12);
  EXPECT_EQ(logits_of(ours), logits_of(bench.spoken({dense_settings()}, 20, 12)));
}

TEST(EntryPositionsByLength, AFileWithOtherFrequenciesIsRefused) {
  const ScratchFolder folder;
  Bench bench("llama_dynamic");
  bench.spoken({entry_settings()}, 90, 0).save(folder / "session");
  SessionRecord record = session_read(folder / "session");
  EXPECT_EQ(record.head.rope_positions, 2 + 20 + 8);
  record.head.rope_positions = 1;
  session_write(folder / "forged", record);
  expect_error([&] { (void)Session::load(bench.model, bench.context, folder / "forged"); },
               {"RoPE frequencies"});
}

}  // namespace
}  // namespace lca::test
