#pragma once
/// Writing and reading little-endian byte streams; a reader never passes the end.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace lca {

static_assert(std::endian::native == std::endian::little,
              "byte streams are written as they lie in memory");

/// Appends plain values and raw bytes.
class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads them back; throws Error naming `what` where the stream is too short.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, get_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> get_bytes(std::size_t count) {
    if (count > bytes_.size()) fail_input("{} is truncated", what_);
    const auto piece = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return piece;
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const char* what_;
};

}  // namespace lca
