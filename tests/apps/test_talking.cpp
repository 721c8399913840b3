// Commands that run a model on text: run, chat, eval perplexity, demo; and Ctrl-C.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "support/compare.h"
#include "support/sanitized.h"
#include "support/test_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class Talking : public testing::Test {
 protected:
  Talking() { model.write(); }

  Words words(const std::string& command, const Words& more) const {
    Words all = {command, model.path()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Finished run(const Words& more) const {
    Finished finished = program_run(words("run", more));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished;
  }
  json run_json(Words more) const {
    more.push_back("--json");
    return json::parse(run(more).out);
  }
  std::string file(const std::string& name, const std::string& text) const {
    write_file(model / name, text);
    return (model / name).string();
  }

  TinyModel model;
};

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

TEST_F(Talking, RunStreamsTextAndSumsUpInOneLine) {
  const Finished finished = run({"-p", "hello", "-n", "8", "--ignore-eos"});
  EXPECT_FALSE(finished.out.empty());
  EXPECT_EQ(finished.out.back(), '\n');
  EXPECT_EQ(lines(finished.err), 1u) << finished.err;
  for (const char* part : {"tokens read, 8 written", "first token after", "tokens/s", "cache "}) {
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
  }
}

TEST_F(Talking, RunReportsEverythingAsJson) {
  const json report = run_json({"-p", "hello", "-n", "6", "--ignore-eos"});
  EXPECT_EQ(report["model"], std::filesystem::canonical(model.path()).string());
  EXPECT_EQ(report["tokens"], 6);
  EXPECT_EQ(report["ids"].size(), 6u);
  EXPECT_EQ(report["stop_reason"], "length");
  EXPECT_EQ(report["settings"]["sink"], 16);
  EXPECT_TRUE(report["text"].is_string());
  EXPECT_TRUE(report["warnings"].empty());
  for (const char* field : {"prompt_tokens", "load_s", "first_token_s", "prefill_tokens_per_s",
                            "decode_tokens_per_s", "cache_bytes", "dense_cache_bytes"}) {
    EXPECT_GT(report[field].get<double>(), 0) << field;
  }
}

TEST_F(Talking, TheDocumentComesFirstAndMayBeStandardInput) {
  const std::string doc = file("doc.txt", "Once upon a time.\n");
  const Words reply = {"-n", "4", "--ignore-eos"};
  const auto with = [&](Words more) {
    more.insert(more.end(), reply.begin(), reply.end());
    return run_json(more);
  };
  const json both = with({"--file", doc, "-p", "Why?"});
  const json joined = with({"-p", "Once upon a time.\n\nWhy?"});
  EXPECT_EQ(both["ids"], joined["ids"]);
  EXPECT_EQ(both["prompt_tokens"], joined["prompt_tokens"]);
  const Finished piped = program_run_with(
      doc, words("run", {"--file", "-", "-p", "Why?", "--json", "-n", "4", "--ignore-eos"}));
  EXPECT_EQ(json::parse(piped.out)["ids"], both["ids"]);
  EXPECT_GT(with({"--file", doc})["prompt_tokens"], 5);
  EXPECT_LT(with({"-p", "x", "--raw"})["prompt_tokens"], with({"-p", "x"})["prompt_tokens"]);
  EXPECT_GT(with({"-p", "x", "--system", "Be brief and kind."})["prompt_tokens"],
            with({"-p", "x"})["prompt_tokens"]);
}

TEST_F(Talking, TheTextOfAPromptIsNeverAFlag) {
  for (const char* text : {"- a list", "[a,b]", "--", "%%", "\"quoted\"", "a\nb"}) {
    const Finished finished = program_run(words("run", {"-p", text, "-n", "1"}));
    EXPECT_EQ(finished.code, 0) << text << finished.err;
  }
}

TEST_F(Talking, TheSameSeedGivesTheSameText) {
  const auto ids = [&](const char* seed) {
    return run_json({"-p", "hello", "-n", "24", "--temperature", "1.5", "--top-p", "0.99",
                     "--ignore-eos", "--seed", seed})["ids"];
  };
  EXPECT_EQ(ids("7"), ids("7"));
  EXPECT_NE(ids("7"), ids("8"));
  const Words greedy = {"-p", "hello", "-n", "12", "--ignore-eos"};
  EXPECT_EQ(run_json(greedy)["ids"], run_json(greedy)["ids"]);
}

TEST_F(Talking, AStopTextEndsTheReplyBeforeIt) {
  const json whole = run_json({"-p", "hello", "-n", "40", "--ignore-eos"});
  const auto text = whole["text"].get<std::string>();
  ASSERT_GT(text.size(), 8u);
  // A part of it that consists of whole characters.
  std::size_t at = text.size() / 2;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0x80) != 0) ++at;
  const std::string stop = text.substr(at, 1);
  const json cut =
      run_json({"-p", "hello", "-n", "40", "--ignore-eos", "--stop", "never this", "--stop", stop});
  EXPECT_EQ(cut["stop_reason"], "stop_string");
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
}

TEST_F(Talking, LongerThanTrainedIsAWarningNotAnError) {
  const std::string doc = file("long.txt", std::string(2000, 'x') + " " + std::string(900, '9'));
  const Finished finished = program_run(words("run", {"--file", doc, "-n", "2", "--json"}));
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(lines(finished.err), 1u) << finished.err;
  EXPECT_TRUE(finished.err.starts_with("lca: warning: ")) << finished.err;
  const json report = json::parse(finished.out);
  ASSERT_EQ(report["warnings"].size(), 1u);
  EXPECT_NE(report["warnings"][0].get<std::string>().find("256"), std::string::npos);
}

TEST_F(Talking, FlagsDecideTheSettings) {
  EXPECT_EQ(run_json({"-p", "x", "-n", "1", "--method", "dense"})["settings"]["method"], "dense");
  EXPECT_EQ(run_json({"-p", "x", "-n", "1", "--preset", "paper"})["settings"]["summary"], "prompt");
  const json small = run_json(
      {"-p", std::string(200, '7'), "-n", "1", "--window", "32", "--group", "8", "--sink", "0"});
  EXPECT_LT(small["cache_bytes"], small["dense_cache_bytes"]);
}

TEST_F(Talking, RunRefusesWhatIsWrongInOneLine) {
  const Words p = {"-p", "x"};
  std::vector<Words> bad = {{},
                            {"-p", ""},
                            {"--file", "/nowhere"},
                            {"--file", ""},
                            {"--file", model.path()},
                            {"-p", "x", "--raw", "--system", "y"},
                            {"-p", "x", "--raw", "--chat-format", "chatml"},
                            {"-p", "x", "--chat-format", "nonsense"},
                            {"-p", "x", "--chat-format", "llama3"},
                            {"-p", "x", "--stop", ""},
                            {"-p", "x", "--adapter", ""},
                            {"-p", "x", "--adapter", "/nowhere"},
                            {"-p", "x", "--scale", "1"},
                            {"-p", "x", "extra"},
                            {"-p", "x", "--device", "tpu"},
                            {"-p", "x", "--device", "cuda:x"},
                            {"-p", "x", "--kernels", "nonsense"}};
  for (const char* flag : {"-n", "--chunk", "--threads", "--group", "--window"}) {
    for (const char* text : {"0", "-1", "", "x", "1.5"}) bad.push_back({"-p", "x", flag, text});
  }
  for (const char* flag : {"--temperature", "--top-p", "--min-p", "--repetition-penalty"}) {
    for (const char* text : {"-1", "", "nan", "inf", "x", "1e9"}) {
      bad.push_back({"-p", "x", flag, text});
    }
  }
  for (const char* flag : {"--seed", "--top-k"}) {
    for (const char* text : {"-1", "", "x"}) bad.push_back({"-p", "x", flag, text});
  }
  for (const char* flag : {"--precision", "--method", "--preset", "--mass"}) {
    bad.push_back({"-p", "x", flag, "nonsense"});
  }
  for (std::size_t i = 0; i < bad.size(); i += scaled_step(5)) {
    const Words& more = bad[i];
    const Finished finished = program_run(words("run", more));
    std::string shown;
    for (const std::string& word : more) shown += " '" + word + "'";
    EXPECT_TRUE(finished.failed_in_one_line(2)) << shown << " exited with " << finished.code << "\n"
                                                << finished.out << finished.err;
  }
  EXPECT_NE(program_run(words("run", {})).err.find("-p TEXT"), std::string::npos);
  // More memory than the machine has is not an error of the flags.
  EXPECT_TRUE(program_run(words("run", {"-p", "x", "-n", "1024G", "--method", "dense"}))
                  .failed_in_one_line(1));
}

TEST_F(Talking, APromptLargerThanMemorySaysWhatItWouldNeed) {
  const std::string err =
      program_run(words("run", {"-p", "x", "-n", "1024G", "--method", "dense"})).err;
  EXPECT_NE(err.find("of memory beside the weights"), std::string::npos) << err;
  EXPECT_NE(err.find("--method lca"), std::string::npos) << err;
}

TEST_F(Talking, ChatTakesTurnsFromAPipe) {
  const std::string input = file("turns.txt", "hello\n\n/stats\n/nonsense\nmore\n/help\n");
  const Words flags = words("chat", {"-n", "5", "--ignore-eos", "--system", "Be kind."});
  const Finished finished = program_run_with(input, flags);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("> "), std::string::npos)
      << "a prompt although input is not a terminal";
  EXPECT_NE(finished.out.find("tokens; trained for 256 tokens; cache"), std::string::npos)
      << finished.out;
  EXPECT_NE(finished.out.find("/reset"), std::string::npos) << finished.out;
  EXPECT_NE(finished.err.find("unknown command /nonsense"), std::string::npos) << finished.err;
  EXPECT_EQ(lines(finished.err), 3u) << finished.err;  // two turns and the unknown command
}

TEST_F(Talking, ChatStartsOverAndLeavesWhenTold) {
  const std::string input = file("turns.txt", "hello\n/reset\nhello\n/exit\nhello\n");
  const Finished finished = program_run_with(input, words("chat", {"-n", "6", "--ignore-eos"}));
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::size_t half = finished.out.size() / 2;
  EXPECT_EQ(finished.out.substr(0, half), finished.out.substr(half)) << "the same twice";
  EXPECT_EQ(finished.out.substr(0, half), run({"-p", "hello", "-n", "6", "--ignore-eos"}).out);
}

TEST_F(Talking, PerplexityIsTheMeanOverAllButTheFirstToken) {
  std::string text;
  for (int i = 0; i < 700; ++i)
    text += "word" + std::to_string(i % 37) + (i % 9 == 0 ? ".\n" : " ");
  const std::string path = file("text.txt", text);
  const auto evaluate = [&](const Words& more) {
    Words all = {"eval", "perplexity", model.path(), "--file", path, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished finished = program_run(all);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out);
  };
  const json report = evaluate({"--length", "1500", "--ranges", "700,2K,4K"});
  EXPECT_EQ(report["tokens"], 1500);
  EXPECT_NEAR(report["perplexity"].get<double>(), std::exp(report["nll"].get<double>()), 1e-9);
  ASSERT_EQ(report["by_range"].size(), 2u);
  double sum = 0;
  std::int64_t from = 1;
  for (const json& range : report["by_range"]) {
    EXPECT_EQ(range["from"], from);
    from = range["to"];
    EXPECT_EQ(range["tokens"], range["to"].get<std::int64_t>() - range["from"].get<std::int64_t>());
    sum += range["nll"].get<double>() * range["tokens"].get<double>();
  }
  EXPECT_EQ(from, 1500);
  EXPECT_NEAR(sum / 1499, report["nll"].get<double>(), 1e-9);
  EXPECT_EQ(report["by_range"][0]["to"], 700);
  const json other = evaluate({"--length", "1500", "--chunk", "100", "--threads", "1"});
  EXPECT_NEAR(other["nll"].get<double>(), report["nll"].get<double>(), 1e-4);
  EXPECT_NE(evaluate({"--length", "1500", "--method", "window", "--window", "8"})["nll"],
            report["nll"]);

  const Finished table =
      program_run({"eval", "perplexity", model.path(), "--file", path, "--length", "200"});
  EXPECT_NE(table.out.find("| 0 – 200 "), std::string::npos) << table.out;
  for (const Words& more : {Words{"--length", "100K"},
                            {"--length", "1"},
                            {},
                            {"--length", "x"},
                            {"--length", "100", "--ranges", "50,20"},
                            {"--length", "100", "--ranges", "50,50"},
                            {"--length", "100", "--ranges", "1"},
                            {"--length", "100", "--ranges", ""}}) {
    Words all = {"eval", "perplexity", model.path(), "--file", path};
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_TRUE(program_run(all).failed_in_one_line(2));
  }
  EXPECT_TRUE(
      program_run({"eval", "perplexity", model.path(), "--length", "5"}).failed_in_one_line(2));
}

TEST_F(Talking, TheDemoShowsBothMethodsAndSaysWhatIsLost) {
  const std::string doc = file("doc.txt", std::string(300, 'a') + "\n");
  const Finished finished =
      program_run({"demo", "--model", model.path(), "--document", doc, "--question", "What is it?",
                   "-n", "4", "--window", "32", "--sink", "0", "--ignore-eos"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  for (const char* part : {"LCA answers:", "Dense answers:", "Question: What is it?",
                           "first token after", "tokens/s", "| cache ", "not exact details"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " is not in\n" << finished.out;
  }
  EXPECT_TRUE(program_run({"demo", "--model", model.path()}).failed_in_one_line(2));
  const auto tokens = [&](const Words& more) {
    Words all = {"demo", "--model", model.path(), "-n", "1"};
    all.insert(all.end(), more.begin(), more.end());
    const std::string out = program_run(all).out;
    const std::size_t at = out.find(" tokens with the question");
    return std::stoi(out.substr(out.rfind(' ', at - 1)));
  };
  EXPECT_GE(tokens({"--document", doc, "--document", doc}), tokens({"--document", doc}) + 300);
}

TEST_F(Talking, CtrlCTwiceEndsAtOnce) {
  std::string ids;
  for (int i = 0; i < 200000; ++i) ids += "5 ";
  Program program(words("logits", {"--tokens-file", file("ids.txt", ids), "--chunk", "1M",
                                   "--method", "dense", "--out", (model / "out").string()}));
  ASSERT_TRUE(program.wait_for_handler());
  ::usleep(1500 * 1000);
  program.interrupt();
  ::usleep(300 * 1000);
  program.interrupt();
  EXPECT_EQ(program.finish().code, 130);
}

TEST_F(Talking, CtrlCEndsTheReplyAndStillSumsUp) {
  Program program(words("run", {"-p", "hello", "-n", "1M", "--ignore-eos"}));
  ASSERT_TRUE(program.wait_for_output());
  program.interrupt();
  const Finished finished = program.finish();
  EXPECT_EQ(finished.code, 130);
  EXPECT_EQ(finished.out.back(), '\n');
  EXPECT_NE(finished.err.find("stopped: "), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find(" written"), std::string::npos) << finished.err;
}

TEST_F(Talking, CtrlCLeavesNoHalfOfALogitsFile) {
  std::string ids;
  for (int i = 0; i < 60000; ++i) ids += "5 ";
  const std::string path = file("ids.txt", ids);
  const ScratchFolder folder;
  Program program(words(
      "logits", {"--tokens-file", path, "--chunk", "16", "--out", (folder / "out").string()}));
  ASSERT_TRUE(program.wait_for_handler());
  while (folder.count() == 0) ::usleep(1000);
  program.interrupt();
  const Finished finished = program.finish();
  EXPECT_EQ(finished.code, 130) << finished.err;
  EXPECT_EQ(folder.count(), 0u);
}

TEST_F(Talking, AClosedPipeEndsTheReply) {
  const Finished finished = program_run(words("run", {"-p", "hello", "-n", "1M", "--ignore-eos"}),
                                        Program::Output::closed_pipe);
  EXPECT_EQ(finished.code, 0);
  EXPECT_TRUE(finished.err.empty()) << finished.err;
}

TEST(RealModel, AnswersAQuestion) {
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData;
  ::setenv("LCA_HOME", smollm2_path()->parent_path().c_str(), 1);
  const Finished finished =
      program_run({"run", "smollm2", "-p", "What is the capital of France?", "-n", "16"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("Paris"), std::string::npos) << finished.out;
  ::unsetenv("LCA_HOME");
}

TEST(RealModel, TheDemoFindsWhatWasCondensedLongAgo) {
  if (kSanitized) GTEST_SKIP() << "reads 21,000 tokens twice; smaller tests run the same code";
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData;
  ::setenv("LCA_HOME", smollm2_path()->parent_path().c_str(), 1);
  const std::string folder = std::string(LCA_SOURCE_DIR) + "/assets/demo/";
  const std::string questions = read_file(folder + "questions.txt");
  const std::string question = questions.substr(0, questions.find('\n'));
  const Finished finished =
      program_run({"demo", "--document", folder + "lighthouse.txt", "--document",
                   folder + "annexes.txt", "--question", question, "-n", "32"});
  ::unsetenv("LCA_HOME");
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::size_t second = finished.out.find("Dense, without the adapter, answers:");
  ASSERT_NE(second, std::string::npos) << finished.out;
  EXPECT_NE(finished.out.substr(0, second).find("4719306"), std::string::npos) << finished.out;
}

TEST(RealModel, MeasuresAsItsReferenceDoes) {
  if (kSanitized) GTEST_SKIP() << "measures accuracy; smaller tests run the same code";
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData;
  ::setenv("LCA_HOME", smollm2_path()->parent_path().c_str(), 1);
  const std::string folder = std::string(LCA_SOURCE_DIR) + "/tests/golden/models/smollm2/";
  const json truth = json::parse(read_file(folder + "perplexity.json"));
  const Finished measured = program_run(
      {"eval", "perplexity", "smollm2", "--adapter", "none", "--file", folder + "text.txt",
       "--length", "512", "--window", "256", "--mass", "score", "--positions", "token", "--json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_NEAR(json::parse(measured.out)["nll"].get<double>(),
              truth["lca"]["training-free window 256"]["512"].get<double>(), 2e-3);
  ::unsetenv("LCA_HOME");
}

TEST(RealModel, ItsNameSaysWhichCommandFetchesIt) {
  const ScratchFolder folder;
  ::setenv("LCA_HOME", (folder / "empty").c_str(), 1);
  const Finished finished = program_run({"run", "smollm2", "-p", "x"});
  ::unsetenv("LCA_HOME");
  EXPECT_TRUE(finished.failed_in_one_line(2)) << finished.err;
  EXPECT_NE(finished.err.find("make model"), std::string::npos) << finished.err;
}

}  // namespace
}  // namespace lca::test
