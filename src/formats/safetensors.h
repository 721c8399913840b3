#pragma once
/// Safetensors: a JSON header, then the tensors' bytes. Every byte read is hostile until checked.

#include "core/file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Element types the format knows.
enum class TensorType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

/// Bytes of one element.
std::size_t tensor_type_bytes(TensorType type);
/// The name in the header: "F32", "BF16", …
std::string_view tensor_type_name(TensorType type);

/// One tensor of a file: to read, or to be written.
struct TensorInfo {
  std::string name;
  TensorType dtype = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< little-endian, row-major, of any alignment
};

/// A checked file. Offsets are inside it, sizes fit shapes, tensors neither overlap nor leave
/// holes.
class Safetensors {
 public:
  using Metadata = std::map<std::string, std::string>;

  /// Opens the file and checks all of its header; throws Error naming file and tensor.
  static Safetensors open(const std::filesystem::path& path, FileAccess access = FileAccess::map);
  /// The same for bytes in memory, which must outlive the result; messages call them `name`.
  static Safetensors parse(std::span<const std::byte> bytes, std::string_view name);

  /// What messages call the file.
  const std::string& name() const { return name_; }
  /// All tensors, sorted by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The tensor of that name, or null.
  const TensorInfo* find(std::string_view name) const;
  /// The header's free-form texts.
  const Metadata& metadata() const { return metadata_; }
  /// Throws Error where the file was cut short since it was opened: its tensors hold zeros then.
  void require_intact() const {
    if (map_) map_->require_intact();
  }

 private:
  std::string name_;
  std::optional<MappedFile> map_;
  std::vector<TensorInfo> tensors_;
  Metadata metadata_;
};

/// Writes a whole file of the given tensors; the caller commits it. The order inside is by element
/// size, then name, so that every tensor is aligned and the same tensors give the same bytes.
void safetensors_write(FileWriter& writer, std::span<const TensorInfo> tensors,
                       const Safetensors::Metadata& metadata = {});

/// Writes a file of one tensor whose rows come one after the other, so that it never has to be in
/// memory as a whole.
class SafetensorsStream {
 public:
  /// Writes the header. `shape` is that of the whole tensor; the writer must outlive the stream.
  SafetensorsStream(FileWriter& writer, std::string_view name, TensorType dtype,
                    const std::vector<std::int64_t>& shape,
                    const Safetensors::Metadata& metadata = {});
  /// The next bytes, little-endian and row-major; throws Error where there are too many.
  void append(std::span<const std::byte> bytes);
  /// Commits the file; throws Error where bytes are missing.
  void finish();

 private:
  FileWriter* writer_;
  std::size_t missing_;
};

}  // namespace lca
