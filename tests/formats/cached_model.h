#pragma once
/// Models that are on this machine or are not: tests of them skip where they are absent.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

namespace lca::test {

/// The file in $LCA_HOME, $XDG_CACHE_HOME/lca or ~/.cache/lca, wherever it is first.
inline std::optional<std::filesystem::path> cached_model(std::string_view name) {
  const auto variable = [](const char* which) -> std::filesystem::path {
    const char* value = std::getenv(which);
    return value == nullptr ? "" : value;
  };
  for (const std::filesystem::path& folder :
       {variable("LCA_HOME"), variable("XDG_CACHE_HOME") / "lca",
        variable("HOME") / ".cache" / "lca"}) {
    std::error_code ignored;
    if (folder.is_absolute() && std::filesystem::exists(folder / name, ignored)) {
      return folder / name;
    }
  }
  return std::nullopt;
}

}  // namespace lca::test
