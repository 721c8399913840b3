// `lca bench attention` and `lca demo attention`: what they report, on contexts short enough for a
// test.

#include "apps/program.h"
#include "formats/byte_files.h"
#include "support/sanitized.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <string>

namespace lca::test {
namespace {

using nlohmann::json;

json bench(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"bench",  "attention", "--shape", "smollm2",
                                    "--json", "--threads", "2"};
  words.insert(words.end(), more.begin(), more.end());
  const Finished finished = program_run(words);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(finished.err.empty()) << finished.err;
  return json::parse(finished.out);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(BenchCommand, ReportsEveryFieldOfEveryRow) {
  const json report =
      bench({"--backend", "cpu", "--lengths", "48,128", "--window", "32", "--group", "8"});
  EXPECT_EQ(report["threads"], 2);
  EXPECT_EQ(report["shape"], "smollm2");
  EXPECT_EQ(report["dtype"], "f32");
  EXPECT_EQ(report["settings"]["window"], 32);
  EXPECT_FALSE(report["machine"].get<std::string>().empty());
  EXPECT_EQ(report["date"].get<std::string>().size(), std::string("2025-01-31T12:00:00Z").size());
  ASSERT_EQ(report["rows"].size(), 2u);
  const std::vector<std::int64_t> lengths = {48, 128};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const json& row = report["rows"][i];
    EXPECT_EQ(row["length"], lengths[i]);
    for (const char* field :
         {"lca_ms", "dense_ms", "lca_gflops", "dense_gflops", "gemm_gflops", "decode_lca_us",
          "decode_dense_us", "condense_ms", "cache_bytes_lca", "cache_bytes_dense", "peak_bytes"}) {
      ASSERT_TRUE(row.contains(field) && row[field].is_number()) << field;
      EXPECT_GT(row[field].get<double>(), 0) << field;
    }
    // 3 KV heads × (64 + 64) values × 4 bytes; m = ⌊(n − 32) / 8⌋ groups of 8.
    const std::int64_t groups = (lengths[i] - 32) / 8;
    EXPECT_EQ(row["cache_bytes_dense"], lengths[i] * 1536);
    EXPECT_EQ(row["cache_bytes_lca"], (lengths[i] - 7 * groups) * 1536);
    EXPECT_EQ(row["gemm_gflops"], report["rows"][0]["gemm_gflops"]);
  }
}

TEST(BenchCommand, MeasuresOnlyTheMethodsAskedFor) {
  const json report = bench({"--lengths", "64", "--methods", "dense,window", "--dtype", "bf16"});
  const json& row = report["rows"][0];
  EXPECT_TRUE(row["lca_ms"].is_null());
  EXPECT_TRUE(row["condense_ms"].is_null());
  EXPECT_GT(row["dense_ms"].get<double>(), 0);
  EXPECT_GT(row["window_ms"].get<double>(), 0);
  EXPECT_EQ(row["cache_bytes_dense"], 64 * 384 * 2);
}

TEST(BenchCommand, PrintsTablesThatLineUp) {
  const std::string shape =
      kSanitized ? "smollm2" : "minicpm3";  // the second is ten times the work
  const Finished finished =
      program_run({"bench", "attention", "--shape", shape, "--lengths", "16,1K"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  std::set<std::size_t> widths;
  for (std::size_t at = 0, end; (end = finished.out.find('\n', at)) != std::string::npos;
       at = end + 1) {
    const std::string line = finished.out.substr(at, end - at);
    if (!line.starts_with("|")) continue;
    widths.insert(static_cast<std::size_t>(std::ranges::count_if(
        line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; })));
  }
  EXPECT_EQ(widths.size(), 2u) << finished.out;  // two tables, each of one width
  EXPECT_EQ(count(finished.out, "\n| 1K "), 2u) << finished.out;
  EXPECT_EQ(finished.out.find('\x1b'), std::string::npos);
}

TEST(DemoAttentionCommand, DrawsATableBarsAndAPlot) {
  const ScratchFolder folder;
  const std::string longest = kSanitized ? "1K" : "2K";
  const Finished finished = program_run({"demo", "attention", "--max-length", longest, "--window",
                                         "256", "--out", (folder / "plot.svg").string()});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(finished.err.empty()) << finished.err;
  for (const char* part : {"| tokens ", "\n| 1K ", "deviation", "synthetic", "█", "plot.svg"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " is not in\n" << finished.out;
  }
  EXPECT_NE(finished.out.find("\n| " + longest), std::string::npos) << finished.out;
  EXPECT_EQ(finished.out.find('\x1b'), std::string::npos) << "colours where there is no terminal";
  const std::string svg = read_file(folder / "plot.svg");
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<polyline"), 4u);
  EXPECT_EQ(count(svg, "<circle"), kSanitized ? 4u : 8u);
  EXPECT_EQ(count(svg, "nan"), 0u);
  EXPECT_EQ(folder.count(), 1u);
}

TEST(DemoAttentionCommand, CtrlCLeavesNoPlot) {
  const ScratchFolder folder;
  Program program({"demo", "attention", "--threads", "1", "--out", (folder / "plot.svg").string()});
  ASSERT_TRUE(program.wait_for_handler());
  program.interrupt();
  EXPECT_EQ(program.finish().code, 130);
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace lca::test
