#include "formats/safetensors.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/json_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

namespace lca {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMostDimensions = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeRow {
  TensorType type;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kTypes = {
    TypeRow{TensorType::f64, "F64", 8},      TypeRow{TensorType::f32, "F32", 4},
    TypeRow{TensorType::f16, "F16", 2},      TypeRow{TensorType::bf16, "BF16", 2},
    TypeRow{TensorType::i64, "I64", 8},      TypeRow{TensorType::i32, "I32", 4},
    TypeRow{TensorType::i16, "I16", 2},      TypeRow{TensorType::i8, "I8", 1},
    TypeRow{TensorType::u64, "U64", 8},      TypeRow{TensorType::u32, "U32", 4},
    TypeRow{TensorType::u16, "U16", 2},      TypeRow{TensorType::u8, "U8", 1},
    TypeRow{TensorType::boolean, "BOOL", 1},
};

const TypeRow& type_row(TensorType type) {
  return *std::ranges::find(kTypes, type, &TypeRow::type);
}

/// Bytes of a tensor, or nothing where the number does not fit.
std::optional<std::size_t> byte_count(const std::vector<std::int64_t>& shape, TensorType type) {
  std::size_t count = tensor_type_bytes(type);
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(dim), &count)) return std::nullopt;
  }
  return count;
}

/// A tensor as the header tells it.
struct HeaderEntry {
  std::string name;
  std::optional<TensorType> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> offsets;
};

/// Reads {"name": {"dtype": …, "shape": […], "data_offsets": [begin, end]}, "__metadata__": {…}}.
class HeaderReader : public JsonReader {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::vector<HeaderEntry> entries;
  Safetensors::Metadata metadata;

  void object_begin() override {
    if (place_ == Place::outside) {
      place_ = Place::root;
    } else if (place_ == Place::root) {
      place_ = key_ == kMetadataKey ? Place::metadata : Place::tensor;
      if (place_ == Place::metadata && std::exchange(seen_metadata_, true)) {
        fail_input("{}: {} appears twice", file_, kMetadataKey);
      }
      if (place_ == Place::tensor) {
        entries.emplace_back();
        entries.back().name = std::move(key_);
      }
    } else {
      fail("an object");
    }
  }

  void object_end() override {
    if (place_ == Place::tensor) check_complete(entries.back());
    place_ = place_ == Place::root ? Place::outside : Place::root;
  }

  void list_begin() override {
    HeaderEntry* entry = place_ == Place::tensor ? &entries.back() : nullptr;
    if (entry != nullptr && key_ == "shape") {
      list_ = &entry->shape.emplace();
    } else if (entry != nullptr && key_ == "data_offsets") {
      list_ = &entry->offsets.emplace();
    } else {
      fail("a list");
    }
    place_ = Place::list;
  }

  void list_end() override { place_ = Place::tensor; }

  void key(std::string& name) override {
    key_ = std::move(name);
    if (place_ != Place::tensor) return;
    const HeaderEntry& entry = entries.back();
    const bool again = (key_ == "dtype" && entry.dtype) || (key_ == "shape" && entry.shape) ||
                       (key_ == "data_offsets" && entry.offsets);
    if (again) fail_input("{}: {} appears twice", where(), key_);
    if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      fail_input("{}: unknown field \"{}\"", where(), text_printable(key_));
    }
  }

  void scalar(JsonScalar& value) override {
    if (place_ == Place::list) {
      list_value(value);
    } else if (place_ == Place::metadata && value.kind == JsonScalar::Kind::text) {
      if (!metadata.try_emplace(key_, std::move(value.text)).second) {
        fail_input("{}: {} holds \"{}\" twice", file_, kMetadataKey, text_printable(key_));
      }
    } else if (place_ == Place::tensor && key_ == "dtype" && value.kind == JsonScalar::Kind::text) {
      const auto row = std::ranges::find(kTypes, std::string_view(value.text), &TypeRow::name);
      if (row == kTypes.end()) fail_input("{}: unknown dtype {}", where(), value.describe());
      entries.back().dtype = row->type;
    } else {
      fail(value.describe());
    }
  }

 private:
  enum class Place { outside, root, tensor, list, metadata };

  std::string where() const {
    return fmt::format("{}: tensor \"{}\"", file_, text_printable(entries.back().name));
  }

  /// Complains about a value that does not belong where it stands.
  [[noreturn]] void fail(std::string_view what) const {
    switch (place_) {
      case Place::outside:
        fail_input("{}: the header is {}, not an object", file_, what);
      case Place::root:
        fail_input("{}: \"{}\" is {}, not an object", file_, text_printable(key_), what);
      case Place::metadata:
        fail_input("{}: {}: \"{}\" is {}, not a text", file_, kMetadataKey, text_printable(key_),
                   what);
      case Place::tensor:
      case Place::list:
        break;
    }
    fail_input("{}: {} cannot be {}", where(), key_, what);
  }

  void list_value(const JsonScalar& value) {
    if (value.kind != JsonScalar::Kind::integer || value.integer < 0) {
      fail_input("{}: {} holds {}, not an integer from 0", where(), key_, value.describe());
    }
    if (list_->size() == kMostDimensions) {
      fail_input("{}: {} holds more than {} numbers", where(), key_, kMostDimensions);
    }
    list_->push_back(value.integer);
  }

  void check_complete(const HeaderEntry& entry) const {
    const char* missing = !entry.dtype     ? "dtype"
                          : !entry.shape   ? "shape"
                          : !entry.offsets ? "data_offsets"
                                           : nullptr;
    if (missing != nullptr) fail_input("{}: {} is missing", where(), missing);
    if (entry.offsets->size() != 2) fail_input("{}: data_offsets must be two numbers", where());
  }

  const std::string& file_;
  Place place_ = Place::outside;
  std::string key_;
  std::vector<std::int64_t>* list_ = nullptr;
  bool seen_metadata_ = false;
};

/// One tensor of the header.
std::string header_tensor(std::string_view name, TensorType dtype,
                          const std::vector<std::int64_t>& shape, std::size_t begin,
                          std::size_t end) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_quote(name),
                     tensor_type_name(dtype), fmt::join(shape, ","), begin, end);
}

/// Length and header of a file with these tensors, in the order of their data.
void header_write(FileWriter& writer, std::vector<std::string> tensors,
                  const Safetensors::Metadata& metadata) {
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, text] : metadata) {
      texts.push_back(fmt::format("{}:{}", json_quote(key), json_quote(text)));
    }
    tensors.insert(tensors.begin(),
                   fmt::format("\"{}\":{{{}}}", kMetadataKey, fmt::join(texts, ",")));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(tensors, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8
  const std::uint64_t length = header.size();
  writer.write(std::as_bytes(std::span(&length, 1)));
  writer.write(std::as_bytes(std::span(header)));
}

/// The tensor's own bytes inside `data`, checked.
TensorInfo entry_resolve(HeaderEntry& entry, std::span<const std::byte> data,
                         const std::string& file) {
  const std::string where = fmt::format("{}: tensor \"{}\"", file, text_printable(entry.name));
  const auto begin = static_cast<std::size_t>((*entry.offsets)[0]);
  const auto end = static_cast<std::size_t>((*entry.offsets)[1]);
  if (begin > end) fail_input("{}: data_offsets run backwards, {} to {}", where, begin, end);
  if (end > data.size()) {
    fail_input("{}: ends at byte {} of the data, but there are only {}: truncated?", where, end,
               data.size());
  }
  const std::optional<std::size_t> count = byte_count(*entry.shape, *entry.dtype);
  if (!count || *count != end - begin) {
    fail_input("{}: shape [{}] of {} does not fit its {} bytes", where,
               fmt::join(*entry.shape, ","), tensor_type_name(*entry.dtype), end - begin);
  }
  return {std::move(entry.name), *entry.dtype, std::move(*entry.shape),
          data.subspan(begin, end - begin)};
}

/// The format wants the tensors to cover the data exactly once.
void check_cover(const std::vector<TensorInfo>& tensors, std::span<const std::byte> data,
                 const std::string& file) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, {}, [](const TensorInfo* tensor) {
    return std::pair(tensor->bytes.data(), tensor->bytes.size());
  });
  const std::byte* covered = data.data();
  for (const TensorInfo* tensor : order) {
    if (tensor->bytes.data() != covered) {
      fail_input(
          "{}: tensor \"{}\": {}", file, text_printable(tensor->name),
          tensor->bytes.data() < covered ? "overlaps another tensor" : "leaves a hole before it");
    }
    covered += tensor->bytes.size();
  }
  const auto total = static_cast<std::size_t>(covered - data.data());
  if (total != data.size()) {
    fail_input("{}: {} bytes after the last tensor belong to none", file, data.size() - total);
  }
}

}  // namespace

std::size_t tensor_type_bytes(TensorType type) { return type_row(type).bytes; }

std::string_view tensor_type_name(TensorType type) { return type_row(type).name; }

Safetensors Safetensors::open(const std::filesystem::path& path, FileAccess access) {
  MappedFile map(path, access);
  Safetensors file = mapped_read(map, [&] { return parse(map.bytes(), path.native()); });
  file.map_ = std::move(map);
  return file;
}

Safetensors Safetensors::parse(std::span<const std::byte> bytes, std::string_view name) {
  Safetensors file;
  file.name_ = path_printable(name);
  if (bytes.size() < kLengthBytes) {
    fail_input("{}: {} bytes are too few for a safetensors file", file.name_, bytes.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  bytes = bytes.subspan(kLengthBytes);
  if (length > bytes.size()) {
    fail_input("{}: the header of {} bytes is longer than the file: truncated, or no safetensors",
               file.name_, length);
  }
  if (length > kLargestHeader) {
    fail_input("{}: the header of {} bytes is above the limit of {}", file.name_, length,
               kLargestHeader);
  }
  const auto header_bytes = static_cast<std::size_t>(length);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()), header_bytes);
  const std::span<const std::byte> data = bytes.subspan(header_bytes);
  if (!header.starts_with('{')) {
    fail_input("{}: the header does not begin with '{{': no safetensors file", file.name_);
  }

  HeaderReader reader(file.name_);
  json_read(header, file.name_ + ": header", reader);
  file.metadata_ = std::move(reader.metadata);
  file.tensors_.reserve(reader.entries.size());
  for (HeaderEntry& entry : reader.entries) {
    file.tensors_.push_back(entry_resolve(entry, data, file.name_));
  }
  std::ranges::sort(file.tensors_, {}, &TensorInfo::name);
  const auto twin = std::ranges::adjacent_find(file.tensors_, {}, &TensorInfo::name);
  if (twin != file.tensors_.end()) {
    fail_input("{}: tensor \"{}\" appears twice", file.name_, text_printable(twin->name));
  }
  check_cover(file.tensors_, data, file.name_);
  return file;
}

const TensorInfo* Safetensors::find(std::string_view name) const {
  const auto at =
      std::ranges::lower_bound(tensors_, name, std::ranges::less{},
                               [](const TensorInfo& t) -> std::string_view { return t.name; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

void safetensors_write(FileWriter& writer, std::span<const TensorInfo> tensors,
                       const Safetensors::Metadata& metadata) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const TensorInfo* a, const TensorInfo* b) {
    return std::forward_as_tuple(tensor_type_bytes(b->dtype), a->name) <
           std::forward_as_tuple(tensor_type_bytes(a->dtype), b->name);
  });

  std::vector<std::string> parts;
  std::size_t offset = 0;
  for (const TensorInfo* tensor : order) {
    if (byte_count(tensor->shape, tensor->dtype) != tensor->bytes.size()) {
      fail_internal("tensor \"{}\": {} bytes do not fit shape [{}]", text_printable(tensor->name),
                    tensor->bytes.size(), fmt::join(tensor->shape, ","));
    }
    const std::size_t end = offset + tensor->bytes.size();
    parts.push_back(header_tensor(tensor->name, tensor->dtype, tensor->shape, offset, end));
    offset = end;
  }
  header_write(writer, std::move(parts), metadata);
  for (const TensorInfo* tensor : order) writer.write(tensor->bytes);
}

SafetensorsStream::SafetensorsStream(FileWriter& writer, std::string_view name, TensorType dtype,
                                     const std::vector<std::int64_t>& shape,
                                     const Safetensors::Metadata& metadata)
    : writer_(&writer), missing_(byte_count(shape, dtype).value_or(0)) {
  if (!byte_count(shape, dtype)) {
    fail_internal("tensor \"{}\": shape [{}] is too large", text_printable(name),
                  fmt::join(shape, ","));
  }
  header_write(writer, {header_tensor(name, dtype, shape, 0, missing_)}, metadata);
}

void SafetensorsStream::append(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_) {
    fail_internal("{} bytes more than the tensor holds", bytes.size() - missing_);
  }
  writer_->write(bytes);
  missing_ -= bytes.size();
}

void SafetensorsStream::finish() {
  if (missing_ > 0) fail_internal("{} bytes of the tensor are missing", missing_);
  writer_->commit();
}

}  // namespace lca
