#pragma once
/// Reading operator files that exist only in memory.

#include "byte_files.h"
#include "formats/op_file.h"

#include <span>
#include <string>
#include <vector>

namespace lca::test {

inline OpInput op_parse(const FileBuilder& file, std::span<const SettingOverride> overrides = {}) {
  const std::string bytes = file.bytes();  // temporary: the result owns its data
  return OpInput::parse(bytes_of(bytes), "in.safetensors", overrides);
}

/// Expects an error that names the file and contains `parts`.
inline void expect_bad_op(const FileBuilder& file, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "in.safetensors: ");
  expect_error([&] { op_parse(file); }, parts);
}

}  // namespace lca::test
