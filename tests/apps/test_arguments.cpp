// Parsing of arguments, and formatting of output.

#include "arguments.h"
#include "plot.h"
#include "terminal.h"

#include <lca/error.h>

#include <gtest/gtest.h>

namespace lca::cli {
namespace {

TEST(Arguments, LengthsTakeSuffixesOf1024) {
  EXPECT_EQ(count_parse("--n", "1", 1), 1);
  EXPECT_EQ(count_parse("--n", "128K", 1), 131072);
  EXPECT_EQ(count_parse("--n", "128k", 1), 131072);
  EXPECT_EQ(count_parse("--n", "1M", 1), 1048576);
  EXPECT_EQ(count_parse("--n", "2G", 1), 2147483648);
  EXPECT_EQ(counts_parse("--n", "1,2K,3", 1, 4096), (std::vector<std::int64_t>{1, 2048, 3}));
  EXPECT_THROW(count_parse("--n", "5K", 1, 4096), Error);
  EXPECT_THROW(count_parse("--n", "9223372036854775807G", 1), Error);
}

TEST(Arguments, SizesTakeBinaryAndDecimalUnits) {
  EXPECT_EQ(size_parse("--n", "24GiB"), 24LL << 30);
  EXPECT_EQ(size_parse("--n", "24G"), 24LL << 30);
  EXPECT_EQ(size_parse("--n", "24gb"), 24000000000);
  EXPECT_EQ(size_parse("--n", "1.5MiB"), 1572864);
  EXPECT_EQ(size_parse("--n", "512"), 512);
  EXPECT_EQ(size_parse("--n", "7B"), 7);
}

TEST(Arguments, NumbersAreWrittenWithThreeDigits) {
  EXPECT_EQ(number_text(0.26512), "0.265");
  EXPECT_EQ(number_text(9.999), "10.0");
  EXPECT_EQ(number_text(99.96), "100");
  EXPECT_EQ(number_text(12345.6), "12346");
  EXPECT_EQ(seconds_text(0.00085), "850 µs");
  EXPECT_EQ(seconds_text(0.0125), "12.5 ms");
  EXPECT_EQ(seconds_text(3.21), "3.21 s");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(24.0 * (1LL << 30)), "24.0 GiB");
  EXPECT_EQ(bytes_text(0.265 * (1LL << 30), 3.8 * (1LL << 30)), "0.265 GiB");
  EXPECT_EQ(length_text(16384), "16K");
  EXPECT_EQ(length_text(1000), "1000");
  EXPECT_EQ(length_text(1048576), "1M");
}

TEST(Arguments, TablesLineUpWhateverTheAlphabet) {
  Table table({"a", "µs"});
  table.add({"long name", "1×"});
  EXPECT_EQ(table.text(),
            "| a         |  µs |\n"
            "| --------- | --: |\n"
            "| long name |  1× |\n");
}

TEST(Arguments, BarsAreToScale) {
  const Panel panel{"Title", {1}, {2}, [](double value) { return number_text(value); }, 10};
  const std::string text = plot_bars({1024}, panel, false);
  const auto blocks = [&](std::size_t first, std::size_t last) {
    std::size_t found = 0;
    for (std::size_t at = text.find("█", first); at < last; at = text.find("█", at + 1)) ++found;
    return found;
  };
  const std::size_t second = text.find("lca");
  EXPECT_EQ(blocks(0, second), 48u);
  EXPECT_EQ(blocks(second, text.size()), 24u);
}

TEST(Arguments, APlotEscapesItsTexts) {
  const Panel panel{
      "a < b & c", {1, 2}, {2, 4}, [](double value) { return number_text(value); }, 10};
  const std::string svg = plot_svg("<title>", "note", {1024, 2048}, {panel});
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("&lt;title&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("a < b"), std::string::npos);
}

}  // namespace
}  // namespace lca::cli
