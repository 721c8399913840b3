// `--session FILE` and `lca session`: conversations that outlive the program.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "engine/session_lock.h"
#include "support/sanitized.h"
#include "support/test_data.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class Sessions : public testing::Test {
 protected:
  Sessions() { model.write(); }

  Words words(const std::string& command, const Words& more) const {
    Words all = {command, model.path()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  json run_json(Words more) const {
    more.insert(more.end(), {"--json", "--ignore-eos"});
    const Finished finished = program_run(words("run", more));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.code == 0 ? json::parse(finished.out) : json();
  }
  /// `run` must fail with code 2 and one line that holds `part`; the session file stays as it is.
  void expect_refused(const Words& more, const std::string& part) const {
    const std::string before = read_file(session);
    const Finished finished = program_run(words("run", more));
    EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.code << finished.err;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
    EXPECT_TRUE(read_file(session) == before) << "the file has changed";
  }
  json inspect(const std::string& path) const {
    const Finished finished = program_run({"session", "inspect", path, "--json"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.code == 0 ? json::parse(finished.out) : json();
  }
  std::string file(const std::string& name, const std::string& text) const {
    write_file(folder / name, text);
    return folder / name;
  }

  TinyModel model;
  ScratchFolder folder;
  std::string session = folder / "talk.session";
  // Small, so that short texts are condensed.
  const Words small = {"--window", "16", "--group", "4", "--sink", "2"};
  Words with_small(Words more) const {
    more.insert(more.end(), small.begin(), small.end());
    return more;
  }
};

/// Without replacement characters: a reply that may be continued withholds an incomplete character.
std::string whole_characters(std::string text) {
  constexpr std::string_view kNone = "\xef\xbf\xbd";
  for (std::size_t at = 0; (at = text.find(kNone)) != std::string::npos;) {
    text.erase(at, kNone.size());
  }
  return text;
}

TEST_F(Sessions, AReplyInTwoRunsIsTheReplyInOne) {
  for (const Words& how : {Words{}, Words{"--temperature", "1.2", "--seed", "5"}}) {
    const auto with = [&](Words more) {
      more.insert(more.end(), how.begin(), how.end());
      return run_json(more);
    };
    std::filesystem::remove(session);
    const json whole = with(with_small({"-p", "hello there, how are you today?", "-n", "64"}));
    const json first = with(
        with_small({"-p", "hello there, how are you today?", "-n", "32", "--session", session}));
    EXPECT_EQ(first["reused_tokens"], 0);
    EXPECT_EQ(first["session"]["saved"], true);
    EXPECT_EQ(first["session"]["path"], session);
    EXPECT_EQ(first["session"]["bytes"], std::filesystem::file_size(session));
    const json second = with({"-n", "32", "--session", session});
    EXPECT_EQ(second["reused_tokens"], first["session"]["tokens"]);
    EXPECT_EQ(
        whole_characters(first["text"].get<std::string>() + second["text"].get<std::string>()),
        whole_characters(whole["text"]));
    std::vector<int> ids = first["ids"];
    for (const int id : second["ids"]) ids.push_back(id);
    EXPECT_EQ(json(ids), whole["ids"]);
    EXPECT_EQ(folder.count(), 1u) << "no lock, no temporary file is left";
  }
}

TEST_F(Sessions, TurnsInSeveralRunsAreThoseOfOneChat) {
  const std::string input = file("turns.txt", "hello\nwho are you?\nand then?\n");
  const Words reply = with_small({"-n", "9", "--ignore-eos"});
  const Finished chat = program_run_with(input, words("chat", reply));
  ASSERT_EQ(chat.code, 0) << chat.err;
  std::string text;
  for (const char* turn : {"hello", "who are you?", "and then?"}) {
    Words more = with_small({"-p", turn, "-n", "9", "--ignore-eos", "--session", session});
    const Finished finished = program_run(words("run", more));
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_NE(finished.err.find("tokens saved in " + session), std::string::npos) << finished.err;
    text += finished.out;
  }
  EXPECT_EQ(whole_characters(text), whole_characters(chat.out));

  // And a chat that is ended and continued.
  const std::string kept = folder / "chat.session";
  std::string halves;
  for (const char* part : {"hello\nwho are you?\n", "and then?\n"}) {
    Words more = reply;
    more.insert(more.end(), {"--session", kept});
    const Finished half = program_run_with(file("half.txt", part), words("chat", more));
    EXPECT_EQ(half.code, 0) << half.err;
    halves += half.out;
    if (part[0] == 'a') {
      EXPECT_NE(half.err.find(kept + ": continuing a conversation of "), std::string::npos)
          << half.err;
    }
  }
  EXPECT_EQ(halves, chat.out);
  EXPECT_EQ(inspect(kept)["tokens"], inspect(session)["tokens"]);

  // A reset is saved too.
  Words more = reply;
  more.insert(more.end(), {"--session", kept});
  EXPECT_EQ(program_run_with(file("reset.txt", "/reset\n"), words("chat", more)).code, 0);
  EXPECT_EQ(inspect(kept)["tokens"], 0);
  const Finished fresh = program_run_with(file("hello.txt", "hello\n"), words("chat", more));
  EXPECT_TRUE(chat.out.starts_with(fresh.out));
}

TEST_F(Sessions, AWholeNewPromptReusesWhatItShares) {
  const std::string doc = file("doc.txt", "Once upon a time there was a lighthouse on a rock.");
  const Words raw = with_small({"--raw", "--file", doc, "-n", "4"});
  Words kept = raw;
  kept.insert(kept.end(), {"--session", session});
  const json first = run_json(kept);
  const json again = run_json(kept);
  EXPECT_EQ(again["ids"], first["ids"]);
  EXPECT_EQ(again["prompt_tokens"], first["prompt_tokens"]);
  // The reply's four tokens are cut off, where the caches allow it, and the last one read again.
  EXPECT_TRUE(again["reused_tokens"] == 0 ||
              again["reused_tokens"].get<int>() + 1 == first["prompt_tokens"].get<int>())
      << again["reused_tokens"];

  // A prompt that begins with the whole session reads only the rest.
  const std::string longer =
      file("longer.txt", read_file(doc) + first["text"].get<std::string>() + " more of it");
  const json plain = run_json(with_small({"--raw", "--file", longer, "-n", "4"}));
  const json reused =
      run_json(with_small({"--raw", "--file", longer, "-n", "4", "--session", session}));
  EXPECT_EQ(reused["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(reused["ids"], plain["ids"]);

  // Raw text is appended as it is.
  const json appended = run_json({"--raw", "-p", " and on", "-n", "2", "--session", session});
  EXPECT_EQ(appended["reused_tokens"], reused["session"]["tokens"]);
  EXPECT_LT(appended["prompt_tokens"].get<int>(), reused["session"]["tokens"].get<int>() + 8);
}

TEST_F(Sessions, InspectSaysWhatIsInAFile) {
  run_json(with_small({"-p", "hello", "-n", "8", "--session", session}));
  const json report = inspect(session);
  EXPECT_EQ(report["version"], 4);
  EXPECT_EQ(report["checksum"], "ok");
  EXPECT_EQ(report["reply_tokens"], 8);
  EXPECT_EQ(report["pending_tokens"], 0);
  EXPECT_EQ(report["model"]["architecture"], "llama");
  EXPECT_EQ(report["model"]["layers"], 2);
  EXPECT_EQ(report["model"]["weights"], "F32");
  EXPECT_EQ(report["model"]["fingerprint"].get<std::string>().size(), 32u);
  EXPECT_EQ(report["settings"]["window"], 16);
  EXPECT_EQ(report["bytes"], std::filesystem::file_size(session));
  const Finished text = program_run({"session", "inspect", session});
  EXPECT_EQ(text.code, 0);
  for (const char* part : {"the checksum holds", "the last 8 of them a reply", "window 16"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
  }
  const std::string bytes = read_file(session);
  write_file(session, bytes.substr(0, bytes.size() / 2));
  EXPECT_TRUE(program_run({"session", "inspect", session}).failed_in_one_line(2));
  EXPECT_TRUE(program_run({"session", "inspect", folder / "none"}).failed_in_one_line(2));
  EXPECT_TRUE(program_run({"session"}).failed_in_one_line(2));
}

TEST_F(Sessions, ForksGoOnLikeAnUninterruptedSession) {
  const Words prompt =
      with_small({"--raw", "-p", "once upon a time there was a lighthouse keeper"});
  Words first = prompt;
  first.insert(first.end(), {"-n", "20", "--session", session});
  const json report = run_json(first);
  const int tokens = report["session"]["tokens"];
  const int start = report["prompt_tokens"];

  const std::string copy = folder / "copy.session";
  EXPECT_EQ(program_run({"session", "fork", session, copy}).code, 0);
  EXPECT_TRUE(read_file(copy) == read_file(session));
  EXPECT_TRUE(program_run({"session", "fork", session, copy}).failed_in_one_line(2));

  // Far back: only with the model, which reads the text again.
  const std::string fork = folder / "fork.session";
  const Words far = {"session", "fork", session, fork, "--length", std::to_string(start + 3)};
  const Finished refused = program_run(far);
  EXPECT_TRUE(refused.failed_in_one_line(2)) << refused.err;
  EXPECT_NE(refused.err.find("--model"), std::string::npos) << refused.err;
  Words with = far;
  with.insert(with.end(), {"--model", model.path(), "--json"});
  const Finished forked = program_run(with);
  ASSERT_EQ(forked.code, 0) << forked.err;
  EXPECT_EQ(json::parse(forked.out)["tokens"], start + 3);
  const json rest = run_json({"--raw", "-n", "17", "--session", fork});
  const std::vector<int> ids = report["ids"];
  EXPECT_EQ(rest["ids"], json(std::vector<int>(ids.begin() + 3, ids.end())));

  // One token back is inside the last group, or just outside.
  const std::string near = folder / "near.session";
  const Finished cut =
      program_run({"session", "fork", session, near, "--length", std::to_string(tokens - 1)});
  if (inspect(session)["shortest_cut"].get<int>() <= tokens - 2) {
    ASSERT_EQ(cut.code, 0) << cut.err;
    EXPECT_EQ(run_json({"--raw", "-n", "1", "--session", near})["ids"][0], ids.back());
  } else {
    EXPECT_TRUE(cut.failed_in_one_line(2)) << cut.err;
  }
  EXPECT_TRUE(program_run({"session", "fork", session, folder / "x", "--length", "10000"})
                  .failed_in_one_line(2));

  const std::string whole = folder / "prompt.session";
  run_json({"-p", "hello", "-n", "3", "--preset", "paper", "--session", whole});
  const Finished mode = program_run(
      {"session", "fork", whole, folder / "y", "--length", "4", "--model", model.path()});
  EXPECT_TRUE(mode.failed_in_one_line(2)) << mode.err;
  EXPECT_NE(mode.err.find("`prompt`"), std::string::npos) << mode.err;
}

TEST_F(Sessions, AnotherPrecisionGoesOnWithANotice) {
  run_json(with_small({"-p", "hello", "-n", "4", "--session", session, "--precision", "f32"}));
  const Finished finished = program_run(
      words("run", {"-p", "x", "-n", "1", "--session", session, "--precision", "bf16"}));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.err.find("precision bf16 instead of f32"), std::string::npos) << finished.err;
  EXPECT_EQ(inspect(session)["model"]["precision"], "bf16");
}

// The end of the document is marked: a second question reads little more than the question.
TEST_F(Sessions, ASecondQuestionAboutADocumentReusesIt) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "hello there, what is the capital of france? ";
  const std::string document = folder / "document.txt";
  write_file(document, text);
  const auto ask = [&](const std::string& question, const std::string& path) {
    return run_json(with_small({"--file", document, "-p", question, "-n", "6", "--session", path}));
  };
  const json first = ask("Who?", session);
  EXPECT_EQ(first["reused_tokens"], 0);
  const json marks = inspect(session)["marks"];
  ASSERT_EQ(marks.size(), 1u);
  const int mark = marks[0];
  EXPECT_LT(mark, first["prompt_tokens"].get<int>());
  for (const char* question : {"And where is it?", "Why not in spain, then?"}) {
    const json next = ask(question, session);
    EXPECT_EQ(next["reused_tokens"], mark);
    EXPECT_GE(next["reused_tokens"].get<double>(), 0.95 * next["prompt_tokens"].get<double>());
    EXPECT_EQ(next["ids"], ask(question, folder / (std::string("fresh") + question[0]))["ids"]);
  }
  // A mode without marks still answers.
  const json whole = run_json({"--file", document, "-p", "Who?", "-n", "2", "--preset", "paper",
                               "--session", folder / "prompt.session"});
  EXPECT_EQ(whole["tokens"], 2);
}

TEST_F(Sessions, WhatContradictsAFileIsOneLine) {
  run_json(with_small({"-p", "hello", "-n", "4", "--session", session, "--precision", "f32"}));
  const Words go_on = {"-p", "x", "-n", "1", "--session", session, "--precision", "f32"};
  const auto with = [&](const Words& more) {
    Words all = go_on;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_refused(with({"--window", "1024"}), "window 16, not 1024");
  expect_refused(with({"--method", "dense"}), "method lca, not dense");
  expect_refused(with({"--preset", "paper"}), "start a new session");
  expect_refused(with({"--system", "Be kind."}), "--system comes too late");
  EXPECT_TRUE(
      program_run(words("chat", {"--session", session, "--system", "x"})).failed_in_one_line(2));
  expect_refused({"-p", "x", "--session", ""}, "--session is empty");
  expect_refused({"-p", "x", "--session", folder.path()}, "folder");
  expect_refused({"-p", "x", "--session", folder / "no/s"}, "no session can be kept there");
  expect_refused({"-p", "x", "--session", "/proc/s"}, "no session can be kept there");
  expect_refused({"-n", "3", "--session", folder / "new"}, "nothing to answer");
  EXPECT_EQ(run_json(with({"--window", "16"}))["settings"]["window"], 16);

  TinyModel other;
  other.weights.add("model.norm.weight", "F32", {TinyModel::kHidden},
                    std::vector<double>(TinyModel::kHidden, 2.0));
  other.write();
  const Finished finished =
      program_run({"run", other.path(), "-p", "x", "--session", session, "--precision", "f32"});
  EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.err;
  EXPECT_NE(finished.err.find("other weights"), std::string::npos) << finished.err;
}

TEST_F(Sessions, TheSecondProgramOnAFileGetsAnError) {
  Program first(words("run", {"-p", "hello", "-n", "1M", "--ignore-eos", "--session", session}));
  ASSERT_TRUE(first.wait_for_output());
  const Finished second = program_run(words("run", {"-p", "x", "--session", session}));
  EXPECT_TRUE(second.failed_in_one_line(1)) << second.err;
  EXPECT_NE(second.err.find("in use by another program (process "), std::string::npos)
      << second.err;
  const Finished chat = program_run(words("chat", {"--session", session}));
  EXPECT_TRUE(chat.failed_in_one_line(1)) << chat.err;

  // Ctrl-C keeps what was written.
  first.interrupt();
  const Finished finished = first.finish();
  EXPECT_EQ(finished.code, 130);
  EXPECT_NE(finished.err.find("tokens saved in"), std::string::npos) << finished.err;
  const int written = inspect(session)["reply_tokens"];
  EXPECT_GT(written, 0);
  const json rest = run_json({"-n", "5", "--session", session});
  const json whole = run_json({"-p", "hello", "-n", std::to_string(written + 5)});
  const std::vector<int> ids = whole["ids"];
  EXPECT_EQ(rest["ids"], json(std::vector<int>(ids.end() - 5, ids.end())));
}

TEST_F(Sessions, OtherProgramsLocksStay) {
  const std::string other = folder / "Cargo.lock";
  const std::string copy = folder / "copy";
  file("Cargo.lock", "version = 4\n");
  run_json({"-p", "hello", "-n", "1", "--session", folder / "Cargo"});
  EXPECT_EQ(read_file(other), "version = 4\n");
  EXPECT_EQ(folder.count(), 2u);

  // A fork that fails touches no other file beside its target.
  file("copy", "not to be replaced");
  file("copy.lock", "mine");
  const std::filesystem::path ours = session_lock_path(copy);
  write_file(ours, "lca session lock\nprocess 1\n");
  EXPECT_TRUE(program_run({"session", "fork", folder / "Cargo", copy}).failed_in_one_line(2));
  EXPECT_EQ(read_file(copy), "not to be replaced");
  EXPECT_EQ(read_file(folder / "copy.lock"), "mine");
  EXPECT_TRUE(std::filesystem::exists(ours));
}

TEST_F(Sessions, AWrongFlagIsFoundBeforeTheLockIsTaken) {
  const SessionLock held(session);
  for (const Words& wrong :
       {Words{"--chat-format", "morse"}, Words{"--window", "-3"}, Words{"--temperature", "cold"}}) {
    Words more = {"-p", "x", "--session", session};
    more.insert(more.end(), wrong.begin(), wrong.end());
    for (const char* command : {"run", "chat"}) {
      if (command == std::string("chat")) more.erase(more.begin(), more.begin() + 2);
      const Finished finished = program_run(words(command, more));
      EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.err;
      EXPECT_EQ(finished.err.find("in use"), std::string::npos) << finished.err;
    }
  }
}

std::filesystem::perms permissions(const std::string& path) {
  return std::filesystem::status(path).permissions();
}

TEST_F(Sessions, FilesAreTheOwnersAlone) {
  constexpr auto kOwner = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
  const mode_t before = ::umask(0);
  run_json({"-p", "hello", "-n", "1", "--session", session});
  EXPECT_EQ(permissions(session), kOwner);
  const std::string copy = folder / "copy";
  EXPECT_EQ(program_run({"session", "fork", session, copy}).code, 0);
  EXPECT_EQ(permissions(copy), kOwner);
  // Permissions that the user has widened are kept.
  constexpr auto kShared = kOwner | std::filesystem::perms::group_read;
  std::filesystem::permissions(session, kShared);
  run_json({"-p", "more", "-n", "1", "--session", session});
  EXPECT_EQ(permissions(session), kShared);
  ::umask(before);
}

TEST_F(Sessions, CtrlCInAChatKeepsTheConversation) {
  const std::string input = file("turns.txt", "hello\n");
  Program chat(words("chat", {"-n", "1M", "--ignore-eos", "--session", session}),
               Program::Output::caught, input);
  ASSERT_TRUE(chat.wait_for_output());
  chat.interrupt();
  const Finished finished = chat.finish();
  EXPECT_EQ(finished.code, 130) << finished.err;
  EXPECT_GT(inspect(session)["reply_tokens"], 0);
  EXPECT_EQ(folder.count(), 2u) << "the lock is gone";
}

TEST_F(Sessions, ASignalWhileItLoadsLeavesNoLock) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += "word ";
  Program program(words("run", {"--file", file("doc.txt", text), "-n", "1", "--session", session}));
  ASSERT_TRUE(program.wait_for_handler());
  while (!std::filesystem::exists(session_lock_path(session))) ::usleep(100);
  program.interrupt();
  EXPECT_EQ(program.finish().code, 130);
  EXPECT_FALSE(std::filesystem::exists(session_lock_path(session)));
}

TEST_F(Sessions, CtrlCWhileItReadsKeepsTheRestForLater) {
  std::string text;
  constexpr int kWords = kSanitized ? 1000 : 4000;  // long enough to be interrupted
  for (int i = 0; i < kWords; ++i) text += "word" + std::to_string(i % 37) + " ";
  const std::string doc = file("doc.txt", text);
  const Words flags = with_small({"--raw", "--file", doc, "-n", "3", "--chunk", "16"});
  Words kept = flags;
  kept.insert(kept.end(), {"--session", session, "--ignore-eos"});
  int pause = 200;  // ms; how long a machine reads is found by trying
  for (int attempt = 0; attempt < 12; ++attempt) {
    std::filesystem::remove(session);
    Program program(words("run", kept));
    ASSERT_TRUE(program.wait_for_handler());
    // The lock is taken first; then the model is loaded, and it begins to read.
    while (!std::filesystem::exists(session_lock_path(session))) ::usleep(1000);
    ::usleep(pause * 1000);
    program.interrupt();
    const Finished finished = program.finish();
    const bool begun = std::filesystem::exists(session);
    const json half = begun ? inspect(session) : json();
    if (finished.code == 0 || (begun && half["pending_tokens"] == 0)) {
      pause /= 2;  // everything was read
      continue;
    }
    ASSERT_EQ(finished.code, 130) << finished.err;
    if (!begun) {
      pause += pause / 2 + 1;
      continue;
    }
    const json whole = run_json(flags);
    EXPECT_EQ(half["tokens"].get<int>() + half["pending_tokens"].get<int>(),
              whole["prompt_tokens"]);
    const json rest = run_json({"--raw", "-n", "3", "--chunk", "16", "--session", session});
    EXPECT_EQ(rest["ids"], whole["ids"]);
    return;
  }
  FAIL() << "it was never interrupted in the middle of reading";
}

TEST_F(Sessions, AClosedPipeLosesNothing) {
  const Finished finished =
      program_run(words("run", {"-p", "hello", "-n", "1M", "--ignore-eos", "--session", session}),
                  Program::Output::closed_pipe);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(inspect(session)["tokens"], 0);
}

/// Limits the size of files that this process and its children write, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    old_ = ::signal(SIGXFSZ, SIG_IGN);  // children inherit it: writes fail instead
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, old_);
  }

 private:
  rlimit before_{};
  void (*old_)(int) = nullptr;
};

TEST_F(Sessions, AFullDiskLeavesTheOldSessionAndTheReply) {
  run_json({"-p", "hello", "-n", "4", "--session", session});
  const std::string before = read_file(session);
  const std::string input = file("turns.txt", "more\nand more\n");
  Finished finished;
  Finished chat;
  {
    const FileLimit limit(4096);
    finished = program_run(words("run", {"-p", "more", "-n", "4", "--session", session}));
    chat =
        program_run_with(input, words("chat", {"-n", "4", "--ignore-eos", "--session", session}));
  }
  EXPECT_EQ(finished.code, 1) << finished.err;
  EXPECT_FALSE(finished.out.empty());
  EXPECT_NE(finished.err.find("lca: error: " + session), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("the session is not saved"), std::string::npos) << finished.err;
  EXPECT_EQ(chat.code, 1) << chat.err;
  EXPECT_EQ(std::ranges::count(chat.out, '\n'), 2) << "both turns are answered\n" << chat.out;
  EXPECT_TRUE(read_file(session) == before) << "the file has changed";
  EXPECT_EQ(folder.count(), 2u) << "nothing half-written is left";
}

TEST_F(Sessions, AReadOnlyFolderIsFoundOutBeforeAnySlowWork) {
  const std::string place = folder / "readonly";
  std::filesystem::create_directory(place);
  const bool mounted = ::mount("none", place.c_str(), "tmpfs", MS_RDONLY, "size=64k") == 0;
  if (!mounted) {
    if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere, and may not mount here";
    std::filesystem::permissions(
        place, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  }
  const Finished finished =
      program_run(words("run", {"-p", "x", "--session", place + "/s", "--adapter", "/nowhere"}));
  if (mounted) ::umount(place.c_str());
  EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.err;
  EXPECT_NE(finished.err.find("no session can be kept there"), std::string::npos) << finished.err;
}

TEST(RealModelSession, IsSmallAndGoesOnAsIfNothingHappened) {
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData;
  if (kSanitized) GTEST_SKIP() << "the tiny model's sessions run the same code";
  const ScratchFolder folder;
  const std::string session = folder / "s";
  const std::string path = smollm2_path()->string();
  const auto run = [&](Words more) {
    more.insert(more.begin(), {"run", path, "--json", "--ignore-eos"});
    const Finished finished = program_run(more);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out);
  };
  const json whole = run({"-p", "Tell me about lighthouses.", "-n", "24"});
  const json first = run({"-p", "Tell me about lighthouses.", "-n", "12", "--session", session});
  const json second = run({"-n", "12", "--session", session});
  EXPECT_EQ(first["text"].get<std::string>() + second["text"].get<std::string>(), whole["text"]);
}

}  // namespace
}  // namespace lca::test
