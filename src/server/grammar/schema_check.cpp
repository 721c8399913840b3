// The keywords of a schema: which there are, and what their values must be.

#include "server/grammar/schema.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lca::server {

namespace {

constexpr std::array<std::string_view, 15> kKeywords = {
    "type",     "properties", "required", "additionalProperties",
    "enum",     "const",      "items",    "minItems",
    "maxItems", "minimum",    "maximum",  "maxLength",
    "anyOf",    "$ref",       "$defs"};
constexpr std::array<std::string_view, 9> kAnnotations = {"title",      "description", "default",
                                                          "examples",   "$schema",     "$comment",
                                                          "deprecated", "readOnly",    "writeOnly"};
constexpr std::array<std::pair<std::string_view, std::uint32_t>, 7> kTypeNames = {
    {{"null", kNull},
     {"boolean", kBoolean},
     {"integer", kInteger},
     {"number", kNumber},
     {"string", kString},
     {"array", kArray},
     {"object", kObject}}};

std::uint32_t type_named(const Json& name, std::string_view path) {
  if (name.is_string()) {
    for (const auto& [known, type] : kTypeNames) {
      if (name.get_ref<const std::string&>() == known) return type;
    }
  }
  fail_input(
      "schema: 'type' at {} must be null, boolean, integer, number, string, array or object, or a "
      "list of these",
      text_printable(path, 300));
}

bool number_is_whole(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::isfinite(value.get<double>()) &&
         std::trunc(value.get<double>()) == value.get<double>();
}

std::size_t characters_count(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xc0U) != 0x80U;
  }));
}

/// Whether a value of enum or const satisfies the keywords beside it.
bool value_fits(const Json& value, const Json& schema, std::string_view path) {
  const std::uint32_t types = types_of(schema, path);
  const auto has = [&](std::uint32_t type) { return (types & type) != 0; };
  switch (value.type()) {
    case Json::value_t::null:
      return has(kNull);
    case Json::value_t::boolean:
      return has(kBoolean);
    case Json::value_t::string: {
      const std::uint32_t most = count_of(schema, "maxLength", kUnlimited, path);
      return has(kString) && characters_count(value.get_ref<const std::string&>()) <= most;
    }
    case Json::value_t::array:
    case Json::value_t::object:
      for (const char* keyword : {"properties", "required", "additionalProperties", "items"}) {
        if (schema.contains(keyword)) {
          fail_input(
              "schema: '{}' beside values of enum or const at {} is not supported: leave it out",
              keyword, text_printable(path, 300));
        }
      }
      if (value.is_object()) return has(kObject);
      return has(kArray) && value.size() >= count_of(schema, "minItems", 0, path) &&
             value.size() <= count_of(schema, "maxItems", kUnlimited, path);
    default:
      break;
  }
  if (!has(kNumber) && !(has(kInteger) && number_is_whole(value))) return false;
  const Integer low = bound_of(schema, "minimum", 4 * kIntegerMin, path);
  const Integer high = bound_of(schema, "maximum", 4 * kIntegerMax, path);
  if (value.is_number_unsigned()) {
    const Integer exact = value.get<std::uint64_t>();
    return exact >= low && exact <= high;
  }
  if (value.is_number_integer()) {
    const Integer exact = value.get<std::int64_t>();
    return exact >= low && exact <= high;
  }
  const auto real = value.get<double>();
  return (!schema.contains("minimum") || real >= static_cast<double>(low)) &&
         (!schema.contains("maximum") || real <= static_cast<double>(high));
}

}  // namespace

std::string path_join(std::string_view path, std::string_view part) {
  std::string escaped;
  for (const char letter : part.substr(0, 80)) {
    if (letter == '~') {
      escaped += "~0";
    } else if (letter == '/') {
      escaped += "~1";
    } else {
      escaped += letter;
    }
  }
  return std::string(path) + "/" + text_printable(escaped, 60);
}

SchemaSize schema_size(const Json& json) {
  std::vector<std::pair<const Json*, std::size_t>> open{{&json, 1}};
  SchemaSize size;
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (depth > kMaxSchemaDepth) {
      fail_input("schema: nested more than {} deep; use $defs and $ref", kMaxSchemaDepth);
    }
    size.values += 1;
    if (size.values + open.size() + value->size() > kMaxSchemaValues && value->is_structured()) {
      fail_input("schema: more than {} values; make it smaller", kMaxSchemaValues);
    }
    if (value->is_string()) size.bytes += value->get_ref<const std::string&>().size();
    if (value->is_object()) {
      for (const auto& [name, part] : *value->get_ptr<const Json::object_t*>()) {
        size.bytes += name.size();
        open.emplace_back(&part, depth + 1);
      }
    } else if (value->is_array()) {
      for (const Json& part : *value) open.emplace_back(&part, depth + 1);
    }
    if (size.bytes > kMaxSchemaBytes) {
      fail_input("schema: its text and names are more than {} bytes together; shorten them",
                 kMaxSchemaBytes);
    }
  }
  return size;
}

bool keyword_annotates(std::string_view keyword) {
  return std::find(kAnnotations.begin(), kAnnotations.end(), keyword) != kAnnotations.end();
}

void keywords_check(const Json& schema, std::string_view path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end()) continue;
    if (keyword_annotates(keyword)) continue;
    fail_input(
        "schema: keyword '{}' at {} is not supported; supported are type, properties, required, "
        "additionalProperties, enum, const, items, minItems, maxItems, minimum and maximum of "
        "integers, "
        "maxLength, anyOf, $ref and $defs",
        text_printable(keyword, 80), text_printable(path, 300));
  }
}

std::uint32_t types_of(const Json& schema, std::string_view path) {
  const auto found = schema.find("type");
  if (found == schema.end()) return kAnyType;
  std::uint32_t types = 0;
  if (!found->is_array()) {
    types = type_named(*found, path);
  } else {
    for (const Json& name : *found) types |= type_named(name, path);
  }
  return (types & kNumber) != 0 ? types | kInteger : types;
}

std::uint32_t count_of(const Json& schema, const char* keyword, std::uint32_t absent,
                       std::string_view path) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return absent;
  if (!found->is_number() || !number_is_whole(*found) || found->get<double>() < 0) {
    fail_input("schema: '{}' at {} must be a whole number from 0", keyword,
               text_printable(path, 300));
  }
  const auto count = found->get<double>();
  return count >= static_cast<double>(kUnlimited) ? kUnlimited : static_cast<std::uint32_t>(count);
}

Integer bound_of(const Json& schema, const char* keyword, Integer absent, std::string_view path) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return absent;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_number() || !number_is_whole(*found)) {
    fail_input("schema: '{}' at {} must be a whole number", keyword, text_printable(path, 300));
  }
  constexpr double most = 1e30;
  return static_cast<Integer>(std::clamp(found->get<double>(), -most, most));
}

std::vector<std::string> required_of(const Json& schema, std::string_view path) {
  std::vector<std::string> names;
  const auto found = schema.find("required");
  if (found == schema.end()) return names;
  bool valid = found->is_array();
  for (std::size_t i = 0; valid && i < found->size(); ++i) {
    valid = (*found)[i].is_string();
    if (valid) names.push_back((*found)[i].get<std::string>());
  }
  if (!valid) {
    fail_input("schema: 'required' at {} must be a list of names", text_printable(path, 300));
  }
  return names;
}

std::vector<Json> values_of(const Json& schema, std::string_view path) {
  std::vector<Json> values;
  const auto constant = schema.find("const");
  const auto listed = schema.find("enum");
  if (listed != schema.end()) {
    if (!listed->is_array()) {
      fail_input("schema: 'enum' at {} must be a list of values", text_printable(path, 300));
    }
    for (const Json& value : *listed) {
      if (constant == schema.end() || value == *constant) values.push_back(value);
    }
  } else {
    values.push_back(*constant);
  }
  std::erase_if(values, [&](const Json& value) { return !value_fits(value, schema, path); });
  return values;
}

}  // namespace lca::server
