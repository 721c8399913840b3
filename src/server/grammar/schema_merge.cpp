// Schemas beside each other: keywords beside $ref or anyOf hold together with what these name.

#include "server/grammar/schema.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace lca::server {

namespace {

[[noreturn]] void fail_merge(std::string_view keyword, std::string_view path) {
  fail_input(
      "schema: '{}' at {} cannot be combined with what stands beside it; write the combination as "
      "one "
      "schema",
      keyword, text_printable(path, 300));
}

Json types_merged(const Json& one, const Json& other, std::string_view path) {
  const std::uint32_t both = types_of(one, path) & types_of(other, path);
  Json names = Json::array();
  constexpr std::pair<const char*, std::uint32_t> known[] = {
      {"null", kNull},   {"boolean", kBoolean}, {"string", kString},
      {"array", kArray}, {"object", kObject},   {"number", kNumber},
  };
  for (const auto& [name, type] : known) {
    if ((both & type) != 0) names.push_back(name);
  }
  if ((both & kInteger) != 0 && (both & kNumber) == 0) names.push_back("integer");
  return names;
}

Json lists_united(const Json& one, const Json& other, std::string_view path) {
  Json made = Json::array();
  for (const Json* schema : {&one, &other}) {
    for (std::string& name : required_of(*schema, path)) made.push_back(std::move(name));
  }
  return made;
}

/// Equal values have equal ones: 1 is 1.0, whatever they are inside of.
std::size_t value_hash(const Json& value) {
  if (value.is_string()) return std::hash<std::string>()(value.get_ref<const std::string&>());
  if (value.is_number()) return std::hash<double>()(value.get<double>());
  std::size_t made = value.size();
  if (value.is_array()) {
    for (const Json& item : value) made = 31 * made + value_hash(item);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      made += (2 * std::hash<std::string>()(key) + 1) * value_hash(item);
    }
  }
  return made;
}

/// What two enums share. They are looked up: a schema may have a thousand of them to combine.
Json values_shared(const Json& one, const Json& other, std::string_view path) {
  constexpr std::size_t most = 10'000;  // comparisons of values with the same hash
  std::unordered_multimap<std::size_t, const Json*> known;
  for (const Json& value : other) known.emplace(value_hash(value), &value);
  std::size_t compared = 0;
  Json both = Json::array();
  for (const Json& item : one) {
    const auto [begin, end] = known.equal_range(value_hash(item));
    const bool shared = std::any_of(begin, end, [&](const auto& entry) {
      ++compared;
      return *entry.second == item;
    });
    if (shared) both.push_back(item);
    if (compared > most + one.size()) fail_merge("enum", path);  // each may find itself at once
  }
  return both;
}

void keyword_merge(Json& made, const Json& other, const std::string& keyword,
                   std::string_view path) {
  const Json& value = other.at(keyword);
  Json& present = made[keyword];
  if (keyword == "type") {
    present = types_merged(made, other, path);
  } else if (keyword == "required") {
    present = lists_united(made, other, path);
  } else if (keyword == "minimum" || keyword == "minItems") {
    if (bound_of(other, keyword.c_str(), 0, path) > bound_of(made, keyword.c_str(), 0, path)) {
      present = value;
    }
  } else if (keyword == "maximum" || keyword == "maxItems" || keyword == "maxLength") {
    if (bound_of(other, keyword.c_str(), 0, path) < bound_of(made, keyword.c_str(), 0, path)) {
      present = value;
    }
  } else if (keyword == "enum" && present.is_array() && value.is_array()) {
    present = values_shared(present, value, path);
  } else if (keyword == "const") {
    if (present != value) made["enum"] = Json::array();
  } else if (present != value) {
    fail_merge(keyword, path);
  }
}

std::string percent_decoded(const std::string& text) {
  const auto digit = [](char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
    return -1;
  };
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      made += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      made += text[i];
    }
  }
  return made;
}

}  // namespace

Json schemas_merge(const Json& one, const Json& other, std::string_view path) {
  if (other.is_boolean()) return other.get<bool>() ? one : other;
  if (!other.is_object()) {
    fail_input("schema: {} must be an object, true or false", text_printable(path, 300));
  }
  keywords_check(other, path);
  // additionalProperties speaks of the properties beside it: it cannot move to others.
  for (const auto& [from, to] : {std::pair{&one, &other}, std::pair{&other, &one}}) {
    const auto additional = from->find("additionalProperties");
    if (additional != from->end() && *additional != true && to->contains("properties") &&
        (!from->contains("properties") || from->at("properties") != to->at("properties"))) {
      fail_merge("additionalProperties", path);
    }
  }
  Json made = one;
  for (const auto& [keyword, value] : other.items()) {
    if (keyword == "$defs" || keyword_annotates(keyword)) continue;
    if (!made.contains(keyword)) {
      made[keyword] = value;
    } else {
      keyword_merge(made, other, keyword, path);
    }
  }
  return made;
}

const Json& reference_find(const Json& root, const Json& reference, std::string_view path) {
  const auto fail = [&]() {
    fail_input("schema: $ref '{}' at {} names nothing in this schema; use \"#/$defs/NAME\"",
               reference.is_string() ? text_printable(reference.get_ref<const std::string&>(), 80)
                                     : std::string("?"),
               text_printable(path, 300));
  };
  if (!reference.is_string()) fail();
  const std::string pointer = percent_decoded(reference.get_ref<const std::string&>());
  if (pointer == "#") return root;
  if (!pointer.starts_with("#/")) fail();
  const Json* at = &root;
  std::size_t begin = 2;
  while (true) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string part;
    for (std::size_t i = begin; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
        part += pointer[++i] == '0' ? '~' : '/';
      } else {
        part += pointer[i];
      }
    }
    if (at->is_object() && at->contains(part)) {
      at = &at->at(part);
    } else if (at->is_array() && !part.empty() && part.size() < 7 &&
               part.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(part) < at->size()) {
      at = &at->at(std::stoul(part));
    } else {
      fail();
    }
    if (end == pointer.size()) return *at;
    begin = end + 1;
  }
}

}  // namespace lca::server
