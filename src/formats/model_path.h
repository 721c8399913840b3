#pragma once
/// What a path that names a model or a tokenizer leads to.

#include "core/file.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lca {

/// The path as messages show it.
std::string path_shown(const std::filesystem::path& path);

bool path_exists(const std::filesystem::path& path);

/// Absolute and without ".."; throws Error (not found) where there is nothing.
std::filesystem::path path_require(const std::filesystem::path& path);

/// Whether a file begins as GGUF files do, or is named so. False where it is no plain file.
bool path_is_gguf(const std::filesystem::path& path);

/// The one GGUF model in a folder (its first part); nothing where there is none. Several throw
/// Error.
std::optional<std::filesystem::path> folder_find_gguf(const std::filesystem::path& folder);

/// What `work` makes of the text of a small file. It is read, not mapped: nothing that another
/// program does to it later matters.
template <typename Work>
auto text_read(const std::filesystem::path& path, const Work& work) {
  const MappedFile file(path, FileAccess::read);
  return work(
      std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()));
}

}  // namespace lca
