// Help, versions, exit codes and one-line errors of the whole program.

#include "apps/program.h"
#include "support/compare.h"

#include <lca/settings.h>
#include <lca/version.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lca::test {
namespace {

using Words = std::vector<std::string>;

const std::vector<Words>& commands() {
  static const std::vector<Words> all = {{},
                                         {"op"},
                                         {"op", "attention"},
                                         {"bench"},
                                         {"bench", "attention"},
                                         {"bench", "model"},
                                         {"plan"},
                                         {"demo"},
                                         {"demo", "attention"},
                                         {"run"},
                                         {"chat"},
                                         {"inspect"},
                                         {"tokenize"},
                                         {"logits"},
                                         {"eval"},
                                         {"eval", "needle"},
                                         {"eval", "everyday"},
                                         {"eval", "perplexity"}};
  return all;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string joined(const Words& words) {
  std::string text = "lca";
  for (const std::string& word : words) text += " '" + word + "'";
  return text;
}

TEST(CommandLine, EveryCommandHasHelpWithExamples) {
  for (const Words& command : commands()) {
    const Finished finished = program_run(with(command, {"--help"}));
    SCOPED_TRACE(joined(command));
    EXPECT_EQ(finished.code, 0);
    EXPECT_TRUE(finished.err.empty()) << finished.err;
    const std::size_t examples = finished.out.find("Examples:\n");
    ASSERT_NE(examples, std::string::npos);
    int shown = 0;
    for (std::size_t at = examples;
         (at = finished.out.find("\n  lca ", at + 1)) != std::string::npos;) {
      ++shown;
    }
    EXPECT_GE(shown, 2);
    EXPECT_NE(finished.out.find("--threads"), std::string::npos);
    EXPECT_NE(finished.out.find("--version"), std::string::npos);
  }
}

TEST(CommandLine, EveryCommandPrintsItsVersion) {
  for (const Words& command : commands()) {
    const Finished finished = program_run(with(command, {"--version"}));
    EXPECT_EQ(finished.code, 0) << joined(command);
    EXPECT_EQ(finished.out, std::string("lca ") + version() + "\n");
  }
}

TEST(CommandLine, EveryKnobOfTheMechanismIsAFlagOfEveryCommandThatComputes) {
  for (const Words& command :
       {Words{"op", "attention"}, {"bench", "attention"}, {"plan"}, {"demo", "attention"}}) {
    const std::string help = program_run(with(command, {"--help"})).out;
    for (const SettingField& field : setting_fields()) {
      if (field.name == "method" && command.back() != "plan" && command.front() != "op") continue;
      std::string flag = "--" + std::string(field.name);
      std::ranges::replace(flag, '_', '-');
      EXPECT_NE(help.find("  " + flag + " "), std::string::npos) << joined(command) << " " << flag;
    }
    EXPECT_NE(help.find("--preset"), std::string::npos);
    EXPECT_NE(help.find("--scale"), std::string::npos);
  }
}

TEST(CommandLine, EveryKnobOfTheMechanismIsAFlagOfEveryCommandThatRunsAModel) {
  for (const Words& command : {Words{"run"},
                               {"chat"},
                               {"logits"},
                               {"eval", "perplexity"},
                               {"eval", "needle"},
                               {"eval", "everyday"},
                               {"demo"},
                               {"inspect"},
                               {"bench", "model"}}) {
    const std::string help = program_run(with(command, {"--help"})).out;
    for (const SettingField& field : setting_fields()) {
      if (field.name == "method" && command.back() == "demo") continue;  // it compares methods
      std::string flag = "--" + std::string(field.name);
      std::ranges::replace(flag, '_', '-');
      EXPECT_NE(help.find("  " + flag + " "), std::string::npos) << joined(command) << " " << flag;
    }
    for (const char* flag : {"--preset", "--adapter"}) {
      EXPECT_NE(help.find(flag), std::string::npos) << joined(command) << " " << flag;
    }
    EXPECT_EQ(help.find("--scale"), std::string::npos) << "the scale is the model's own";
  }
}

TEST(CommandLine, ErrorsAreOneLineAndExitWithTwo) {
  const Words plan = {"plan", "--shape", "qwen-7b"};
  const Words bench = {"bench", "attention", "--shape", "smollm2", "--lengths", "64"};
  const Words op = {"op", "attention", "in", "out"};
  std::vector<Words> bad = {
      {},
      {"op"},
      {"bench"},
      {"nonsense"},
      {"--nonsense"},
      {"op", "nonsense"},
      {""},
      {"-"},
      {"--"},
      {"op", "attention"},
      {"op", "attention", "in"},
      {"op", "attention", "a", "b", "c"},
      {"op", "attention", "", ""},
      {"op", "attention", "/nowhere/in", "out"},
      {"op", "attention", "/", "out"},
      {"op", "attention", "two\nlines\r\x1b[31m", "out"},
      {"plan"},
      {"plan", "--shape", "nonsense"},
      {"plan", "--shape"},
      {"bench", "attention", "--shape", "nonsense"},
      {"plan", "smollm2", "--shape", "smollm2"},
      {"demo", "attention", "--shape", "nonsense"},
      {"demo", "attention", "--out", "/nowhere/plot.svg"},
      {"demo", "attention", "--out", "/"},
      {"demo", "attention", "--out", ""},
      {"demo", "nonsense"},
      {"eval"},
      {"eval", "nonsense"},
      {"--threads", "0", "plan", "--shape", "qwen-7b"},
      with(op, {"--backend", "cuda"}),
      with(op, {"--backend", "gpu"}),
      with(op, {"--backend", "cuda", "--kernels", "slow"}),
      with(op, {"--backend", "cuda", "--groups", "fp4"}),
      with(op, {"--backend", "cuda", "--device", "cpu"}),
      with(op, {"--backend", "reference", "--groups", "fp8"}),
      with(op, {"--prefill", "0"}),
      with(bench, {"--backend", "cuda"}),
      with(bench, {"--backend", "reference"}),
      with(bench, {"--backend", "cuda", "--batch", "0"}),
      with(bench, {"--backend", "cuda", "--dtype", "f32"}),
      with(bench, {"--batch", "1"}),
      with(bench, {"--kernels", "reference"}),
      with(bench, {"--groups", "int8"}),
  };
  for (const char* text : {"0", "-1", "", " ", "nan", "1e5", "1.5", "0x10", "128KK", "K", "2000G",
                           "99999999999999999999999999", "1024,", "+5"}) {
    bad.push_back(with(plan, {"--length", text}));
    bad.push_back({"bench", "attention", "--lengths", text});
    bad.push_back({"demo", "attention", "--max-length", text});
  }
  for (const char* text : {"0", "-1GiB", "", "GiB", "nan", "inf", "1e999GiB", "24GiBs", "1.2.3GiB",
                           "9999999999TiB", "1e3", "24 GiB"}) {
    bad.push_back(with(plan, {"--budget", text}));
  }
  for (const char* flag : {"--group", "--window", "--summary-queries", "--threads"}) {
    for (const char* text : {"0", "-1", "", "nan", "2.5", "2147483648", "1e999", "x"}) {
      bad.push_back(with(plan, {flag, text}));
    }
  }
  for (const char* text : {"0", "-1", "", "nan", "inf", "1e999", "1e-999", "0.1x", "0x1p3"}) {
    bad.push_back(with(bench, {"--scale", text}));
  }
  for (const char* flag : {"--method", "--summary", "--head-reduce", "--semantic-pool",
                           "--positional-pool", "--mass", "--preset", "--dtype"}) {
    bad.push_back(with(plan, {flag, "nonsense"}));
    bad.push_back(with(plan, {flag, ""}));
    bad.push_back(with(plan, {flag}));
  }
  // A step that meets every flag and every text, if not all of their pairs.
  for (std::size_t i = 0; i < bad.size(); i += scaled_step(5)) {
    const Words& words = bad[i];
    const Finished finished = program_run(words);
    EXPECT_TRUE(finished.failed_in_one_line(2))
        << joined(words) << " exited with " << finished.code << "\n"
        << finished.out << finished.err;
  }
}

TEST(CommandLine, ErrorsNameTheFlagAndWhatItTakes) {
  const auto error = [](const Words& words) { return program_run(words).err; };
  EXPECT_EQ(error({"plan", "--shape", "smollm2", "--group", "0"}),
            "lca: error: --group must be a whole number from 1 to 2147483647 (128K means 128 × "
            "1024), not \"0\"\n");
  EXPECT_EQ(error({"plan", "--shape", "smollm2", "--mass", "heavy"}),
            "lca: error: --mass must be one of none, count, score, not \"heavy\"\n");
  EXPECT_EQ(error({"demo", "--nonsense"}),
            "lca: error: unknown flag --nonsense; see lca demo --help\n");
  EXPECT_EQ(error({"op", "attention", "/nowhere/in", "out"}),
            "lca: error: /nowhere/in: No such file or directory\n");
}

TEST(CommandLine, ContextsThatCannotFitAreRefusedBeforeTheWork) {
  EXPECT_TRUE(program_run({"bench", "attention", "--lengths", "1024,1024G"}).failed_in_one_line(2));
  EXPECT_TRUE(program_run({"bench", "attention", "--lengths", "4G"}).failed_in_one_line(2));
}

TEST(CommandLine, TheLastOfARepeatedFlagCounts) {
  const Words plan = {"plan", "--shape", "smollm2", "--json"};
  const Finished twice = program_run(with(plan, {"--group", "4", "--group", "32"}));
  const Finished once = program_run(with(plan, {"--group", "32"}));
  EXPECT_EQ(twice.code, 0);
  EXPECT_EQ(twice.out, once.out);
}

TEST(CommandLine, ThreadsMayBeGivenBeforeTheCommand) {
  const Finished before = program_run({"--threads", "3", "plan", "--shape", "smollm2", "--json"});
  const Finished after = program_run({"plan", "--shape", "smollm2", "--json", "--threads", "3"});
  EXPECT_EQ(before.out, after.out);
  EXPECT_NE(before.out.find("\"threads\":3"), std::string::npos);
}

TEST(CommandLine, AClosedPipeIsNotAnError) {
  for (const Words& words : {Words{"--help"}, {"--version"}, {"plan", "--shape", "smollm2"}}) {
    const Finished finished = program_run(words, Program::Output::closed_pipe);
    EXPECT_EQ(finished.code, 0);
    EXPECT_TRUE(finished.err.empty()) << finished.err;
  }
}

TEST(CommandLine, AFullDiskIsAFailureInOneLine) {
  const Finished finished = program_run({"plan", "--shape", "smollm2"}, Program::Output::full_disk);
  EXPECT_TRUE(finished.failed_in_one_line(1)) << finished.code << finished.err;
}

TEST(CommandLine, CtrlCEndsALongBenchAtOnce) {
  Program program({"bench", "attention", "--lengths", "16K", "--threads", "1"});
  ASSERT_TRUE(program.wait_for_handler());
  program.interrupt();
  const Finished finished = program.finish();
  EXPECT_EQ(finished.code, 130);
  EXPECT_TRUE(finished.out.empty());
  EXPECT_TRUE(finished.err.empty()) << finished.err;
}

}  // namespace
}  // namespace lca::test
