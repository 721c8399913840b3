#pragma once
/// GGUF v3: settings, tokenizer and tensors in one file, or in several parts. Every byte read is
/// hostile until checked.

#include "core/file.h"
#include "formats/model_config.h"
#include "formats/tokenizer/tokenizer_load.h"
#include "ops/packed.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lca {

/// One value of the settings: a scalar, or a list of scalars of one type. Entries are decoded from
/// the file's memory when they are asked for, so that an unused list takes no memory.
class GgufValue {
 public:
  enum class Kind : std::uint8_t { integer, number, boolean, text };
  /// Types of the file, by their numbers there.
  enum class Stored : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    list,
    u64,
    i64,
    f64
  };

  GgufValue() = default;
  /// `bytes` holds `count` entries, checked; a scalar's are copied.
  GgufValue(Stored stored, Kind kind, bool is_list, std::size_t count,
            std::span<const std::byte> bytes);

  Kind kind() const { return kind_; }
  bool is_list() const { return is_list_; }
  /// Entries; 1 for a scalar.
  std::size_t size() const { return count_; }
  /// Kinds integer and boolean.
  std::int64_t integer(std::size_t index = 0) const;
  /// Kind number.
  double number(std::size_t index = 0) const;
  /// Kind text, in the file's memory. `texts` takes one pass, `text` one for each call.
  std::string_view text(std::size_t index = 0) const;
  std::vector<std::string_view> texts() const;

 private:
  const std::byte* data() const { return is_list_ ? bytes_.data() : scalar_.data(); }

  Stored stored_ = Stored::u8;
  Kind kind_ = Kind::integer;
  bool is_list_ = false;
  std::size_t count_ = 0;
  std::span<const std::byte> bytes_;      // of lists and texts
  std::array<std::byte, 8> scalar_ = {};  // of the rest
};

/// One tensor. `shape` is row-major (numpy's order): the reverse of what the file stores.
struct GgufTensor {
  std::string name;
  PackedType type = PackedType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// A checked file with all its parts.
class Gguf {
 public:
  /// Opens `path` and, where it is one part of several (`-00001-of-00003.gguf`), the others; throws
  /// Error naming file and key or tensor. A tensor type we do not read is named in the error.
  static Gguf open(const std::filesystem::path& path, FileAccess access = FileAccess::map);
  /// The same for one file in memory, which must outlive the result.
  static Gguf parse(std::span<const std::byte> bytes, std::string_view name);

  const std::string& name() const { return name_; }
  /// All tensors of all parts, sorted by name.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;
  const GgufValue* value(std::string_view key) const;
  const std::unordered_map<std::string, GgufValue>& values() const { return values_; }

  /// Throws Error where a part was cut short since it was opened: its texts and tensors hold zeros.
  void require_intact() const {
    for (const MappedFile& file : files_) file.require_intact();
  }

  /// Typed lookups; throw Error naming the key where it has another type (or is missing and there
  /// is no fallback).
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> fallback = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string_view> fallback = {}) const;

 private:
  std::string name_;
  std::vector<MappedFile> files_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, GgufValue> values_;
};

/// The model a file describes (architectures llama, qwen2, deepseek2, minicpm3); throws Error for
/// others and for what we do not do.
ModelConfig model_config_from_gguf(const Gguf& file);

/// The tokenizer's tables, for `tokenizer_from_tables`; views into the file's memory.
GgufTokenizer gguf_tokenizer_tables(const Gguf& file);

}  // namespace lca
