#include "engine/model_home.h"
#include "formats/byte_files.h"

#include <cstdlib>
#include <optional>

namespace lca {
namespace {

using test::expect_error;
using test::ScratchFolder;
using test::write_file;

/// Sets or unsets a variable, and restores it afterwards.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

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

}  // namespace
}  // namespace lca
