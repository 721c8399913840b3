// `lca bench model`: what it reports of a model small enough for a test.

#include "apps/program.h"
#include "apps/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class BenchModel : public testing::Test {
 protected:
  TinyModel model;

  BenchModel() { model.write(); }

  Finished bench(const Words& more) const {
    Words all = {"bench", "model", model.path()};
    all.insert(all.end(), more.begin(), more.end());
    return program_run(all);
  }

  json report(const Words& more) const {
    const Finished finished = bench(more);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_TRUE(finished.err.empty()) << finished.err;
    return json::parse(finished.out);
  }
};

TEST_F(BenchModel, ReportsEveryFieldOfEveryRow) {
  const json got =
      report({"--prompt", "100,64,64", "--depths", "0,100,32", "--batch", "3,1", "--generate", "4",
              "--window", "16", "--group", "4", "--sink", "0", "--threads", "2", "--json"});
  ASSERT_EQ(got["prefill"].size(), 2u);
  EXPECT_EQ(got["prefill"][0]["tokens"], 64);
  EXPECT_EQ(got["prefill"][1]["tokens"], 100);
  ASSERT_EQ(got["decode"].size(), 6u);
  EXPECT_EQ(got["decode"][0]["depth"], 0);
  EXPECT_EQ(got["decode"][0]["batch"], 1);
  EXPECT_EQ(got["decode"][1]["batch"], 3);
  EXPECT_EQ(got["decode"][5]["depth"], 100);
  for (const char* kind : {"prefill", "decode"}) {
    for (const json& row : got[kind]) {
      for (const char* field :
           {"tokens_per_s", "tokens_per_s_mean", "seconds", "cache_bytes", "peak_bytes"}) {
        EXPECT_GT(row[field].get<double>(), 0) << kind << " " << field;
      }
      EXPECT_GE(row["tokens_per_s"].get<double>(), row["tokens_per_s_mean"].get<double>() * 0.999);
    }
  }
  EXPECT_EQ(got["method"], "lca");
  EXPECT_EQ(got["threads"], 2);
  EXPECT_EQ(got["settings"]["window"], 16);
  EXPECT_EQ(got["generate"], 4);
  EXPECT_EQ(got["repeat"], 2);
  EXPECT_GT(got["load_s"].get<double>(), 0);
  EXPECT_GE(got["peak_bytes"], got["decode"][0]["peak_bytes"]);
  for (const char* field : {"model", "machine", "date", "precision"}) {
    EXPECT_FALSE(got[field].get<std::string>().empty()) << field;
  }
}

TEST_F(BenchModel, ASessionHoldsWhatItsMethodKeeps) {
  const Words small = {"--prompt", "128", "--depths", "128",     "--batch", "1,2",
                       "--sink",   "0",   "--window", "16",      "--group", "4",
                       "--repeat", "1",   "--json",   "--method"};
  const auto cache = [&](const std::string& method, const char* kind, std::size_t row) {
    Words words = small;
    words.push_back(method);
    return report(words)[kind][row]["cache_bytes"].get<double>();
  };
  EXPECT_LT(cache("lca", "prefill", 0) * 2, cache("dense", "prefill", 0));
  EXPECT_LT(cache("window", "prefill", 0), cache("lca", "prefill", 0));
  EXPECT_GT(cache("dense", "decode", 1), cache("dense", "decode", 0) * 1.5);
}

TEST_F(BenchModel, EitherPartCanBeLeftOut) {
  const Words little = {"--generate", "2", "--repeat", "1", "--json"};
  Words words = little;
  words.insert(words.end(), {"--prompt", "none", "--depths", "0"});
  json got = report(words);
  EXPECT_EQ(got["prefill"].size(), 0u);
  EXPECT_EQ(got["decode"].size(), 1u);
  words = little;
  words.insert(words.end(), {"--prompt", "1", "--depths", "none"});
  got = report(words);
  EXPECT_EQ(got["prefill"].size(), 1u);
  EXPECT_EQ(got["decode"].size(), 0u);
}

TEST_F(BenchModel, PrintsTables) {
  const Finished finished =
      bench({"--prompt", "64", "--depths", "0,64", "--generate", "2", "--method", "dense"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  for (const char* part : {"| prompt ", "| depth ", "\n| 64 ", "\n| 0 ", "tokens/s", "dense"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " is not in\n" << finished.out;
  }
}

TEST_F(BenchModel, ErrorsAreOneLine) {
  for (const Words& more : {Words{"--prompt", "0"},
                            {"--prompt", ""},
                            {"--prompt", "-"},
                            {"--prompt", "64,"},
                            {"--prompt", "none,64"},
                            {"--prompt", "none", "--depths", "none"},
                            {"--prompt", "1T"},
                            {"--depths", "-1"},
                            {"--depths", ""},
                            {"--batch", "0"},
                            {"--batch", "none"},
                            {"--batch", "100000"},
                            {"--generate", "0"},
                            {"--generate", "-"},
                            {"--repeat", "0"},
                            {"--method", "sparse"},
                            {"--lengths", "64"}}) {
    EXPECT_TRUE(bench(more).failed_in_one_line(2)) << more[0] << " " << more[1];
  }
}

}  // namespace
}  // namespace lca::test
