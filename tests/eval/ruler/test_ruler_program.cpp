// `lca eval ruler` and `lca eval compare` on a tiny model.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "eval/compare.h"
#include "eval/ruler/ruler_parts.h"
#include "formats/byte_files.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lca::test {
namespace {

using ProgramJson = nlohmann::json;

class RulerProgram : public ::testing::Test {
 protected:
  RulerProgram() { tiny_.write(); }

  /// Runs `lca eval ruler` on the tiny model; three tasks unless others are named.
  Finished run(std::vector<std::string> more) const {
    std::vector<std::string> words{"eval", "ruler",     tiny_.path(), "--device",
                                   "cpu",  "--method",  "window",     "--window",
                                   "64",   "--threads", "2"};
    if (std::ranges::find(more, "--prompts") == more.end() &&
        std::ranges::find(more, "--tasks") == more.end()) {
      words.insert(words.end(), {"--tasks", "niah_single_1,niah_single_2,fwe", "--lengths", "1K",
                                 "--samples", "3"});
    }
    words.insert(words.end(), more.begin(), more.end());
    return program_run(words);
  }
  ProgramJson json(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Finished finished = run(std::move(more));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return ProgramJson::parse(finished.out, nullptr, false);
  }
  std::string file(std::string_view name) const { return (folder_ / name).string(); }
  static std::vector<std::string> lines(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream stream(path);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  TinyModel tiny_;
  ScratchFolder folder_;
};

TEST_F(RulerProgram, RowsHaveScoresIntervalsAndReasons) {
  const ProgramJson report = json({});
  ASSERT_EQ(report["rows"].size(), 3u);
  for (const ProgramJson& row : report["rows"]) {
    EXPECT_EQ(row["length"], 1024);
    if (row["task"] == "niah_single_2") {
      EXPECT_EQ(row["skipped"], "no essays were given");
      EXPECT_EQ(row["samples"], 0);
      EXPECT_TRUE(row["score"].is_null());
    } else {
      EXPECT_TRUE(row["skipped"].is_null());
      EXPECT_EQ(row["samples"], 3);
      EXPECT_LE(row["low"], row["score"]);
      EXPECT_GE(row["high"], row["score"]);
    }
  }
  EXPECT_EQ(report["means"][0]["tasks"], 2);
  EXPECT_TRUE(report["complete"]);
}

TEST_F(RulerProgram, PromptsThatWereWrittenScoreAsThoseThatAreMade) {
  const ProgramJson made = json({"--dump", file("prompts"), "--results", file("made")});
  EXPECT_EQ(lines(file("prompts")).size(), 6u);
  const ProgramJson read = json({"--prompts", file("prompts"), "--results", file("read")});
  ProgramJson kept = ProgramJson::array();
  for (const ProgramJson& row : made["rows"]) {
    if (row["samples"] > 0) kept.push_back(row);
  }
  EXPECT_EQ(read["rows"], kept);
  const Finished compared = program_run({"eval", "compare", file("made"), file("read"), "--json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const ProgramJson differences = ProgramJson::parse(compared.out);
  for (const ProgramJson& row : differences["rows"]) {
    EXPECT_EQ(row["difference"], 0);
  }
  const Finished only = run({"--dump", file("again"), "--dump-only"});
  EXPECT_EQ(only.code, 0);
  EXPECT_EQ(only.out, "");
  EXPECT_EQ(read_file(folder_ / "again"), read_file(folder_ / "prompts"));
}

TEST_F(RulerProgram, ARunThatWasKilledIsTakenUpAgain) {
  const ProgramJson whole = json({"--results", file("whole")});
  const std::vector<std::string> all = lines(file("whole"));
  ASSERT_EQ(all.size(), 7u);
  write_file(folder_ / "torn",
             all[0] + "\n" + all[3] + "\n" + all[5] + "\n" + all[1].substr(0, 40));
  const ProgramJson again = json({"--results", file("torn")});
  EXPECT_EQ(again["rows"], whole["rows"]);
  EXPECT_EQ(again["reused_samples"], 2);
  EXPECT_EQ(lines(file("torn")).size(), 7u);
  const ProgramJson more = json(
      {"--tasks", "niah_single_1", "--lengths", "1K", "--samples", "5", "--results", file("torn")});
  EXPECT_EQ(more["reused_samples"], 3);
  EXPECT_EQ(more["rows"][0]["samples"], 5);
  EXPECT_TRUE(run({"--results", file("torn"), "--seed", "1"}).failed_in_one_line(2));
  write_file(folder_ / "wrong", all[0] + "\n{\"task\": 3}\n");
  EXPECT_TRUE(run({"--results", file("wrong")}).failed_in_one_line(2));
}

TEST_F(RulerProgram, EveryMethodReadsTheSamePromptsAndCanBeCompared) {
  json({"--results", file("window")});
  json({"--results", file("dense"), "--method", "dense"});
  json({"--results", file("other"), "--seed", "43"});
  const auto hashes = [&](const std::string& name) {
    std::vector<std::string> found;
    for (const std::string& line : lines(file(name))) {
      const ProgramJson row = ProgramJson::parse(line);
      if (row.contains("prompt"))
        found.push_back(row["task"].get<std::string>() + row["index"].dump() +
                        row["prompt"].get<std::string>());
    }
    std::ranges::sort(found);
    return found;
  };
  EXPECT_EQ(hashes("window"), hashes("dense"));
  EXPECT_NE(hashes("window"), hashes("other"));
  const Finished compared = program_run({"eval", "compare", file("window"), file("dense")});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_NE(compared.out.find("mean"), std::string::npos);
  const Finished apart = program_run({"eval", "compare", file("window"), file("other")});
  EXPECT_TRUE(apart.failed_in_one_line(2)) << apart.err;
  EXPECT_NE(apart.err.find("other prompts"), std::string::npos);
}

TEST_F(RulerProgram, WrongFlagsAndFilesAreOneLine) {
  write_file(folder_ / "broken", "{\n");
  write_file(folder_ / "empty", "");
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--tasks", "niah"},
                                             {"--tasks", "vt,vt"},
                                             {"--tasks", "vt", "--lengths", "4K,4096"},
                                             {"--tasks", "vt", "--lengths", "0"},
                                             {"--samples", "0"},
                                             {"--seed", "4294967296"},
                                             {"--dump-only"},
                                             {"--words", folder_.path().string()},
                                             {"--essays", file("empty")},
                                             {"--squad", file("broken")},
                                             {"--hotpotqa", file("broken")},
                                             {"--prompts", file("broken")},
                                             {"--prompts", file("empty")},
                                             {"--prompts", file("missing")},
                                             {"--prompts", file("broken"), "--seed", "1"},
                                             {"--results", file("broken")}}) {
    EXPECT_TRUE(run(wrong).failed_in_one_line(2)) << wrong[0] << " " << wrong.back();
  }
  for (const char* name : {"broken", "empty", "missing"}) {
    EXPECT_TRUE(program_run({"eval", "compare", file(name), file(name)}).failed_in_one_line(2));
  }
}

/// A results file of RULER's tasks: scores by task and sample.
eval::ResultsRead results_of(const std::vector<std::tuple<std::string, int, double>>& scores) {
  eval::ResultsRead results;
  results.header = {{"lca_results", 1}, {"command", "ruler"}};
  for (const auto& [task, index, score] : scores) {
    results.rows.push_back({{"task", task},
                            {"length", 4096},
                            {"index", index},
                            {"score", score},
                            {"prompt", task + std::to_string(index)}});
  }
  return results;
}

TEST(Compare, PairsSamplesWhateverTheirOrder) {
  const auto first = results_of({{"vt", 0, 0.0}, {"vt", 1, 0.5}, {"fwe", 0, 1.0}, {"vt", 7, 1.0}});
  const auto second =
      results_of({{"fwe", 0, 0.0}, {"vt", 1, 1.0}, {"vt", 0, 0.5}, {"cwe", 0, 1.0}});
  const eval::Compared compared = eval::results_compare(first, second);
  ASSERT_EQ(compared.rows.size(), 3u);
  EXPECT_EQ(compared.rows[0].task, "vt");
  EXPECT_EQ(compared.rows[0].samples, 2u);
  EXPECT_DOUBLE_EQ(compared.rows[0].difference, 50);
  EXPECT_DOUBLE_EQ(compared.rows[0].interval.low, 50) << "each pair differs by as much";
  EXPECT_EQ(compared.rows[1].task, "fwe");
  EXPECT_EQ(compared.rows[2].task, "mean");
  EXPECT_DOUBLE_EQ(compared.rows[2].difference, -25);
  EXPECT_EQ(compared.only_first, 1u);
  EXPECT_EQ(compared.only_second, 1u);
}

TEST(Compare, APairedIntervalIsNarrowerThanThatOfTwoRuns) {
  std::vector<std::tuple<std::string, int, double>> one, other;
  for (int i = 0; i < 200; ++i) {
    one.emplace_back("vt", i, i % 2);                      // half
    other.emplace_back("vt", i, i % 20 == 0 ? 1 : i % 2);  // the same and some more
  }
  const eval::ComparedRow row = eval::results_compare(results_of(one), results_of(other)).rows[0];
  EXPECT_NEAR(row.difference, 5, 1e-9);
  EXPECT_GT(row.interval.low, 1.5);
  EXPECT_LT(row.interval.high, 8.5);
}

TEST(Compare, NeedlesArePairedByDepthAndQuestion) {
  eval::ResultsRead one;
  one.header = {{"lca_results", 1}, {"command", "needle"}, {"seed", 3}, {"model", "a"}};
  for (int i = 0; i < 8; ++i) {
    one.rows.push_back({{"length", 4096},
                        {"keys", i % 2 == 0 ? 1 : 4},
                        {"depth", 0.5},
                        {"question", "last"},
                        {"sample", i / 2},
                        {"hit", i < 4},
                        {"key", "k"},
                        {"value", "v"}});
  }
  eval::ResultsRead other = one;
  other.header["model"] = "b";
  for (auto& row : other.rows) row["hit"] = true;
  const eval::Compared compared = eval::results_compare(one, other);
  ASSERT_EQ(compared.rows.size(), 3u);
  EXPECT_EQ(compared.rows[0].keys, 1);
  EXPECT_DOUBLE_EQ(compared.rows[0].difference, 50);
  other.header["seed"] = 4;
  expect_error([&] { eval::results_compare(one, other); }, {"seed"}, ErrorKind::incompatible);
}

TEST(Compare, RulersTasksInOtherChatFormatsAreRefused) {
  auto one = results_of({{"vt", 0, 1.0}});
  auto other = one;
  one.header["chat_format"] = "chatml";
  expect_error([&] { eval::results_compare(one, other); }, {"chat_format", "chatml"},
               ErrorKind::incompatible);
  other.header["chat_format"] = "none";
  for (const bool swapped : {false, true}) {
    expect_error([&] { eval::results_compare(swapped ? other : one, swapped ? one : other); },
                 {"other prompts", "chat_format", "chatml", "none"}, ErrorKind::incompatible);
  }
  other.header.update({{"chat_format", "chatml"}, {"seed", 7}});  // hashes tell prompts apart
  EXPECT_EQ(eval::results_compare(one, other).rows.size(), 1u);
}

TEST(Compare, FilesWithoutACommonSampleAreRefused) {
  expect_error(
      [] {
        eval::results_compare(results_of({{"vt", 0, 1.0}}), results_of({{"vt", 1, 1.0}}));
      },
      {"no sample"}, ErrorKind::incompatible);
  expect_error(
      [] {
        eval::results_compare(results_of({{"vt", 0, 7.0}}), results_of({{"vt", 0, 1.0}}));
      },
      {"score"});
}

}  // namespace
}  // namespace lca::test
