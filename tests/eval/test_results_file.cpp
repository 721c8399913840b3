// Results files: taken up again where they stopped, and refused where they belong to another run.

#include "eval/results_file.h"

#include "formats/byte_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lca::test {
namespace {

using eval::Json;
using eval::ResultsFile;

const Json kRun = {{"command", "needle"}, {"seed", 7}, {"settings", {{"group", 16}}}};

std::string with_rows(const std::filesystem::path& path, int count) {
  ResultsFile file(path, kRun);
  for (int i = 0; i < count; ++i) file.add({{"sample", i}});
  return read_file(path);
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

TEST(ResultsFile, IsTakenUpWhereItStopped) {
  const ScratchFolder folder;
  with_rows(folder / "r", 2);
  {
    ResultsFile file(folder / "r", kRun);
    ASSERT_EQ(file.rows().size(), 2u);
    EXPECT_EQ(file.rows()[1]["sample"], 1);
    file.add({{"sample", 2}});
  }
  EXPECT_EQ(ResultsFile(folder / "r", kRun).rows().size(), 3u);
}

TEST(ResultsFile, ALineThatWasTornAnywhereIsCutOff) {
  const ScratchFolder folder;
  const std::string whole = with_rows(folder / "r", 2);
  const std::size_t first = whole.find('\n') + 1;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "t", whole.substr(0, size));
    ResultsFile file(folder / "t", kRun);
    const std::size_t rows = size < first ? 0 : lines(whole.substr(first, size - first));
    EXPECT_EQ(file.rows().size(), rows) << size;
    file.add({{"sample", 9}});
    const std::string now = read_file(folder / "t");
    EXPECT_TRUE(now.starts_with(whole.substr(0, first)) && now.ends_with("{\"sample\":9}\n"))
        << now;
    EXPECT_EQ(now.find("}{"), std::string::npos) << now;
  }
}

TEST(ResultsFile, AnotherRunIsRefusedAndSaysWhatDiffers) {
  const ScratchFolder folder;
  const std::string before = with_rows(folder / "r", 1);
  Json other = kRun;
  other["seed"] = 8;
  expect_error([&] { ResultsFile(folder / "r", other); }, {"seed is 7 there and 8 here"},
               ErrorKind::incompatible);
  other = kRun;
  other["settings"]["group"] = 8;
  expect_error([&] { ResultsFile(folder / "r", other); },
               {"settings: group is 16 there and 8 here"}, ErrorKind::incompatible);
  other = kRun;
  other["samples"] = 3;
  expect_error([&] { ResultsFile(folder / "r", other); }, {"samples is not in it"},
               ErrorKind::incompatible);
  other = kRun;
  other.erase("seed");
  expect_error([&] { ResultsFile(folder / "r", other); }, {"seed is 7 there and not set here"},
               ErrorKind::incompatible);
  EXPECT_EQ(read_file(folder / "r"), before);
}

TEST(ResultsFile, AFileOfAnotherKindIsLeftAsItIs) {
  const ScratchFolder folder;
  for (const std::string text :
       {"a letter", "a letter\n", "{\"a\":1}\n", "[]\n", "\n", "\xff\xfe"}) {
    write_file(folder / "r", text);
    expect_error([&] { ResultsFile(folder / "r", kRun); }, {"something else than results"});
    EXPECT_EQ(read_file(folder / "r"), text);
  }
  const std::string whole = with_rows(folder / "s", 1);
  write_file(folder / "s", whole + "7\n{\"sample\":1}\n");
  expect_error([&] { ResultsFile(folder / "s", kRun); }, {"line 3 is damaged"});
  expect_error([&] { ResultsFile(folder.path(), kRun); }, {});
  expect_error([&] { ResultsFile(folder / "none" / "r", kRun); }, {}, ErrorKind::not_found);
}

TEST(ResultsFile, TwoRunsDoNotShareOne) {
  const ScratchFolder folder;
  const ResultsFile first(folder / "r", kRun);
  expect_error([&] { ResultsFile(folder / "r", kRun); }, {"another run"}, ErrorKind::busy);
}

}  // namespace
}  // namespace lca::test
