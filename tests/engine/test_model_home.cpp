#include "engine/model_home.h"
#include "formats/byte_files.h"
#include "support/variable.h"

namespace lca {
namespace {

using test::expect_error;
using test::ScratchFolder;
using test::Variable;
using test::write_file;

TEST(ModelHome, FollowsTheEnvironment) {
  const Variable user("HOME", "/u");
  {
    const Variable cache("XDG_CACHE_HOME", "/c");
    {
      const Variable home("LCA_HOME", "/h");
      EXPECT_EQ(model_home(), "/h");
    }
    const Variable home("LCA_HOME", "");
    EXPECT_EQ(model_home(), "/c/lca");
  }
  const Variable home("LCA_HOME", nullptr);
  const Variable cache("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(model_home(), "/u/.cache/lca");
}

TEST(ModelHome, IsAnErrorWhereNoFolderIsKnown) {
  const Variable user("HOME", nullptr);
  const Variable cache("XDG_CACHE_HOME", nullptr);
  const Variable home("LCA_HOME", nullptr);
  expect_error([] { model_home(); }, {"set LCA_HOME"});
}

TEST(ModelHome, TheBuiltInNameIsTheFileThatWasFetched) {
  const ScratchFolder folder;
  const Variable home("LCA_HOME", folder.path().c_str());
  const auto file = folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
  expect_error([] { model_resolve("smollm2"); },
               {"smollm2 is not downloaded yet", file.string(), "`make model`"},
               ErrorKind::not_found);
  write_file(file, "x");
  EXPECT_EQ(model_resolve("smollm2"), file);
}

TEST(ModelHome, EverythingElseIsAPath) {
  const ScratchFolder folder;
  write_file(folder / "m.gguf", "x");
  EXPECT_EQ(model_resolve((folder / "m.gguf").string()), folder / "m.gguf");
  EXPECT_EQ(model_resolve(folder.path().string()), folder.path());
  expect_error([&] { model_resolve((folder / "n.gguf").string()); },
               {(folder / "n.gguf").string(), "no such file or folder", "smollm2"},
               ErrorKind::not_found);
  expect_error([] { model_resolve(""); }, {"empty", "smollm2"});
}

TEST(ModelAdapter, BelongsToTheBuiltInNameWhereItIsThere) {
  const ScratchFolder folder;
  const Variable models("LCA_MODELS", folder.path().c_str());
  EXPECT_EQ(model_adapter("smollm2"), "");
  std::filesystem::create_directory(folder / "smollm2-lca");
  EXPECT_EQ(model_adapter("smollm2"), "") << "an empty folder is no adapter";
  write_file(folder / "smollm2-lca/adapter_config.json", "{}");
  EXPECT_EQ(model_adapter("smollm2"), std::filesystem::canonical(folder / "smollm2-lca"));
  EXPECT_EQ(model_adapter("smollm2-lca"), "");
  EXPECT_EQ(model_adapter((folder / "smollm2").string()), "");
  EXPECT_EQ(model_adapter(""), "");
  const Variable elsewhere("LCA_MODELS", "/nowhere");
  EXPECT_EQ(model_adapter("smollm2"), "");
}

}  // namespace
}  // namespace lca
