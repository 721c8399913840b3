#pragma once
/// Large files that may be absent: tests that need them are skipped then.

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "engine/model_home.h"

#include <lca/error.h>

namespace lca::test {

constexpr const char* kNoTestData = "the file is not there; scripts/test_data.py gets it";

/// A file of the test data: in $LCA_TEST_DATA, else build/test-data.
inline std::optional<std::filesystem::path> test_data(const std::filesystem::path& name) {
  const char* set = std::getenv("LCA_TEST_DATA");
  const std::filesystem::path folder =
      set != nullptr ? set : std::filesystem::path(LCA_SOURCE_DIR) / "build" / "test-data";
  if (std::filesystem::exists(folder / name)) return folder / name;
  return std::nullopt;
}

/// SmolLM2's file, in the test data or where `make model` puts it.
inline std::optional<std::filesystem::path> smollm2_path() {
  const std::filesystem::path name = "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (const auto path = test_data(name)) return path;
  try {
    if (std::filesystem::exists(model_home() / name)) return model_home() / name;
  } catch (const Error&) {
    // Without a home folder there is no model.
  }
  return std::nullopt;
}

}  // namespace lca::test
