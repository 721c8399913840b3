#include "server/grammar/schema_oracle.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace lca::test {

namespace {

bool oracle_is(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

int oracle_length(const std::string& text) {
  int count = 0;
  for (std::size_t i = 0; i < text.size(); ++count) {
    const auto lead = static_cast<unsigned char>(text[i]);
    i += lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  }
  return count;
}

const std::vector<std::string> kLetters = {"a",  "b",  " ",  "é", "€",    "😀",
                                           "\"", "\\", "\n", "/", "\x01", "0"};

bool oracle_asked(const Json& schema, const Json& root, const Json& value);

}  // namespace

bool oracle_valid(const Json& schema, const Json& root, const Json& value) {
  // A schema that asks itself about the same value gets no answer from that.
  static thread_local std::set<std::pair<const Json*, const Json*>> asked;
  const auto [place, first] = asked.emplace(&schema, &value);
  if (!first) return false;
  const bool valid = oracle_asked(schema, root, value);
  asked.erase(place);
  return valid;
}

namespace {

bool oracle_asked(const Json& schema, const Json& root, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const std::string reference = schema["$ref"];
    const Json& target =
        reference == "#" ? root
                         : root.at("$defs").at(reference.substr(std::string("#/$defs/").size()));
    if (!oracle_valid(target, root, value)) return false;
  }
  if (schema.contains("anyOf")) {
    const Json& choices = schema["anyOf"];
    if (std::none_of(choices.begin(), choices.end(),
                     [&](const Json& choice) { return oracle_valid(choice, root, value); })) {
      return false;
    }
  }
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    bool fits = false;
    for (const Json& name : type.is_array() ? type : Json::array({type})) {
      fits = fits || oracle_is(value, name);
    }
    if (!fits) return false;
  }
  if (schema.contains("enum")) {
    const Json& values = schema["enum"];
    if (std::find(values.begin(), values.end(), value) == values.end()) return false;
  }
  if (schema.contains("const") && schema["const"] != value) return false;
  if (value.is_number()) {
    // Exact for all integers of 64 bits, signed or not.
    const auto wide = [](const Json& number) { return number.get<long double>(); };
    if (schema.contains("minimum") && wide(value) < wide(schema["minimum"])) return false;
    if (schema.contains("maximum") && wide(value) > wide(schema["maximum"])) return false;
  }
  if (value.is_string() && schema.contains("maxLength") &&
      oracle_length(value) > schema["maxLength"].get<int>()) {
    return false;
  }
  if (value.is_array()) {
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return false;
    if (schema.contains("items")) {
      for (const Json& item : value) {
        if (!oracle_valid(schema["items"], root, item)) return false;
      }
    }
  }
  if (value.is_object()) {
    if (schema.contains("required")) {
      for (const Json& name : schema["required"]) {
        if (!value.contains(name.get<std::string>())) return false;
      }
    }
    for (const auto& [name, item] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(name)) {
        if (!oracle_valid(schema["properties"][name], root, item)) return false;
      } else if (schema.contains("additionalProperties")) {
        if (!oracle_valid(schema["additionalProperties"], root, item)) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::string SchemaMaker::text(int longest) {
  std::string made;
  for (int i = below(longest + 1); i > 0; --i) {
    made += kLetters[static_cast<std::size_t>(below(static_cast<int>(kLetters.size())))];
  }
  return made;
}

Json SchemaMaker::any(int depth) {
  switch (below(depth > 2 ? 5 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return chance(0.5);
    case 2:
      return chance(0.5) ? below(20) - 10 : below(2'000'000'000) * (chance(0.5) ? 1 : -1);
    case 3:
      return std::ldexp(static_cast<double>(below(1'000'000) - 500'000), below(200) - 100);
    case 4:
      return text(6);
    case 5: {
      Json made = Json::array();
      for (int i = below(3); i > 0; --i) made.push_back(any(depth + 1));
      return made;
    }
    default: {
      Json made = Json::object();
      for (int i = below(3); i > 0; --i) made[text(3)] = any(depth + 1);
      return made;
    }
  }
}

Json SchemaMaker::part(int depth) {
  const int kind = below(depth > 2 ? 8 : 12);
  Json made = Json::object();
  if (chance(0.1)) made["description"] = text(5);
  switch (kind) {
    case 0:
      if (chance(0.3)) return true;
      return made;
    case 1:
      made["type"] = chance(0.5) ? Json("boolean") : Json::array({"null", "string"});
      return made;
    case 2: {
      made["type"] = "integer";
      const int first = below(3000) - 1500;
      if (chance(0.7)) made["minimum"] = first;
      if (chance(0.7)) made["maximum"] = first + below(chance(0.5) ? 4 : 4000);
      return made;
    }
    case 3:
      made["type"] = "number";
      return made;
    case 4:
      made["type"] = "string";
      if (chance(0.7)) made["maxLength"] = below(6);
      return made;
    case 5:
      made["enum"] = Json::array();
      for (int i = 0; i <= below(5); ++i) made["enum"].push_back(any(1));
      return made;
    case 6:
      made["const"] = any(1);
      return made;
    case 7:
      if (definitions_ > 0) made["$ref"] = "#/$defs/d" + std::to_string(below(definitions_));
      return made;
    case 8: {
      made["type"] = "array";
      if (chance(0.8)) made["items"] = part(depth + 1);
      const int least = below(3);
      if (chance(0.5)) made["minItems"] = least;
      if (chance(0.5)) made["maxItems"] = least + below(3);
      return made;
    }
    case 9: {
      made["anyOf"] = Json::array();
      for (int i = 0; i <= below(3); ++i) made["anyOf"].push_back(part(depth + 1));
      return made;
    }
    default:
      break;
  }
  made["type"] = "object";
  made["properties"] = Json::object();
  made["required"] = Json::array();
  for (const char* name : {"a", "ab", "b\"", "c", "é"}) {
    if (!chance(0.5)) continue;
    made["properties"][name] = part(depth + 1);
    if (chance(0.5)) made["required"].push_back(name);
  }
  if (chance(0.5)) {
    made["additionalProperties"] = false;
  } else {
    if (chance(0.5)) made["additionalProperties"] = part(depth + 1);
    if (chance(0.2)) made["required"].push_back("x");
  }
  return made;
}

Json SchemaMaker::schema() {
  definitions_ = below(3);
  Json made = part(0);
  if (!made.is_object()) made = Json::object();
  Json definitions = Json::object();
  for (int i = 0; i < definitions_; ++i) definitions["d" + std::to_string(i)] = part(1);
  made["$defs"] = definitions;
  return made;
}

std::optional<Json> SchemaMaker::value(const Json& schema, const Json& root, int depth) {
  if (depth > 12) return std::nullopt;
  if (schema.is_boolean()) return schema.get<bool>() ? std::optional(any(1)) : std::nullopt;
  if (schema.contains("$ref")) {
    return value(root["$defs"][schema["$ref"].get<std::string>().substr(8)], root, depth + 1);
  }
  if (schema.contains("anyOf")) {
    const Json& choices = schema["anyOf"];
    return value(choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))], root,
                 depth + 1);
  }
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum")) {
    const Json& values = schema["enum"];
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }
  if (!schema.contains("type")) return any(1);
  if (schema["type"].is_array()) return chance(0.5) ? Json(nullptr) : Json(text(6));
  const std::string type = schema["type"];
  if (type == "boolean") return chance(0.5);
  if (type == "number")
    return chance(0.5) ? Json(below(100)) : Json(std::ldexp(below(1000) - 500, below(60) - 40));
  if (type == "string") return text(schema.value("maxLength", 6));
  if (type == "integer") {
    const int low = schema.value("minimum", schema.value("maximum", 0) - 5000);
    const int high = schema.value("maximum", low + 5000);
    return low + below(high - low + 1);
  }
  if (type == "array") {
    Json made = Json::array();
    const int least = schema.value("minItems", 0);
    for (int i = least + below(schema.value("maxItems", least + 2) - least + 1); i > 0; --i) {
      const auto item = value(schema.value("items", Json(true)), root, depth + 1);
      if (item) made.push_back(*item);
    }
    return static_cast<int>(made.size()) >= least ? std::optional(made) : std::nullopt;
  }
  Json made = Json::object();
  const Json& required = schema["required"];
  for (const auto& [name, property] : schema["properties"].items()) {
    const bool needed = std::find(required.begin(), required.end(), name) != required.end();
    if (!needed && chance(0.5)) continue;
    const auto item = value(property, root, depth + 1);
    if (item) made[name] = *item;
    if (!item && needed) return std::nullopt;
  }
  const Json additional = schema.value("additionalProperties", Json(true));
  std::vector<std::string> others;
  if (std::find(required.begin(), required.end(), "x") != required.end()) others.emplace_back("x");
  if (additional != false && chance(0.5)) others.push_back("z" + text(3));
  for (const std::string& name : others) {
    const auto item = value(additional, root, depth + 1);
    if (!item) return std::nullopt;
    made[name] = *item;
  }
  return made;
}

Json SchemaMaker::changed(Json value) {
  Json* at = &value;
  while (at->is_structured() && !at->empty() && chance(0.7)) {
    at = &*std::next(at->begin(), below(static_cast<int>(at->size())));
  }
  switch (below(4)) {
    case 0:
      if (at->is_structured() && !at->empty()) {
        at->erase(std::next(at->begin(), below(static_cast<int>(at->size()))));
        return value;
      }
      break;
    case 1:
      if (at->is_array()) {
        at->push_back(any(1));
        return value;
      }
      if (at->is_object()) {
        (*at)["zz"] = any(1);
        return value;
      }
      break;
    case 2:
      if (at->is_number_integer()) {
        *at = at->get<std::int64_t>() + below(7) - 3;
        return value;
      }
      if (at->is_string()) {
        *at = at->get<std::string>() + "é";
        return value;
      }
      break;
    default:
      break;
  }
  *at = any(1);
  return value;
}

}  // namespace lca::test
