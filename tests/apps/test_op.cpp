// `lca op attention`, end to end: files in, files out.

#include "apps/program.h"
#include "formats/byte_files.h"
#include "formats/op_file.h"
#include "formats/safetensors.h"
#include "support/compare.h"
#include "support/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace lca::test {
namespace {

namespace fs = std::filesystem;

Finished op(const fs::path& in, const fs::path& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"op", "attention", in.string(), out.string()};
  words.insert(words.end(), more.begin(), more.end());
  return program_run(words);
}

std::vector<double> values(const TensorInfo& tensor) {
  std::vector<double> list;
  const std::size_t width = tensor_type_bytes(tensor.dtype);
  for (std::size_t at = 0; at < tensor.bytes.size(); at += width) {
    if (tensor.dtype == TensorType::f64) {
      list.emplace_back();
      std::memcpy(&list.back(), tensor.bytes.data() + at, width);
    } else {
      float value = 0;
      std::memcpy(&value, tensor.bytes.data() + at, width);
      list.push_back(value);
    }
  }
  return list;
}

/// Every tensor of `expected` must be in `actual`, as float32 of the same shape, and close.
void expect_close(const fs::path& expected, const fs::path& actual, double tolerance) {
  const Safetensors truth = Safetensors::open(expected);
  const Safetensors file = Safetensors::open(actual);
  EXPECT_EQ(file.tensors().size(), truth.tensors().size());
  for (const TensorInfo& tensor : truth.tensors()) {
    const TensorInfo* mine = file.find(tensor.name);
    ASSERT_NE(mine, nullptr) << tensor.name;
    EXPECT_EQ(mine->dtype, TensorType::f32) << tensor.name;
    EXPECT_EQ(mine->shape, tensor.shape) << tensor.name;
    const double floor = tensor.name == "rep_bias" ? kErrorFloorBias : kErrorFloor;
    EXPECT_LE(error_of(values(tensor), values(*mine), floor), tolerance) << tensor.name;
  }
}

std::vector<double> normal_values(std::int64_t count, Random& random) {
  std::vector<double> list;
  for (std::int64_t i = 0; i < count; ++i) list.push_back(random.normal());
  return list;
}

/// A GQA file of random numbers: H 4, KV 2, d 6, d_v 5.
FileBuilder random_gqa(std::int64_t batch, std::int64_t length, const std::string& settings) {
  Random random(static_cast<std::uint64_t>(length));
  FileBuilder file;
  file.add("q", "F32", {batch, length, 4, 6}, normal_values(batch * length * 24, random))
      .add("k", "F32", {batch, length, 2, 6}, normal_values(batch * length * 12, random))
      .add("v", "F32", {batch, length, 2, 5}, normal_values(batch * length * 10, random));
  if (!settings.empty()) file.settings(settings);
  return file;
}

TEST(OpCommand, BothBackendsReproduceTheGoldenFiles) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(LCA_SOURCE_DIR) / "tests/golden/op")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name.ends_with(".expected.safetensors")) continue;
    files.push_back(entry.path());
  }
  ASSERT_GE(files.size(), 40u);
  std::sort(files.begin(), files.end());
  // A scaled run starts the program for some of them; tests/attention computes all without it.
  const std::size_t step = scaled_step(23);
  const ScratchFolder folder;
  for (std::size_t i = 0; i < files.size(); i += step) {
    const std::string name = files[i].filename().string();
    fs::path expected = files[i];
    expected.replace_extension(".expected.safetensors");
    // The accuracy of bfloat16 storage is tested in tests/attention; this tests the program around
    // it.
    const bool is_bf16 = name.find("bf16") != std::string::npos;
    for (const char* backend : {"reference", "cpu"}) {
      SCOPED_TRACE(name + " " + backend);
      const fs::path out = folder / "out.safetensors";
      const Finished finished = op(files[i], out, {"--backend", backend, "--threads", "2"});
      ASSERT_EQ(finished.code, 0) << finished.err;
      EXPECT_TRUE(finished.out.empty() && finished.err.empty());
      const bool exact = backend[0] == 'r';
      expect_close(expected, out, exact ? 1e-6 : is_bf16 ? kToleranceBf16 : kToleranceF32);
    }
  }
}

TEST(OpCommand, FlagsOverrideWhatTheFileSays) {
  const ScratchFolder folder;
  write_file(folder / "four",
             random_gqa(2, 40, R"({"group":4,"window":6,"sink":1,"mass":"score"})").bytes());
  write_file(
      folder / "eight",
      random_gqa(2, 40,
                 R"({"group":8,"window":6,"sink":1,"mass":"count","scale":0.5,"prefill":[20,10]})")
          .bytes());
  ASSERT_EQ(op(folder / "eight", folder / "expected").code, 0);
  const Finished finished =
      op(folder / "four", folder / "actual",
         {"--group", "8", "--mass", "count", "--scale", "0.5", "--prefill", "20,10"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(read_file(folder / "actual"), read_file(folder / "expected"));
}

TEST(OpCommand, APresetReplacesTheFilesSettingsAndFlagsOverrideThePreset) {
  const ScratchFolder folder;
  write_file(folder / "file",
             random_gqa(1, 40, R"({"method":"dense","group":3,"mass":"count"})").bytes());
  write_file(folder / "plain", random_gqa(1, 40, "").bytes());
  ASSERT_EQ(op(folder / "plain", folder / "expected",
               {"--window", "5", "--sink", "16", "--semantic-pool", "select"})
                .code,
            0);
  ASSERT_EQ(op(folder / "file", folder / "actual",
               {"--window", "5", "--preset", "training-free", "--positions", "token"})
                .code,
            0);
  EXPECT_EQ(read_file(folder / "actual"), read_file(folder / "expected"));
}

TEST(OpCommand, TheResultDoesNotDependOnTheNumberOfThreads) {
  const ScratchFolder folder;
  write_file(folder / "in",
             random_gqa(3, 70, R"({"group":4,"window":6,"prefill":[30,31]})").bytes());
  ASSERT_EQ(op(folder / "in", folder / "one", {"--threads", "1"}).code, 0);
  ASSERT_EQ(op(folder / "in", folder / "many", {"--threads", "5"}).code, 0);
  EXPECT_EQ(read_file(folder / "one"), read_file(folder / "many"));
}

TEST(OpCommand, InAndOutMayBeTheSameFile) {
  const ScratchFolder folder;
  write_file(folder / "file", random_gqa(1, 30, R"({"group":4,"window":6})").bytes());
  ASSERT_EQ(op(folder / "file", folder / "expected").code, 0);
  ASSERT_EQ(op(folder / "file", folder / "file").code, 0);
  EXPECT_EQ(read_file(folder / "file"), read_file(folder / "expected"));
}

TEST(OpCommand, BadInputLeavesNoOutput) {
  const ScratchFolder folder;
  const std::string good = mla_file().bytes();
  write_file(folder / "empty", "");
  write_file(folder / "truncated", good.substr(0, good.size() - 1));
  write_file(folder / "long-header", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}");
  write_file(folder / "missing", mla_file().remove("c").bytes());
  write_file(folder / "unknown", mla_file().add("extra", "F32", {1}).bytes());
  write_file(folder / "mixed", mla_file().add("q", "F32", {2, 5, 2, 3}).bytes());
  write_file(folder / "json", mla_file().settings("{").bytes());
  write_file(folder / "field", mla_file().settings(R"({"groups":4})").bytes());
  write_file(folder / "zero", mla_file().settings(R"({"group":0})").bytes());
  write_file(folder / "null", mla_file().settings(R"({"scale":null})").bytes());
  const std::size_t before = folder.count();
  for (const char* name : {"empty", "truncated", "long-header", "missing", "unknown", "mixed",
                           "json", "field", "zero", "null", "absent", "."}) {
    const Finished finished = op(folder / name, folder / "out");
    EXPECT_TRUE(finished.failed_in_one_line(2)) << name << ": " << finished.code << finished.err;
    EXPECT_EQ(folder.count(), before) << name;
  }
}

TEST(OpCommand, AnOutputThatCannotBeWrittenIsFoundBeforeTheWork) {
  const ScratchFolder folder;
  write_file(folder / "in", mla_file().bytes());
  for (const fs::path& out : {folder / "nowhere/out", folder.path(), fs::path("/dev/null")}) {
    const Finished finished = op(folder / "in", out);
    EXPECT_TRUE(finished.failed_in_one_line(2)) << out << finished.code << finished.err;
  }
  EXPECT_EQ(folder.count(), 1u);
}

TEST(OpCommand, SettingsThatExcludeEachOtherAreRefused) {
  const ScratchFolder folder;
  write_file(folder / "packed", gqa_file(1).add("cu_seqlens", "I32", {3}, {0, 2, 5}).bytes());
  EXPECT_EQ(op(folder / "packed", folder / "out").code, 0);
  EXPECT_TRUE(op(folder / "packed", folder / "no", {"--summary", "prompt"}).failed_in_one_line(2));
  EXPECT_TRUE(op(folder / "packed", folder / "no", {"--prefill", "5"}).failed_in_one_line(2));
  write_file(folder / "plain", gqa_file(1).bytes());
  EXPECT_TRUE(op(folder / "plain", folder / "no", {"--prefill", "3,3"}).failed_in_one_line(2));
  EXPECT_EQ(folder.count(), 3u);
}

TEST(OpCommand, CtrlCLeavesNothingBehind) {
  const ScratchFolder folder;
  // Enough pairs to keep the plain loops busy for many seconds.
  write_file(folder / "in", random_gqa(1, 30000, R"({"method":"dense"})").bytes());
  Program program({"op", "attention", (folder / "in").string(), (folder / "out").string(),
                   "--backend", "reference"});
  ASSERT_TRUE(program.wait_for_handler());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.interrupt();
  EXPECT_EQ(program.finish().code, 130);
  EXPECT_EQ(folder.count(), 1u);
}

}  // namespace
}  // namespace lca::test
