#include "server/api/request_json.h"

#include <cmath>

namespace lca::server {

namespace {

const char* json_kind(const Json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return "null";
}

[[noreturn]] void refuse_kind(const std::string& path, const char* wanted, const Json& value) {
  refuse(path, "{} must be {}, not {}", path, wanted, json_kind(value));
}

}  // namespace

Json json_parse_body(std::string_view body) {
  JsonRead read = json_read(body);
  if (!read.fault.empty()) refuse("", "the body {}", read.fault);
  Json value = std::move(read.value);
  if (!value.is_object()) refuse("", "the body must be a JSON object, not {}", json_kind(value));
  return value;
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_shown(const Json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_structured()) return json_kind(value);
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMost) {
    const std::string start = value.get_ref<const std::string&>().substr(0, kMost);
    std::string text = Json(start).dump(-1, ' ', true, Json::error_handler_t::ignore);
    text.insert(text.size() - 1, "...");
    return text;
  }
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string json_at(const std::string& path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

std::int64_t json_integer(const Json& value, const std::string& path, std::int64_t least,
                          std::int64_t most) {
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse(path, "{} must be from {} to {}", path, least, most);
    }
    number = value.get<std::int64_t>();
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 0x1p53 &&
             std::floor(value.get<double>()) == value.get<double>()) {
    number = static_cast<std::int64_t>(value.get<double>());
  } else {
    refuse_kind(path, "an integer", value);
  }
  if (number < least || number > most) {
    refuse(path, "{} is {}; it must be from {} to {}", path, number, least, most);
  }
  return number;
}

Fields::Fields(const Json& value, std::string path) : object_(&value), path_(std::move(path)) {
  if (!value.is_object()) refuse_kind(path_.empty() ? "the body" : path_, "an object", value);
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const Json* Fields::find(std::string_view name) const {
  const auto found = object_->find(std::string(name));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::need(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) refuse(path(name), "{} is missing", path(name));
  return *value;
}

std::optional<std::string> Fields::text(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse_kind(path(name), "a string", *value);
  return value->get<std::string>();
}

std::string Fields::need_text(std::string_view name) const {
  need(name);
  return *text(name);
}

std::optional<bool> Fields::flag(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse_kind(path(name), "a boolean", *value);
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t least,
                                            std::int64_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return json_integer(*value, path(name), least, most);
}

std::optional<double> Fields::number(std::string_view name, double least, double most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse_kind(path(name), "a number", *value);
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    refuse(path(name), "{} is {}; it must be from {} to {}", path(name), number, least, most);
  }
  return number;
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return Fields(*value, path(name));
}

const Json* Fields::list(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) refuse_kind(path(name), "a list", *value);
  return value;
}

}  // namespace lca::server
