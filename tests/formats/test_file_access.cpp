// Weight files that are read instead of mapped: no signal handler, and no dependence on the file
// afterwards.

#include "byte_files.h"
#include "core/pages.h"
#include "formats/adapter.h"
#include "formats/checkpoint.h"

#include <csignal>
#include <cstdlib>

namespace lca {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::ScratchFolder;
using test::write_file;

fs::path golden_folder(const std::string& name) {
  return fs::path(LCA_SOURCE_DIR) / "tests" / "golden" / "models" / name;
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(FileAccess, AFileThatWasReadMayBeCutShort) {
  const ScratchFolder folder;
  write_file(folder / "in", std::string(100'000, 'x'));
  const MappedFile file(folder / "in", FileAccess::read);
  const std::vector<std::byte> before = copy_of(file.bytes());
  fs::resize_file(folder / "in", 10);
  EXPECT_TRUE(file.intact());
  EXPECT_NO_THROW(file.require_intact());
  EXPECT_EQ(copy_of(file.bytes()), before);
  write_file(folder / "in", std::string(100'000, 'y'));
  EXPECT_EQ(copy_of(file.bytes()), before);
}

TEST(FileAccess, ReadingTakesWhatMappingTakes) {
  const ScratchFolder folder;
  write_file(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty", FileAccess::read).bytes().empty());
  expect_error([&] { MappedFile file(folder / "absent", FileAccess::read); }, {"absent"},
               ErrorKind::not_found);
  expect_error([&] { MappedFile file(folder.path(), FileAccess::read); }, {"is a folder"});
  expect_error([&] { MappedFile file("/dev/zero", FileAccess::read); }, {"is a device"});
}

TEST(FileAccess, GivingPagesBackLeavesWhatWasRead) {
  const ScratchFolder folder;
  write_file(folder / "in", std::string(100'000, 'x'));
  const MappedFile file(folder / "in", FileAccess::read);
  const std::vector<std::byte> before = copy_of(file.bytes());
  pages_release(file.bytes().data(), file.bytes().size());
  EXPECT_EQ(copy_of(file.bytes()), before);
}

/// Every tensor of a checkpoint after its files were emptied.
std::vector<std::vector<std::byte>> tensors_after_loss(const std::string& golden,
                                                       const ScratchFolder& folder) {
  fs::copy(golden_folder(golden), folder.path(), fs::copy_options::recursive);
  const Checkpoint checkpoint = Checkpoint::open(folder.path(), FileAccess::read);
  std::vector<std::vector<std::byte>> before, after;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    before.push_back(copy_of({tensor.data, tensor.bytes()}));
  }
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const fs::path kind = entry.path().extension();
    if (kind == ".safetensors" || kind == ".gguf") fs::resize_file(entry.path(), 0);
  }
  EXPECT_NO_THROW(checkpoint.require_intact());
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    after.push_back(copy_of({tensor.data, tensor.bytes()}));
  }
  EXPECT_EQ(after, before) << golden;
  return after;
}

TEST(FileAccess, ACheckpointThatWasReadKeepsItsTensors) {
  for (const char* golden : {"llama", "gguf_llama_q4_1", "gguf_llama_split"}) {
    const ScratchFolder folder;
    EXPECT_FALSE(tensors_after_loss(golden, folder).empty());
  }
}

/// The present handler of SIGBUS; sanitizers have their own.
void (*bus_error_handler())(int) {
  struct sigaction action {};
  ::sigaction(SIGBUS, nullptr, &action);
  return action.sa_handler;
}

TEST(FileAccessDeathTest, ReadingInstallsNoSignalHandler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process, which has mapped nothing
  const auto open = [](FileAccess access) {
    const auto before = bus_error_handler();
    for (const char* golden : {"llama", "gguf_llama_q4_1"}) {
      Checkpoint::open(golden_folder(golden), access);
    }
    Adapter::open(golden_folder("adapter_llama"), 2, access);
    std::_Exit(bus_error_handler() == before ? 0 : 1);
  };
  EXPECT_EXIT(open(FileAccess::read), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(open(FileAccess::map), testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace lca
