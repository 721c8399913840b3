#include "engine/model_home.h"

#include "core/error.h"
#include "core/text.h"

#include <cstdlib>

namespace lca {
namespace {

constexpr std::string_view kBuiltIn = "smollm2";
constexpr std::string_view kBuiltInFile = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr std::string_view kBuiltInAdapter = "smollm2-lca";

/// A variable that is set to the empty string counts as not set.
std::filesystem::path variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::filesystem::path() : std::filesystem::path(value);
}

/// The folder of the adapters that come with the program.
std::filesystem::path adapters_home() {
  if (std::filesystem::path home = variable("LCA_MODELS"); !home.empty()) return home;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  return program.parent_path().parent_path() / "share" / "lca" / "models";
}

}  // namespace

std::filesystem::path model_home() {
  if (std::filesystem::path home = variable("LCA_HOME"); !home.empty()) return home;
  // The XDG specification says to ignore relative paths.
  if (const std::filesystem::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) {
    return cache / "lca";
  }
  if (const std::filesystem::path user = variable("HOME"); !user.empty()) {
    return user / ".cache" / "lca";
  }
  fail_input("no folder for models: neither LCA_HOME nor HOME is set; set LCA_HOME to a folder");
}

std::filesystem::path model_resolve(std::string_view name) {
  if (name.empty()) fail_input("the model's name is empty; give a path, or {}", kBuiltIn);
  std::error_code ignored;
  if (name == kBuiltIn) {
    std::filesystem::path file = model_home() / kBuiltInFile;
    if (!std::filesystem::is_regular_file(file, ignored)) {
      fail_not_found("{} is not downloaded yet (looked for {}); run `make model` once to fetch it",
                     kBuiltIn, path_printable(file.string()));
    }
    return file;
  }
  std::filesystem::path path(name);
  if (!std::filesystem::exists(path, ignored)) {
    fail_not_found(
        "{}: no such file or folder; a model is a .gguf file, a folder, or the built-in name {}",
        path_printable(name), kBuiltIn);
  }
  return path;
}

std::filesystem::path model_adapter(std::string_view name) {
  if (name != kBuiltIn) return {};
  std::error_code error;
  std::filesystem::path folder =
      std::filesystem::canonical(adapters_home() / kBuiltInAdapter, error);
  if (error || !std::filesystem::exists(folder / "adapter_config.json", error)) return {};
  return folder;
}

}  // namespace lca
