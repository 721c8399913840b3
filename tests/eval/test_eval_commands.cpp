// `lca eval needle`, `perplexity` and `everyday` on a tiny model: what they report, that they go on
// where they were interrupted, and what they refuse.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "formats/byte_files.h"
#include "support/sanitized.h"
#include "support/test_data.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() { model.write(); }

  std::string file(const std::string& name, const std::string& content) const {
    write_file(model / name, content);
    return (model / name).string();
  }
  std::string path(const std::string& name) const { return (model / name).string(); }

  /// Sentences that differ.
  static std::string story(int sentences) {
    std::string made;
    for (int i = 0; i < sentences; ++i) {
      made += "On day " + std::to_string(i) + " we saw the sea.\n";
    }
    return made;
  }

  Words needle(const Words& more = {}) const {
    return Words{"eval",    "needle",    model.path(), "--text",   text,  "--lengths",
                 "700,900", "--depths",  "0,50%,1",    "--keys",   "1,3", "--samples",
                 "2",       "--seed",    "5",          "--window", "300", "--group",
                 "8",       "--threads", "1"} +
           more;
  }
  static json printed(const Words& words) {
    const Finished finished = program_run(words + Words{"--json"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out);
  }
  static std::size_t lines(const std::string& all) {
    return static_cast<std::size_t>(std::ranges::count(all, '\n'));
  }

  TinyModel model;
  std::string text = file("story.txt", story(400));
};

TEST_F(EvalCommand, NeedleReportsARowForEveryLengthKeysDepthAndPlace) {
  const json report = printed(needle());
  std::set<std::string> seen;
  std::int64_t samples = 0;
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row.size(), 7u);
    samples += row["samples"].get<std::int64_t>();
    EXPECT_LE(row["hits"], row["samples"]);
    EXPECT_EQ(row["question"], "last");
    const double depth = row["depth"];
    EXPECT_EQ(row["place"], depth == 0 ? "outside" : depth == 1 ? "inside" : row["place"]) << row;
    seen.insert(row["length"].dump() + row["keys"].dump() + row["depth"].dump());
  }
  EXPECT_EQ(samples, 2 * 2 * 3 * 2);
  EXPECT_EQ(seen.size(), 12u);
  EXPECT_EQ(report["complete"], true);
  EXPECT_EQ(report["settings"]["window"], 300);
  const json dense = printed(needle({"--method", "dense"}));
  for (const json& row : dense["rows"]) {
    EXPECT_EQ(row["place"], "inside");
  }
}

TEST_F(EvalCommand, NeedlePromptsAreTheSameForEveryMethodAndBothQuestions) {
  if (kSanitized) GTEST_SKIP() << "minutes under a sanitizer; its parts run in other tests";
  const auto dump = [&](const Words& more) {
    printed(needle({"--dump", path("dump")}) + more);
    std::vector<json> rows;
    const std::string all = read_file(path("dump"));
    for (std::size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
      rows.push_back(json::parse(all.substr(at, all.find('\n', at) - at)));
    }
    return rows;
  };
  const std::vector<json> lca = dump({}), dense = dump({"--method", "dense"});
  ASSERT_EQ(lca.size(), 24u);
  ASSERT_EQ(dense.size(), lca.size());
  for (std::size_t i = 0; i < lca.size(); ++i) {
    EXPECT_EQ(lca[i]["prompt"], dense[i]["prompt"]);
    const auto prompt = lca[i]["prompt"].get<std::string>();
    EXPECT_NE(prompt.find("is: " + lca[i]["value"].get<std::string>() + "."), prompt.npos);
    EXPECT_LE(lca[i]["prompt_tokens"].get<std::int64_t>() + 16,
              lca[i]["length"].get<std::int64_t>());
    // By the index law: groups of 8 behind a window of 300 and a sink of 16.
    const auto number = [&](const char* name) { return lca[i][name].get<std::int64_t>(); };
    const std::int64_t gone = 16 + (number("prompt_tokens") - 300 - 16) / 8 * 8;
    EXPECT_EQ(lca[i]["place"], number("needle_end") - 1 < gone ? "outside"
                               : number("needle_begin") < gone ? "straddling"
                                                               : "inside");
    EXPECT_NE(prompt, lca[(i + 1) % lca.size()]["prompt"].get<std::string>());
  }
  const std::vector<json> both = dump({"--question", "both", "--no-prefix"});
  ASSERT_EQ(both.size(), 48u);
  EXPECT_TRUE(both[0]["prompt"].get<std::string>().ends_with("assistant\n"));
}

TEST_F(EvalCommand, NeedleGoesOnWhereItsResultsEnd) {
  if (kSanitized) GTEST_SKIP() << "minutes under a sanitizer; its parts run in other tests";
  const Words words = needle({"--results", path("results")});
  const json whole = printed(words);
  const std::string all = read_file(path("results"));
  ASSERT_EQ(lines(all), 25u);
  // Torn after ten samples and a half.
  std::size_t cut = 0;
  for (int line = 0; line < 11; ++line) cut = all.find('\n', cut) + 1;
  write_file(path("results"), all.substr(0, cut + 20));
  const json again = printed(words);
  EXPECT_EQ(again["reused_samples"], 10);
  EXPECT_EQ(again["rows"], whole["rows"]);
  EXPECT_EQ(lines(read_file(path("results"))), 25u);
  // Nothing is left to do; more samples and fewer depths are the same run.
  EXPECT_EQ(printed(words)["reused_samples"], 24);
  EXPECT_EQ(printed(words + Words{"--samples", "3"})["reused_samples"], 24);
  EXPECT_EQ(printed(words + Words{"--depths", "0.5"})["reused_samples"], 8);
  const Finished other = program_run(words + Words{"--seed", "6"});
  EXPECT_TRUE(other.failed_in_one_line(2)) << other.err;
  EXPECT_NE(other.err.find("seed is 5 there and 6 here"), std::string::npos) << other.err;
  EXPECT_TRUE(program_run(words + Words{"--window", "32"}).failed_in_one_line(2));
}

TEST_F(EvalCommand, NeedleDrawsATableAndAMap) {
  if (kSanitized) GTEST_SKIP() << "minutes under a sanitizer; its parts run in other tests";
  const Finished finished = program_run(needle({"--question", "both", "--plot", path("map.svg")}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  for (const char* part : {"| depth ", "| 50 % ", "one of 3 numbers, question first", "outside"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << "\n" << finished.out;
  }
  const std::string svg = read_file(path("map.svg"));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("one of 3 numbers"), std::string::npos);
}

TEST_F(EvalCommand, NeedleRefusesWhatMakesNoSense) {
  const std::string empty = file("empty.txt", " \n");
  for (const Words& more : {Words{"--lengths", "60"},
                            {"--lengths", "x"},
                            {"--lengths", ""},
                            {"--lengths", "500,500"},
                            {"--depths", "2"},
                            {"--depths", "101%"},
                            {"--depths", "0.5,0.5"},
                            {"--depths", ","},
                            {"--keys", "0"},
                            {"--keys", "65"},
                            {"--samples", "0"},
                            {"--question", "middle"},
                            {"--seed", "-1"},
                            {"--text", path("none.txt")},
                            {"--text", empty},
                            {"--text", ""},
                            {"--results", path("story.txt")},
                            {"--results", ""},
                            {"--dump", path("none/dump")},
                            {"--plot", model.path()},
                            {"--chat-format", "odd"}}) {
    const Finished finished = program_run(needle(more));
    EXPECT_TRUE(finished.failed_in_one_line(2)) << more[0] << " " << more[1] << "\n"
                                                << finished.err;
  }
  EXPECT_EQ(read_file(text), story(400));
}

TEST_F(EvalCommand, NeedleWithoutATextUsesSentencesThatRepeat) {
  const Finished finished = program_run(
      {"eval", "needle", model.path(), "--lengths", "500", "--depths", "0.5", "--samples", "1"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.err.find("sentences that repeat"), std::string::npos) << finished.err;
}

TEST_F(EvalCommand, CtrlCKeepsTheNeedlesThatAreDone) {
  Program program(needle({"--samples", "20000", "--results", path("results"), "--json"}));
  ASSERT_TRUE(program.wait_for_handler());
  const auto begin = std::chrono::steady_clock::now();
  while (!std::filesystem::exists(path("results")) || lines(read_file(path("results"))) < 4) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  program.interrupt();
  const Finished finished = program.finish();
  EXPECT_EQ(finished.code, 130) << finished.err;
  const json report = json::parse(finished.out);
  EXPECT_EQ(report["complete"], false);
  std::int64_t samples = 0;
  for (const json& row : report["rows"]) samples += row["samples"].get<std::int64_t>();
  EXPECT_GE(samples, 3);
  EXPECT_EQ(lines(read_file(path("results"))), static_cast<std::size_t>(samples) + 1);
}

TEST_F(EvalCommand, PerplexityOfWindowsOfSeveralDocuments) {
  std::filesystem::create_directory(model / "books");
  write_file(model / "books/b.txt", story(120));
  write_file(model / "books/a.md", story(90));
  write_file(model / "books/c.json", "{}");
  write_file(model / "books/short.txt", "Too short.");
  const Words words = {"eval",    "perplexity", model.path(), "--file",    path("books"),
                       "--file",  text,         "--length",   "200",       "--ranges",
                       "100,150", "--windows",  "2",          "--threads", "1"};
  const json report = printed(words + Words{"--results", path("results")});
  ASSERT_EQ(report["windows"].size(), 6u);
  ASSERT_EQ(report["warnings"].size(), 1u);
  EXPECT_EQ(report["tokens"], 1200);
  double all = 0, first = 0;
  std::set<std::string> documents;
  for (const json& window : report["windows"]) {
    all += window["nll"].get<double>() / 6;
    first += window["by_range"][0]["nll"].get<double>() / 6;
    documents.insert(window["document"]);
  }
  EXPECT_EQ(documents.size(), 3u);
  EXPECT_NEAR(report["nll"].get<double>(), all, 1e-9);
  const json& range = report["by_range"][0];
  EXPECT_NEAR(range["nll"].get<double>(), first, 1e-9);
  EXPECT_EQ(range["tokens"], 6 * 99);
  EXPECT_LT(range["perplexity_low"], range["perplexity"]);
  EXPECT_GT(range["perplexity_high"], range["perplexity"]);
  // A window is what it is alone.
  const json alone = printed({"eval", "perplexity", model.path(), "--file", text, "--length", "200",
                              "--ranges", "100,150", "--threads", "2"});
  bool found = false;
  for (const json& window : report["windows"]) {
    if (!window["document"].get<std::string>().ends_with("story.txt") || window["from"] != 0)
      continue;
    found = true;
    EXPECT_NEAR(window["nll"].get<double>(), alone["nll"].get<double>(), 1e-9);
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(alone["nll_error"].is_null());

  // Taken up again, from a torn file, and with more windows.
  const std::string kept = read_file(path("results"));
  write_file(path("results"), kept.substr(0, kept.size() / 2));
  const json again = printed(words + Words{"--results", path("results")});
  EXPECT_EQ(again["windows"], report["windows"]);
  EXPECT_EQ(lines(read_file(path("results"))), 7u);
  EXPECT_GT(
      printed(words + Words{"--results", path("results"), "--windows", "all"})["windows"].size(),
      6u);
  EXPECT_TRUE(program_run(words + Words{"--results", path("results"), "--length", "201"})
                  .failed_in_one_line(2));

  const Finished table = program_run(words);
  EXPECT_NE(table.out.find(" 95 % |"), std::string::npos) << table.out;
  EXPECT_NE(table.err.find("6 windows of 200 tokens"), std::string::npos) << table.err;
  for (const Words& more : {Words{"--windows", "0"}, {"--stride", "0"}, {"--file", path("none")}}) {
    EXPECT_TRUE(program_run(words + more).failed_in_one_line(2)) << more[0];
  }
}

TEST_F(EvalCommand, EverydayIsTheDistanceFromTheDenseBase) {
  const std::string prompts =
      file("prompts.txt", "How are you?\n\nWhat is the time in the morning?\r\nTell me a story.\n");
  const Words words = {
      "eval", "everyday",  model.path(), "--prompts",   prompts, "-n",
      "40",   "--threads", "1",          "--precision", "f32"};  // a step and a prompt round alike
  const json dense = printed(words + Words{"--method", "dense"});
  EXPECT_NEAR(dense["kl"].get<double>(), 0, 1e-6);
  EXPECT_EQ(dense["prompts"], 3);
  EXPECT_EQ(dense["agreement"], 1);
  EXPECT_NEAR(dense["perplexity"].get<double>(), dense["base_perplexity"].get<double>(), 1e-6);
  const Words narrow = words + Words{"--method", "window", "--window", "4", "--sink", "0"};
  const json window = printed(narrow + Words{"--results", path("results")});
  EXPECT_GT(window["kl"].get<double>(), 0.01);
  EXPECT_EQ(window["base_perplexity"], dense["base_perplexity"]);
  EXPECT_GT(window["perplexity"], window["base_perplexity"]);
  EXPECT_LT(window["kl_interval"][0], window["kl"]);
  double sum = 0, tokens = 0;
  for (const json& row : window["rows"]) {
    sum += row["kl"].get<double>() * row["tokens"].get<double>();
    tokens += row["tokens"].get<double>();
  }
  EXPECT_NEAR(sum / tokens, window["kl"].get<double>(), 1e-9);
  EXPECT_EQ(window["tokens"].get<double>(), tokens);

  const std::string kept = read_file(path("results"));
  EXPECT_EQ(lines(kept), 4u);
  write_file(path("results"), kept.substr(0, kept.size() - 30));
  const json again = printed(narrow + Words{"--results", path("results")});
  EXPECT_NEAR(again["kl"].get<double>(), window["kl"].get<double>(), 1e-12);
  EXPECT_EQ(lines(read_file(path("results"))), 4u);

  for (const Words& more : {Words{"--prompts", path("none")},
                            {"--prompts", file("blank.txt", "\n \n")},
                            {"-n", "0"},
                            {"--results", prompts}}) {
    EXPECT_TRUE(program_run(words + more).failed_in_one_line(2)) << more[0] << more[1];
  }
  const Finished table = program_run(narrow);
  EXPECT_NE(table.out.find("KL from the base"), std::string::npos) << table.out;
}

TEST_F(EvalCommand, EverydayMeasuresAnAdapter) {
  std::filesystem::create_directory(model / "adapter");
  write_file(model / "adapter/adapter_config.json",
             R"({"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["q_proj"]})");
  FileBuilder weights;
  const std::string at = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  weights.add(at + "A.weight", "F32", {2, TinyModel::kHidden},
              TinyModel::noise(2 * TinyModel::kHidden, 71, 0.5));
  weights.add(at + "B.weight", "F32", {32, 2}, TinyModel::noise(64, 72, 0.5));
  write_file(model / "adapter/adapter_model.safetensors", weights.bytes());
  const std::string prompts = file("prompts.txt", "How are you?\nWho is it?\n");
  const json report = printed({"eval", "everyday", model.path(), "--prompts", prompts, "-n", "16",
                               "--adapter", path("adapter"), "--method", "dense"});
  EXPECT_GT(report["kl"].get<double>(), 1e-4);
}

TEST(EvalSmolLm2, TheDenseBaseFindsANeedle) {
  if (kSanitized) GTEST_SKIP() << "minutes under a sanitizer; its parts run in other tests";
  const auto model = smollm2_path();
  if (!model) GTEST_SKIP() << kNoTestData;
  const Finished finished =
      program_run({"eval", "needle", model->string(), "--method", "dense", "--adapter", "none",
                   "--lengths", "400", "--depths", "0.3", "--samples", "2", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json report = json::parse(finished.out);
  ASSERT_EQ(report["rows"].size(), 1u);
  EXPECT_EQ(report["rows"][0]["hits"], 2);
}

}  // namespace
}  // namespace lca::test
