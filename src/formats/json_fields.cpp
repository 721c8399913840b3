#include "formats/json_fields.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lca {
namespace {

std::string scalar_write(const JsonScalar& value) {
  switch (value.kind) {
    case JsonScalar::Kind::null:
      return "null";
    case JsonScalar::Kind::boolean:
      return value.boolean ? "true" : "false";
    case JsonScalar::Kind::integer:
      return std::to_string(value.integer);
    case JsonScalar::Kind::number:
      return value.text;
    case JsonScalar::Kind::text:
      break;
  }
  return json_quote(value.text);
}

/// Collects the members of the outermost object; what lies deeper is written down again as text.
class FieldsReader : public JsonReader {
 public:
  explicit FieldsReader(const std::string& where) : where_(where) {}

  std::vector<JsonField> fields;

  void object_begin() override { open('{', JsonField::Kind::object); }
  void object_end() override { close('}'); }
  void list_begin() override { open('[', JsonField::Kind::list); }
  void list_end() override { close(']'); }

  void key(std::string& name) override {
    if (depth_ == 1) {
      fields.emplace_back();
      fields.back().name = std::move(name);
      return;
    }
    std::string& text = separate();
    text += json_quote(name);
    text += ':';
  }

  void scalar(JsonScalar& value) override {
    if (depth_ == 0) fail_input("{}: must be an object, not {}", where_, value.describe());
    if (value.kind == JsonScalar::Kind::number && std::isinf(value.number)) {
      fail_input("{}: field \"{}\": {} is out of range", where_, text_printable(fields.back().name),
                 value.describe());
    }
    if (depth_ == 1) {
      fields.back().scalar = std::move(value);
    } else {
      separate() += scalar_write(value);
    }
  }

 private:
  void open(char bracket, JsonField::Kind kind) {
    if (depth_ == 0 && kind != JsonField::Kind::object) {
      fail_input("{}: must be an object, not a list", where_);
    }
    if (depth_ == 1) fields.back().kind = kind;
    if (depth_ > 0) (depth_ == 1 ? fields.back().text : separate()) += bracket;
    ++depth_;
  }

  void close(char bracket) {
    --depth_;
    if (depth_ > 0) fields.back().text += bracket;
  }

  /// The text being written, with a comma where the next thing needs one.
  std::string& separate() {
    std::string& text = fields.back().text;
    const char last = text.back();  // never inside a string: those end with a quote
    if (last != '{' && last != '[' && last != ':') text += ',';
    return text;
  }

  const std::string& where_;
  std::size_t depth_ = 0;
};

/// Reads a list of scalars.
class ListReader : public JsonReader {
 public:
  std::vector<JsonScalar> items;
  bool is_flat = true;

  void object_begin() override { is_flat = false; }
  void list_begin() override { is_flat = is_flat && !std::exchange(inside_, true); }
  void scalar(JsonScalar& value) override { items.push_back(std::move(value)); }

 private:
  bool inside_ = false;
};

}  // namespace

std::string JsonField::describe() const {
  if (kind == Kind::scalar) return scalar.describe();
  return kind == Kind::object ? "an object" : "a list";
}

JsonFields JsonFields::parse(std::string_view text, std::string_view where) {
  JsonFields result;
  result.where_ = where;
  FieldsReader reader(result.where_);
  json_read(text, where, reader);
  result.fields_ = std::move(reader.fields);
  const auto name_of = [&result](std::size_t i) -> std::string_view {
    return result.fields_[i].name;
  };
  result.by_name_.resize(result.fields_.size());
  for (std::size_t i = 0; i < result.by_name_.size(); ++i) result.by_name_[i] = i;
  std::ranges::sort(result.by_name_, {}, name_of);
  const auto twin = std::ranges::adjacent_find(result.by_name_, {}, name_of);
  if (twin != result.by_name_.end()) {
    fail_input("{}: field \"{}\" appears twice", where, text_printable(name_of(*twin)));
  }
  return result;
}

const JsonField* JsonFields::find(std::string_view name) const {
  const auto name_of = [this](std::size_t i) -> std::string_view { return fields_[i].name; };
  const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return at != by_name_.end() && name_of(*at) == name ? &fields_[*at] : nullptr;
}

const JsonField* JsonFields::find_value(std::string_view name) const {
  const JsonField* field = find(name);
  return field != nullptr && !field->is_null() ? field : nullptr;
}

bool JsonFields::has(std::string_view name) const { return find_value(name) != nullptr; }

void JsonFields::fail(const JsonField& field, std::string_view wanted) const {
  fail_input("{}: field \"{}\" must be {}, not {}", where_, text_printable(field.name), wanted,
             field.describe());
}

std::optional<std::int64_t> JsonFields::integer_if(std::string_view name, std::int64_t minimum,
                                                   std::int64_t maximum) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  if (field->kind != JsonField::Kind::scalar || field->scalar.kind != JsonScalar::Kind::integer ||
      field->scalar.integer < minimum || field->scalar.integer > maximum) {
    fail(*field, fmt::format("an integer from {} to {}", minimum, maximum));
  }
  return field->scalar.integer;
}

std::int64_t JsonFields::integer(std::string_view name, std::int64_t fallback, std::int64_t minimum,
                                 std::int64_t maximum) const {
  const JsonField* field = find(name);
  if (field == nullptr) return fallback;
  if (field->is_null()) fail(*field, fmt::format("an integer from {} to {}", minimum, maximum));
  return *integer_if(name, minimum, maximum);
}

std::optional<double> JsonFields::number_if(std::string_view name, double minimum) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  const bool is_number =
      field->kind == JsonField::Kind::scalar && (field->scalar.kind == JsonScalar::Kind::integer ||
                                                 field->scalar.kind == JsonScalar::Kind::number);
  if (!is_number || !std::isfinite(field->scalar.number) || !(field->scalar.number >= minimum)) {
    fail(*field, fmt::format("a number from {}", minimum));
  }
  return field->scalar.number;
}

double JsonFields::number(std::string_view name, double fallback, double minimum) const {
  const JsonField* field = find(name);
  if (field == nullptr) return fallback;
  if (field->is_null()) fail(*field, fmt::format("a number from {}", minimum));
  return *number_if(name, minimum);
}

std::optional<bool> JsonFields::boolean_if(std::string_view name) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  if (field->kind != JsonField::Kind::scalar || field->scalar.kind != JsonScalar::Kind::boolean) {
    fail(*field, "true or false");
  }
  return field->scalar.boolean;
}

bool JsonFields::boolean(std::string_view name, bool fallback) const {
  const JsonField* field = find(name);
  if (field == nullptr) return fallback;
  if (field->is_null()) fail(*field, "true or false");
  return *boolean_if(name);
}

std::optional<std::string> JsonFields::text_if(std::string_view name) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  if (field->kind != JsonField::Kind::scalar || field->scalar.kind != JsonScalar::Kind::text) {
    fail(*field, "a text");
  }
  return field->scalar.text;
}

std::optional<JsonFields> JsonFields::object_if(std::string_view name) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  if (field->kind != JsonField::Kind::object) fail(*field, "an object");
  return parse(field->text, fmt::format("{}: {}", where_, text_printable(field->name)));
}

std::optional<std::vector<JsonScalar>> JsonFields::list_if(std::string_view name) const {
  const JsonField* field = find_value(name);
  if (field == nullptr) return std::nullopt;
  if (field->kind != JsonField::Kind::list) fail(*field, "a list");
  ListReader reader;
  json_read(field->text, where_, reader);
  if (!reader.is_flat) fail(*field, "a list without lists or objects in it");
  return std::move(reader.items);
}

std::optional<std::vector<double>> JsonFields::numbers_if(std::string_view name) const {
  const std::optional<std::vector<JsonScalar>> items = list_if(name);
  if (!items) return std::nullopt;
  std::vector<double> numbers;
  numbers.reserve(items->size());
  for (const JsonScalar& item : *items) {
    if (item.kind != JsonScalar::Kind::integer && item.kind != JsonScalar::Kind::number) {
      fail_input("{}: field \"{}\" must be a list of numbers, but {} stands in it", where_, name,
                 item.describe());
    }
    numbers.push_back(item.number);
  }
  return numbers;
}

}  // namespace lca
