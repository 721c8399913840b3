#pragma once
/// JSON Schema: which keywords there are, what their values may be, and how two schemas combine.

#include "server/grammar/program.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// Limits that keep the time and memory of a schema small, whoever wrote it.
inline constexpr std::size_t kMaxSchemaDepth = 64;
inline constexpr std::size_t kMaxSchemaValues = 100'000;
inline constexpr std::size_t kMaxSchemaBytes = std::size_t{1} << 20;  // of text and names
inline constexpr std::size_t kMaxSubschemas = 4096;
inline constexpr std::size_t kMaxMerges = 1024;

enum JsonType : std::uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  // includes integers
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

/// `#/properties/a` and one more part. Names are shortened: paths are for messages.
std::string path_join(std::string_view path, std::string_view part);

struct SchemaSize {
  std::size_t values = 0;
  std::size_t bytes = 0;  ///< of strings and names

  SchemaSize& operator+=(const SchemaSize& other) {
    values += other.values;
    bytes += other.bytes;
    return *this;
  }
  bool fits(std::size_t times) const {
    return values <= times * kMaxSchemaValues && bytes <= times * kMaxSchemaBytes;
  }
};

/// Throws Error where `json` is too deep, has too many values or too much text; needs no stack.
SchemaSize schema_size(const Json& json);

/// Throws Error for a keyword that is not implemented.
void keywords_check(const Json& schema, std::string_view path);
/// Whether the keyword says nothing about values (title, description, default, …).
bool keyword_annotates(std::string_view keyword);

std::uint32_t types_of(const Json& schema, std::string_view path);
/// A bound such as maxItems: a whole number from 0; `absent` where there is none.
std::uint32_t count_of(const Json& schema, const char* keyword, std::uint32_t absent,
                       std::string_view path);
Integer bound_of(const Json& schema, const char* keyword, Integer absent, std::string_view path);
std::vector<std::string> required_of(const Json& schema, std::string_view path);
/// The values of enum and const that the other keywords allow.
std::vector<Json> values_of(const Json& schema, std::string_view path);

/// A schema that asks for what both ask for; false where nothing satisfies both. Throws Error where
/// that cannot be said without a keyword that is not implemented.
Json schemas_merge(const Json& one, const Json& other, std::string_view path);

/// The schema a `$ref` names, "#" or "#/…"; throws Error if there is none.
const Json& reference_find(const Json& root, const Json& reference, std::string_view path);

}  // namespace lca::server
