// Saved sessions: a loaded session continues exactly, and any error in a file is one clear line.

#include "engine/session_file.h"

#include <gtest/gtest.h>

#include "core/bytes.h"
#include "engine/byte_tokenizer.h"
#include "engine/reply.h"
#include "engine/saved_session.h"

namespace lca::test {
namespace {

struct Case {
  const char* name;
  const char* model;
  std::vector<Settings> settings;
};

std::vector<Case> cases() {
  Settings scored = small_settings();
  scored.mass = Mass::score;
  std::vector<Case> all;
  for (const char* model : {"llama", "deepseek_v2"}) {
    all.push_back({"dense", model, {dense_settings()}});
    all.push_back({"lca", model, {small_settings()}});
    all.push_back({"scored", model, {scored}});
    all.push_back({"window", model, {small_settings(MethodKind::window)}});
    all.push_back({"prompt", model, {prompt_settings()}});
  }
  return all;
}

/// Two sessions stay the same, bit for bit, while both continue.
void expect_same_future(Bench& bench, Session& a, Session& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(logits_of(a), logits_of(b));
  for (const std::int32_t token : bench.tokens(11, 3)) {
    a.decode(token);
    b.decode(token);
    ASSERT_EQ(logits_of(a), logits_of(b));
  }
  const auto turn = bench.tokens(21, 5);
  a.prefill(turn);
  b.prefill(turn);
  EXPECT_EQ(logits_of(a), logits_of(b));
  a.decode(1);
  b.decode(1);
  EXPECT_EQ(logits_of(a), logits_of(b));
}

TEST(SessionFile, ASavedSessionGoesOnBitForBit) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for (const Case& one : cases()) {
      SCOPED_TRACE(std::string(one.model) + " " + one.name);
      Bench bench(one.model, precision);
      Session live = bench.spoken(one.settings, 40, 5);
      live.set_pending({3, 4});
      live.save(path);
      const std::string bytes = read_file(path);
      Session taken = Session::load(bench.model, bench.context, path, {{}, 16});
      EXPECT_EQ(taken.pending(), (std::vector<std::int32_t>{3, 4}));
      EXPECT_EQ(taken.settings(), live.settings());
      EXPECT_EQ(taken.cache_bytes(), live.cache_bytes());
      taken.save(path);
      EXPECT_TRUE(read_file(path) == bytes);
      expect_same_future(bench, live, taken);
      EXPECT_EQ(folder.count(), 1u) << "nothing else is left behind";
    }
  }
}

TEST(SessionFile, AnEmptySessionAndLayersThatDifferAreSavedToo) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  Bench bench("llama");
  bench.session({small_settings()}).save(path);
  Session empty = Session::load(bench.model, bench.context, path);
  EXPECT_EQ(empty.length(), 0);
  EXPECT_TRUE(empty.logits().empty());
  std::vector<Settings> mixed(static_cast<std::size_t>(bench.model->info().layers),
                              small_settings());
  mixed.back() = dense_settings();
  Session live = bench.spoken(mixed, 30, 3);
  live.save(path);
  Session taken = Session::load(bench.model, bench.context, path, {{}, 16});
  expect_same_future(bench, live, taken);
}

TEST(SessionFile, AReplyInTwoHalvesIsTheReplyInOne) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  const Tokenizer tokenizer = byte_tokenizer({});
  for (const double temperature : {0.0, 1.3}) {
    Bench bench("llama");
    GenerateOptions options;
    options.sampling.temperature = temperature;
    options.sampling.repetition_penalty = 1.1;
    options.sampling.seed = 4;
    options.max_tokens = 40;
    options.open = true;
    Session whole = bench.spoken({small_settings()}, 20, 0);
    const Generated once = generate_with(whole, tokenizer, {}, options);
    options.max_tokens = 13;
    Session first = bench.spoken({small_settings()}, 20, 0);
    const Generated begin = generate_with(first, tokenizer, {}, options);
    first.save(path);
    Session second = Session::load(bench.model, bench.context, path);
    options.max_tokens = 27;
    options.resumed = true;
    const Generated end = generate_with(second, tokenizer, {}, options);
    EXPECT_EQ(second.tokens(), whole.tokens());
    EXPECT_EQ(begin.text + end.text, once.text);
  }
}

TEST(SessionFile, APromptThatWasStoppedIsReadToItsEndLater) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  Bench bench("deepseek_v2");
  const auto prompt = bench.tokens(50);
  Session whole = bench.session({small_settings()});
  whole.prefill(prompt);
  Session stopped = bench.spoken({small_settings()}, 20, 0);
  EXPECT_THROW(stopped.prefill(prompt, [](PrefillProgress at) { return at.done < 16; }), Error);
  // Logits of the turn before must not be used for what was read since.
  EXPECT_TRUE(stopped.logits().empty());
  expect_error([&] { generate_with(stopped, byte_tokenizer({}), {}, {}); },
               {"nothing to continue"});

  Session half = bench.session({small_settings()});
  EXPECT_THROW(half.prefill(prompt, [](PrefillProgress at) { return at.done < 32; }), Error);
  half.set_pending({prompt.begin() + half.length(), prompt.end()});
  half.save(path);
  Session taken = Session::load(bench.model, bench.context, path, {{}, 16});
  ASSERT_EQ(taken.length(), 32);
  const auto rest = taken.pending();
  taken.set_pending({});
  taken.prefill(rest);
  expect_same_future(bench, whole, taken);
}

class SavedFile : public ::testing::Test {
 protected:
  SavedFile() {
    Session session = bench.spoken({small_settings()}, 30, 0);
    session.mark();
    const auto all = bench.tokens(45);
    session.prefill(std::span(all).subspan(30, 10));
    for (std::size_t i = 40; i < 45; ++i) session.decode(all[i]);
    session.save(path);
    bytes = read_file(path);
  }
  /// Loading what is in the file now fails with `parts`, and leaves it as it is.
  void expect_refused(const std::vector<std::string>& parts,
                      ErrorKind kind = ErrorKind::bad_input) {
    const std::string before = read_file(path);
    std::vector<std::string> all = parts;
    all.push_back(path + ": ");
    expect_error([&] { Session::load(bench.model, bench.context, path); }, all, kind);
    EXPECT_TRUE(read_file(path) == before);
  }
  /// The same for a file with a changed header and a valid checksum.
  void expect_forged(const std::function<void(SessionRecord&)>& change,
                     const std::vector<std::string>& parts, ErrorKind kind = ErrorKind::bad_input) {
    write_file(path, bytes);
    SessionRecord record = session_read(path);
    change(record);
    session_write(path, record);
    expect_refused(parts, kind);
  }

  ScratchFolder folder;
  std::string path = folder / "s";
  Bench bench{"llama"};
  std::string bytes;
};

TEST_F(SavedFile, EveryTruncationIsRefused) {
  for (std::size_t size = 0; size < bytes.size(); size += 97) {
    write_file(path, bytes.substr(0, size));
    expect_refused({});
  }
  write_file(path, bytes.substr(0, bytes.size() - 1));
  expect_refused({"is truncated", "start a new one"});
  write_file(path, bytes + "x");
  expect_refused({"is damaged"});
  write_file(path, "");
  expect_refused({"is empty"});
  write_file(path, "once upon a time there was a text");
  expect_refused({"is not a session of lca"});
}

TEST_F(SavedFile, EveryFlippedBitIsRefused) {
  for (std::size_t at = 0; at < bytes.size(); at += at < 200 ? 1 : 41) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_file(path, flipped);
    // Another version is said to be one, unless it is one of those that are read.
    const bool known = at == 8 && flipped[at] >= 1 && flipped[at] <= 3;
    const bool version = at >= 8 && at < 12 && flipped[at] != 0 && !known;
    expect_refused({}, version ? ErrorKind::incompatible : ErrorKind::bad_input);
  }
  std::string flipped = bytes;
  flipped[bytes.size() / 2] ^= 1;
  write_file(path, flipped);
  expect_refused({"is damaged: its checksum does not match"});
}

TEST_F(SavedFile, AnotherVersionIsRefused) {
  std::string other = bytes;
  other[8] = 5;
  write_file(path, other);
  expect_refused({"is a session of version 5; this program reads versions 1 to 4"},
                 ErrorKind::incompatible);
}

TEST_F(SavedFile, AFolderAndNothingAtAllAreRefused) {
  expect_error([&] { Session::load(bench.model, bench.context, folder.path()); }, {"folder"});
  expect_error([&] { Session::load(bench.model, bench.context, folder / "no"); }, {"no"},
               ErrorKind::not_found);
  const Session session = bench.spoken({small_settings()}, 4, 0);
  expect_error([&] { session.save(folder.path()); }, {"is a folder"});
  expect_error([&] { session.save(folder / "no/s"); }, {"cannot be created"});
  EXPECT_TRUE(read_file(path) == bytes);
}

TEST_F(SavedFile, EveryNumberIsCheckedAgainstTheOthers) {
  using Record = SessionRecord;
  expect_forged([](Record& r) { r.head.layers = 0; }, {"layers"});
  expect_forged([](Record& r) { r.head.layers = std::int64_t{1} << 60; }, {"layers"});
  expect_forged([](Record& r) { ++r.head.layers; }, {});
  expect_forged([](Record& r) { r.head.hidden = -1; }, {"width"});
  expect_forged([](Record& r) { r.head.vocabulary = 0; }, {"vocabulary"});
  expect_forged([](Record& r) { r.head.vocabulary = 5; }, {});
  expect_forged([](Record& r) { r.head.shape.form = static_cast<Form>(7); }, {"types"});
  expect_forged([](Record& r) { r.head.dtype = static_cast<DType>(9); }, {"types"});
  expect_forged([](Record& r) { r.head.dtype = DType::bf16; }, {"another layer"});
  expect_forged([](Record& r) { r.head.precision = static_cast<Precision>(3); }, {"types"});
  expect_forged([](Record& r) { r.head.shape.heads += 2; }, {"another layer"});
  expect_forged([](Record& r) { r.head.scale *= 2; }, {"another layer"});
  expect_forged([](Record& r) { r.head.settings[1].group = 5; }, {"another layer"});
  expect_forged([](Record& r) { r.head.settings[0].group = 0; }, {"group"});
  expect_forged([](Record& r) { r.head.settings[0].mass = static_cast<Mass>(5); }, {"setting"});
  expect_forged([](Record& r) { r.head.truncate_floor = 46; }, {"shortest"});
  expect_forged([](Record& r) { r.head.truncate_floor = -1; }, {"shortest"});
  expect_forged([](Record& r) { --r.head.truncate_floor; }, {"shortest"});
  expect_forged([](Record& r) { r.head.prompt_end = 46; }, {"prompt's end"});
  expect_forged([](Record& r) { r.head.tokens.push_back(1); }, {"another length"});
  expect_forged([](Record& r) { r.head.tokens[3] = -1; }, {"a token"});
  expect_forged([](Record& r) { r.head.pending = {1 << 20}; }, {"a token"});
  expect_forged([](Record& r) { r.head.logits.pop_back(); }, {"logits"});
  expect_forged([](Record& r) { r.caches.pop_back(); }, {"truncated"});
  expect_forged([](Record& r) { r.caches.push_back(r.caches[0].clone()); }, {});
  expect_forged([](Record& r) { r.caches[0].truncate(44); }, {"another length"});
  expect_forged([](Record& r) { r.head.fingerprint = "00"; }, {"other weights"},
                ErrorKind::incompatible);
  expect_forged([](Record& r) { r.head.architecture = "a\nb"; }, {"another model"},
                ErrorKind::incompatible);
  expect_forged([](Record& r) { r.marks[0].position = 46; }, {"position of a mark"});
  expect_forged([](Record& r) { r.marks[0].position = 31; }, {"another length"});
  expect_forged([](Record& r) { r.marks[0].prompt_end = 31; }, {"prompt's end of a mark"});
  expect_forged([](Record& r) { r.marks[0].logits.pop_back(); }, {"logits of a mark"});
  expect_forged([](Record& r) { r.marks[0].caches[0].reset(); }, {"a mark is truncated"});
  expect_forged([](Record& r) { r.marks[0].caches.pop_back(); }, {});
}

TEST_F(SavedFile, ListsLongerThanTheFileTakeNoMemory) {
  // The number of tokens follows the texts and numbers; find it by its value.
  const SessionRecord record = session_read(path);
  std::vector<std::byte> forged(bytes.size());
  std::memcpy(forged.data(), bytes.data(), bytes.size());
  const std::uint64_t count = 45;
  const auto* wanted = reinterpret_cast<const std::byte*>(&count);
  const auto at = std::search(forged.begin() + 200, forged.end(), wanted, wanted + sizeof(count));
  ASSERT_NE(at, forged.end());
  const std::uint64_t many = std::uint64_t{1} << 62;
  std::memcpy(&*at, &many, sizeof(many));
  session_seal(forged);
  expect_error([&] { session_parse(forged, "f"); }, {"f: ", "longer than the file"});
}

TEST_F(SavedFile, ASessionOfAnotherModelIsRefused) {
  const auto refused = [&](const std::string& name, const std::vector<std::string>& parts) {
    Bench other(name);
    expect_error([&] { Session::load(other.model, other.context, path); }, parts,
                 ErrorKind::incompatible);
  };
  refused("qwen2", {"a session of another model, llama (llama", "this one is qwen2"});
  refused("deepseek_v2", {"a session of another model"});
  refused("adapter_llama", {"other weights"});
  EXPECT_TRUE(read_file(path) == bytes);
}

TEST_F(SavedFile, TheFingerprintDoesNotDependOnWhereTheModelLies) {
  const GoldenModel golden("llama");
  std::filesystem::copy(golden.path(), folder / "elsewhere",
                        std::filesystem::copy_options::recursive);
  ModelOptions options;
  options.path = folder / "elsewhere";
  options.precision = Precision::f32;
  const auto model = Model::load(options);
  EXPECT_EQ(model->fingerprint(), bench.model->fingerprint());
  EXPECT_EQ(model->fingerprint().size(), 32u);
  EXPECT_EQ(Session::load(model, bench.context, path).length(), 45);

  // A model that differs in the sign of one weight is another model.
  const std::string file = folder / "elsewhere/model.safetensors";
  std::string weights = read_file(file);
  weights.back() = static_cast<char>(weights.back() ^ 0x80);
  write_file(file, weights);
  const auto other = Model::load(options);
  EXPECT_NE(other->fingerprint(), model->fingerprint());
  expect_error([&] { Session::load(other, bench.context, path); }, {"other weights"},
               ErrorKind::incompatible);
}

TEST_F(SavedFile, SettingsThatContradictItAreNamed) {
  Settings other = small_settings();
  EXPECT_EQ(Session::load(bench.model, bench.context, path, {{other}, 0}).length(), 45);
  other.window = 9;
  expect_error(
      [&] {
        Session::load(bench.model, bench.context, path, {{other}, 0});
      },
      {"has window 8, not 9", "a session keeps its settings"});
  expect_error(
      [&] {
        Session::load(bench.model, bench.context, path, {{dense_settings()}, 0});
      },
      {"has method lca, not dense"});
  // One entry per layer, or one for all: the model has two.
  for (const std::size_t count : {std::size_t{3}, std::size_t{7}}) {
    const std::vector<Settings> many(count, small_settings());
    expect_error(
        [&] {
          Session::load(bench.model, bench.context, path, {many, 0});
        },
        {"settings for", "layers"});
  }
}

TEST_F(SavedFile, AnotherPrecisionConvertsItAndSaysSo) {
  Bench narrow("llama", Precision::bf16);
  Session session = Session::load(narrow.model, narrow.context, path);
  ASSERT_EQ(session.notices().size(), 1u);
  for (const char* part : {"precision bf16 instead of f32", "cache type bf16 instead of f32"}) {
    EXPECT_NE(session.notices()[0].find(part), std::string::npos) << session.notices()[0];
  }
  EXPECT_EQ(session.length(), 45);
  EXPECT_EQ(session.cache_bytes() * 2,
            Session::load(bench.model, bench.context, path).cache_bytes());
  Session native = narrow.spoken({small_settings()}, 40, 5);
  EXPECT_EQ(session.cache_bytes(), native.cache_bytes());
  const auto more = bench.tokens(30, 3);
  session.truncate(30);  // the mark is converted too
  session.prefill(more);
  std::vector<std::int32_t> all = bench.tokens(30);
  all.insert(all.end(), more.begin(), more.end());
  Session straight = narrow.session({small_settings()});
  straight.prefill(all);
  EXPECT_LE(logits_error(logits_of(straight), session.logits()), 0.05);
  EXPECT_TRUE(Session::load(bench.model, bench.context, path).notices().empty());
  // And back again.
  session.save(path);
  EXPECT_EQ(Session::load(bench.model, bench.context, path).notices().size(), 1u);
}

// Written by version 0.1.0 of the program (tests/engine), which then decoded these tokens.
TEST(SessionFile, AFileOfVersion1IsLoaded) {
  Bench bench("llama");
  Session session =
      Session::load(bench.model, bench.context,
                    std::string(LCA_SOURCE_DIR) + "/tests/engine/version1_llama.session");
  EXPECT_TRUE(session.notices().empty());
  EXPECT_EQ(session.length(), 46);
  EXPECT_TRUE(session.marks().empty());
  GenerateOptions options;
  options.max_tokens = 8;
  const Generated next = generate_with(session, byte_tokenizer({}), {}, options);
  EXPECT_EQ(next.tokens, (std::vector<std::int32_t>{79, 56, 95, 9, 48, 58, 94, 17}));
  Bench narrow("llama", Precision::bf16);
  EXPECT_EQ(Session::load(narrow.model, narrow.context,
                          std::string(LCA_SOURCE_DIR) + "/tests/engine/version1_llama.session")
                .notices()
                .size(),
            1u);
  Bench other("adapter_llama");
  expect_error(
      [&] {
        Session::load(other.model, other.context,
                      std::string(LCA_SOURCE_DIR) + "/tests/engine/version1_llama.session");
      },
      {"other weights"}, ErrorKind::incompatible);
}

// The same of version 2, with a mark.
TEST(SessionFile, AFileOfVersion2IsTakenUpWithTokenPositions) {
  Bench bench("llama");
  Session session =
      Session::load(bench.model, bench.context,
                    std::string(LCA_SOURCE_DIR) + "/tests/engine/version2_llama.session");
  EXPECT_TRUE(session.notices().empty());
  EXPECT_EQ(session.length(), 46);
  EXPECT_EQ(session.marks(), (std::vector<std::int64_t>{30}));
  EXPECT_EQ(session.settings().front().positions, Positions::token);
  GenerateOptions options;
  options.max_tokens = 8;
  const Generated next = generate_with(session, byte_tokenizer({}), {}, options);
  EXPECT_EQ(next.tokens, (std::vector<std::int32_t>{49, 45, 76, 69, 71, 61, 29, 75}));
  session.truncate(30);
  EXPECT_EQ(session.length(), 30);
}

TEST_F(SavedFile, ItCanBeCutWithoutItsModel) {
  SessionRecord record = session_read(path);
  const std::int64_t floor = record.head.truncate_floor;
  ASSERT_LT(floor, 44);
  session_cut(record, 45, path);
  EXPECT_EQ(record.head.length(), 45);
  session_cut(record, 44, path);
  EXPECT_EQ(record.head.length(), 43);
  session_write(path, record);
  Session cut = Session::load(bench.model, bench.context, path);
  EXPECT_TRUE(cut.logits().empty());
  cut.prefill(std::vector<std::int32_t>(cut.pending()));
  Session whole = bench.spoken({small_settings()}, 40, 4);
  EXPECT_EQ(cut.tokens(), whole.tokens());
  EXPECT_LE(logits_error(whole.logits(), cut.logits()), 2e-5);

  write_file(path, bytes);
  record = session_read(path);
  expect_error([&] { session_cut(record, floor, path); },
               {path, "the model can read the text again"}, ErrorKind::incompatible);
  expect_error([&] { session_cut(record, 46, path); }, {path, "holds 45 tokens"});
  expect_error([&] { session_cut(record, -1, path); }, {path});

  bench.spoken({prompt_settings()}, 40, 5).save(path);
  record = session_read(path);
  session_cut(record, 45, path);
  expect_error([&] { session_cut(record, 44, path); }, {path, "summary mode `prompt`"});
}

}  // namespace
}  // namespace lca::test
