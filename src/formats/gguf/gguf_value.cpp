#include "core/error.h"
#include "formats/gguf/gguf.h"

#include <cstring>

namespace lca {
namespace {

template <typename T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

GgufValue::GgufValue(Stored stored, Kind kind, bool is_list, std::size_t count,
                     std::span<const std::byte> bytes)
    : stored_(stored), kind_(kind), is_list_(is_list), count_(count), bytes_(bytes) {
  if (!is_list && stored != Stored::text) std::memcpy(scalar_.data(), bytes.data(), bytes.size());
}

std::int64_t GgufValue::integer(std::size_t index) const {
  if (index >= count_) fail_internal("a GGUF list has no entry {}", index);
  switch (stored_) {
    case Stored::u8:
    case Stored::boolean:
      return load<std::uint8_t>(data(), index);
    case Stored::i8:
      return load<std::int8_t>(data(), index);
    case Stored::u16:
      return load<std::uint16_t>(data(), index);
    case Stored::i16:
      return load<std::int16_t>(data(), index);
    case Stored::u32:
      return load<std::uint32_t>(data(), index);
    case Stored::i32:
      return load<std::int32_t>(data(), index);
    case Stored::u64:  // those beyond our integers are numbers
    case Stored::i64:
      return load<std::int64_t>(data(), index);
    case Stored::f32:
    case Stored::f64:
    case Stored::text:
    case Stored::list:
      break;
  }
  fail_internal("a GGUF value that is no integer is read as one");
}

double GgufValue::number(std::size_t index) const {
  if (index >= count_) fail_internal("a GGUF list has no entry {}", index);
  if (stored_ == Stored::f32) return static_cast<double>(load<float>(data(), index));
  if (stored_ == Stored::f64) return load<double>(data(), index);
  if (stored_ == Stored::u64) return static_cast<double>(load<std::uint64_t>(data(), index));
  fail_internal("a GGUF value that is no number is read as one");
}

std::vector<std::string_view> GgufValue::texts() const {
  if (stored_ != Stored::text) fail_internal("a GGUF value that is no text is read as one");
  std::vector<std::string_view> texts;
  texts.reserve(count_);
  std::span<const std::byte> rest = bytes_;
  for (std::size_t i = 0; i < count_; ++i) {
    // Checked once, but the file may have been cut short since: its lengths are zeros then.
    std::uint64_t length = 0;
    if (rest.size() < sizeof length) fail_io("a GGUF file changed while it was read");
    std::memcpy(&length, rest.data(), sizeof length);
    rest = rest.subspan(sizeof length);
    if (length > rest.size()) fail_io("a GGUF file changed while it was read");
    texts.emplace_back(reinterpret_cast<const char*>(rest.data()),
                       static_cast<std::size_t>(length));
    rest = rest.subspan(static_cast<std::size_t>(length));
  }
  return texts;
}

std::string_view GgufValue::text(std::size_t index) const {
  if (index >= count_) fail_internal("a GGUF list has no entry {}", index);
  return texts()[index];
}

}  // namespace lca
