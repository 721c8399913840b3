#pragma once
/// Files: read-only maps, and writes that appear only when complete.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace lca {

/// A whole file mapped read-only.
class MappedFile {
 public:
  /// Throws Error (bad input) naming the path where it is absent, a folder, or unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Writes pieces to a temporary file beside `path`, syncs and renames it: `path` appears complete
/// or not at all. Throws Error naming the path.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Syncs and renames; without it nothing is left behind.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace lca
