#include "formats/gguf/gguf_part.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/gguf/gguf_types.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace lca {
namespace {

static_assert(std::endian::native == std::endian::little, "we read the little-endian format");

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kLongestKey = 65535;      // the format's own limits …
constexpr std::uint64_t kLongestTensorName = 64;  // …
constexpr std::uint32_t kMostGgufDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kLargestAlignment = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";

// The least a setting and a tensor take in the header: what bounds their counts.
constexpr std::uint64_t kLeastValueBytes = 8 + 4 + 1;
constexpr std::uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

using ValueType = GgufValue::Stored;
constexpr std::uint32_t kValueTypes = 13;

/// The fewest bytes of one value.
constexpr std::size_t value_least_bytes(ValueType type) {
  constexpr std::array<std::size_t, kValueTypes> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

/// Goes through the header from its beginning and never past the end.
class HeaderCursor {
 public:
  HeaderCursor(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  /// `what` names in messages what is being read.
  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      fail_input("{}: the file ends at byte {}, inside {}: truncated, or damaged before", file_,
                 bytes_.size(), what);
    }
    const auto piece = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += piece.size();
    return piece;
  }

  template <typename T>
  T get(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view text(std::uint64_t most, std::string_view what) {
    const auto length = get<std::uint64_t>(what);
    if (length > most) {
      fail_input("{}: {} is {} bytes long, above the limit of {}", file_, what, length, most);
    }
    const auto piece = take(length, what);
    return {reinterpret_cast<const char*>(piece.data()), piece.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::size_t position_ = 0;
};

/// Reads settings and the table of tensors of one file.
class PartReader {
 public:
  PartReader(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes) {
    part_.name = path_printable(name);
  }

  GgufPart read() {
    HeaderCursor cursor(bytes_, part_.name);
    read_counts(cursor);
    for (std::uint64_t i = 0; i < value_count_; ++i) read_value(cursor);
    const std::uint64_t alignment = alignment_of_data();
    std::vector<Entry> entries;
    entries.reserve(static_cast<std::size_t>(tensor_count_));
    for (std::uint64_t i = 0; i < tensor_count_; ++i) entries.push_back(read_tensor(cursor));
    resolve(entries, cursor.position(), alignment);
    return std::move(part_);
  }

 private:
  struct Entry {
    GgufTensor tensor;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  void read_counts(HeaderCursor& cursor) {
    const std::string& file = part_.name;
    const std::string_view magic(reinterpret_cast<const char*>(bytes_.data()),
                                 std::min(bytes_.size(), kMagic.size()));
    if (magic != kMagic) {
      fail_input("{}: does not begin with \"GGUF\": no GGUF file{}", file,
                 magic == "ggjt" || magic == "lmgg" || magic == "fmgg" || magic == "tjgg"
                     ? " but one of an older format; convert the model again"
                     : "");
    }
    cursor.take(kMagic.size(), "the magic");
    const auto version = cursor.get<std::uint32_t>("the version");
    if (version != kVersion && __builtin_bswap32(version) == kVersion) {
      fail_incompatible("{}: is a big-endian GGUF file; convert it to little-endian first", file);
    }
    if (version != kVersion) {
      fail_incompatible("{}: GGUF version {} is not read, only {}; convert the model again", file,
                        version, kVersion);
    }
    tensor_count_ = cursor.get<std::uint64_t>("the number of tensors");
    value_count_ = cursor.get<std::uint64_t>("the number of settings");
    const std::uint64_t left = cursor.left();
    if (value_count_ > left / kLeastValueBytes || tensor_count_ > left / kLeastTensorBytes) {
      fail_input("{}: {} settings and {} tensors do not fit in {} bytes: truncated or damaged",
                 file, value_count_, tensor_count_, bytes_.size());
    }
  }

  std::string where(std::string_view key) const {
    return fmt::format("{}: key \"{}\"", part_.name, text_printable(key));
  }

  ValueType value_type(std::uint32_t number, std::string_view key) const {
    if (number >= kValueTypes) fail_input("{}: unknown type {}", where(key), number);
    return static_cast<ValueType>(number);
  }

  void read_value(HeaderCursor& cursor) {
    const std::string_view key = cursor.text(kLongestKey, "the name of a setting");
    if (key.empty()) fail_input("{}: a setting has an empty name", part_.name);
    const std::string what = fmt::format("key \"{}\"", text_printable(key));
    ValueType type = value_type(cursor.get<std::uint32_t>(what), key);
    std::uint64_t count = 1;
    const bool is_list = type == ValueType::list;
    if (is_list) {
      type = value_type(cursor.get<std::uint32_t>(what), key);
      if (type == ValueType::list) fail_input("{}: lists of lists are not read", where(key));
      count = cursor.get<std::uint64_t>(what);
      if (count > cursor.left() / value_least_bytes(type)) {
        fail_input("{}: {} entries do not fit in the file: truncated or damaged", where(key),
                   count);
      }
    }
    GgufValue value = read_entries(type, is_list, static_cast<std::size_t>(count), cursor, what);
    if (!part_.values.try_emplace(std::string(key), std::move(value)).second) {
      fail_input("{}: appears twice", where(key));
    }
  }

  /// Checks the entries and leaves them where they are.
  GgufValue read_entries(ValueType type, bool is_list, std::size_t count, HeaderCursor& cursor,
                         std::string_view what) const {
    using Kind = GgufValue::Kind;
    if (type == ValueType::text) {
      const std::size_t begin = cursor.position();
      for (std::size_t i = 0; i < count; ++i) {
        cursor.text(std::numeric_limits<std::uint64_t>::max(), what);
      }
      return {type, Kind::text, is_list, count, bytes_.subspan(begin, cursor.position() - begin)};
    }
    const std::span<const std::byte> bytes = cursor.take(count * value_least_bytes(type), what);
    const bool is_number = type == ValueType::f32 || type == ValueType::f64 ||
                           (type == ValueType::u64 && !fits_integers(bytes));
    if (type == ValueType::boolean) check_truth_values(bytes, what);
    const Kind kind = is_number                    ? Kind::number
                      : type == ValueType::boolean ? Kind::boolean
                                                   : Kind::integer;
    return {type, kind, is_list, count, bytes};
  }

  /// Where one of a list is beyond our integers, all are numbers.
  static bool fits_integers(std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t wide = 0;
      std::memcpy(&wide, bytes.data() + at, sizeof wide);
      if (!std::in_range<std::int64_t>(wide)) return false;
    }
    return true;
  }

  void check_truth_values(std::span<const std::byte> bytes, std::string_view what) const {
    for (const std::byte truth : bytes) {
      if (std::to_integer<int>(truth) > 1) {
        fail_input("{}: {} holds {} for a truth value, not 0 or 1", part_.name, what,
                   std::to_integer<int>(truth));
      }
    }
  }

  std::uint64_t alignment_of_data() const {
    const auto at = part_.values.find(std::string(kAlignmentKey));
    if (at == part_.values.end()) return kDefaultAlignment;
    const GgufValue& value = at->second;
    const bool is_integer = value.kind() == GgufValue::Kind::integer && !value.is_list();
    const std::int64_t alignment = is_integer ? value.integer() : 0;
    if (alignment < 1 || alignment > kLargestAlignment ||
        !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
      fail_input("{}: must be a power of two up to {}", where(kAlignmentKey), kLargestAlignment);
    }
    return static_cast<std::uint64_t>(alignment);
  }

  Entry read_tensor(HeaderCursor& cursor) {
    Entry entry;
    GgufTensor& tensor = entry.tensor;
    tensor.name = cursor.text(kLongestTensorName, "the name of a tensor");
    const std::string what = fmt::format("tensor \"{}\"", text_printable(tensor.name));
    const std::string here = fmt::format("{}: {}", part_.name, what);
    if (tensor.name.empty()) fail_input("{}: a tensor has an empty name", part_.name);
    const auto dimensions = cursor.get<std::uint32_t>(what);
    if (dimensions < 1 || dimensions > kMostGgufDimensions) {
      fail_input("{}: has {} dimensions, not 1 to {}", here, dimensions, kMostGgufDimensions);
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto dim = cursor.get<std::uint64_t>(what);
      if (dim < 1 || !std::in_range<std::int64_t>(dim)) {
        fail_input("{}: dimension {} is {}", here, i, dim);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(dim));
    }
    tensor.type = gguf_tensor_type(cursor.get<std::uint32_t>(what), here);
    entry.offset = cursor.get<std::uint64_t>(what);
    entry.bytes = tensor_bytes(tensor, here);
    return entry;
  }

  std::size_t tensor_bytes(const GgufTensor& tensor, std::string_view here) const {
    const PackedTypeInfo& info = packed_type_info(tensor.type);
    if (tensor.shape.back() % info.block_values != 0) {
      fail_input("{}: rows of {} values do not hold whole {} blocks of {}", here,
                 tensor.shape.back(), info.name, info.block_values);
    }
    std::size_t bytes = info.block_bytes;
    bool fits = true;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const bool row = i + 1 == tensor.shape.size();
      const std::int64_t count = row ? tensor.shape[i] / info.block_values : tensor.shape[i];
      fits = fits && !__builtin_mul_overflow(bytes, static_cast<std::size_t>(count), &bytes);
    }
    if (!fits || bytes > bytes_.size()) {
      fail_input("{}: shape [{}] of {} needs more bytes than the file's {}: truncated or damaged",
                 here, fmt::join(tensor.shape, ","), info.name, bytes_.size());
    }
    return bytes;
  }

  /// Finds the tensors' bytes, which follow the header, and checks that each has its own.
  void resolve(std::vector<Entry>& entries, std::size_t header, std::uint64_t alignment) {
    std::span<const std::byte> data;  // an empty table needs none
    if (!entries.empty()) {
      const std::uint64_t begin = (header + alignment - 1) / alignment * alignment;
      if (begin > bytes_.size()) {
        fail_input("{}: the file ends before its tensors: truncated", part_.name);
      }
      data = bytes_.subspan(static_cast<std::size_t>(begin));
    }
    std::ranges::sort(entries, {}, &Entry::offset);
    std::uint64_t covered = 0;
    for (Entry& entry : entries) {
      const auto here = [&] {
        return fmt::format("{}: tensor \"{}\"", part_.name, text_printable(entry.tensor.name));
      };
      if (entry.offset % alignment != 0) {
        fail_input("{}: begins at byte {} of the data, not a multiple of {}", here(), entry.offset,
                   alignment);
      }
      if (entry.offset > data.size() || entry.bytes > data.size() - entry.offset) {
        fail_input("{}: {} bytes at byte {} end behind the {} bytes of the data: truncated?",
                   here(), entry.bytes, entry.offset, data.size());
      }
      if (entry.offset < covered) fail_input("{}: overlaps another tensor", here());
      covered = entry.offset + entry.bytes;
      entry.tensor.bytes = data.subspan(static_cast<std::size_t>(entry.offset), entry.bytes);
      part_.tensors.push_back(std::move(entry.tensor));
    }
    std::ranges::sort(part_.tensors, {}, &GgufTensor::name);
    const auto twin = std::ranges::adjacent_find(part_.tensors, {}, &GgufTensor::name);
    if (twin != part_.tensors.end()) {
      fail_input("{}: tensor \"{}\" appears twice", part_.name, text_printable(twin->name));
    }
  }

  std::span<const std::byte> bytes_;
  GgufPart part_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t value_count_ = 0;
};

}  // namespace

GgufPart gguf_part_parse(std::span<const std::byte> bytes, std::string_view name) {
  return PartReader(bytes, name).read();
}

}  // namespace lca
