#pragma once
/// Files: the bytes of a whole file, mapped or read, and writes that appear only when complete.

#include "core/mapped_guard.h"

#include <lca/error.h>
#include <lca/file_access.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

namespace lca {

/// A whole file, read-only: mapped, or read into memory (`FileAccess::read`). Another program may
/// cut a mapped one short meanwhile: what is missing then reads as zeros, and `require_intact` says
/// so. Deleting or replacing the file changes nothing.
class MappedFile {
 public:
  /// Throws Error naming the path: not found, or bad input for a folder or an unreadable file.
  explicit MappedFile(const std::filesystem::path& path, FileAccess access = FileAccess::map);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Whether the file still has all its bytes, and no access found some missing before.
  /// Always true of a file that was read.
  bool intact() const;
  /// Throws Error (I/O) naming the file where not. One short system call: call it after every piece
  /// of work, before its results are used.
  void require_intact() const {
    if (!intact()) fail_lost();
  }

 private:
  [[noreturn]] void fail_lost() const;

  std::filesystem::path path_;
  int descriptor_ = -1;  // of a mapped file
  std::span<const std::byte> bytes_;
  MappedGuard guard_;
};

/// Runs `work`, which reads mapped files, and then `require_intact`, which checks them. Where a
/// file was cut short, that is the error, whatever error `work` made of the zeros.
template <typename Work, typename RequireIntact>
auto mapped_read(const Work& work, const RequireIntact& require_intact) {
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      require_intact();
    } else {
      auto result = work();
      require_intact();
      return result;
    }
  } catch (const Error&) {
    require_intact();
    throw;
  }
}
template <typename Work>
auto mapped_read(const MappedFile& file, const Work& work) {
  return mapped_read(work, [&] { file.require_intact(); });
}

/// The permissions of a file that did not exist before.
enum class FileMode {
  usual,       ///< what the umask allows
  owner_only,  ///< 0600: a conversation, say
};

/// Writes pieces to a temporary file beside `path`, syncs and renames it: `path` appears complete
/// or not at all. A file that is replaced keeps its permissions and, where possible, its owner and
/// group. Throws Error naming the path.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path, FileMode mode = FileMode::usual);
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
