#include "formats/settings_json.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/json_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace lca {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostLayers = 10'000;
constexpr std::string_view kScale = "scale";
constexpr std::string_view kPrefill = "prefill";
constexpr std::string_view kRopeLayout = "rope_layout";
constexpr std::array<std::string_view, 2> kRopeLayouts = {"half", "adjacent"};

bool is_scale(double value) { return std::isfinite(value) && value > 0; }

const SettingField* field_find(std::string_view name) {
  for (const SettingField& field : setting_fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

/// What the field takes, in words.
std::string field_wanted(const SettingField& field) {
  if (field.is_integer) return fmt::format("an integer from {} to {}", field.minimum, kLargest);
  return fmt::format("one of {}", fmt::join(field.choices, ", "));
}

/// The value for the field's `set`, or nothing where it does not take it.
std::optional<std::int64_t> field_value(const SettingField& field, const JsonScalar& value) {
  if (field.is_integer) {
    const bool fits = value.kind == JsonScalar::Kind::integer && value.integer >= field.minimum &&
                      value.integer <= kLargest;
    return fits ? std::optional(value.integer) : std::nullopt;
  }
  const auto choice = std::ranges::find(field.choices, value.text);
  if (value.kind != JsonScalar::Kind::text || choice == field.choices.end()) return std::nullopt;
  return choice - field.choices.begin();
}

/// Reads one flat object; the only list in it is `prefill`.
class ObjectReader : public JsonReader {
 public:
  ObjectReader(std::string_view where, SettingsScope scope) : where_(where), scope_(scope) {}

  SettingsObject object;

  void object_begin() override {
    if (inside_) fail("an object");
    inside_ = true;
  }

  void list_begin() override {
    if (!inside_ || in_list_ || key_ != kPrefill) fail("a list");
    in_list_ = true;
  }

  void list_end() override {
    in_list_ = false;
    if (object.prefill.empty()) fail("an empty list");
  }

  void key(std::string& name) override {
    key_ = std::move(name);
    field_ = field_find(key_);
    const bool is_run = key_ == kScale || key_ == kPrefill || key_ == kRopeLayout;
    if (field_ == nullptr && !(is_run && scope_ == SettingsScope::op_file)) {
      fail_input("{}: unknown field \"{}\"", where_, text_printable(key_));
    }
    if (!seen_.insert(key_).second) fail_input("{}: field \"{}\" appears twice", where_, key_);
  }

  void scalar(JsonScalar& value) override {
    if (!inside_) fail(value.describe());
    if (in_list_) {
      if (value.kind != JsonScalar::Kind::integer || value.integer < 1) fail(value.describe());
      object.prefill.push_back(value.integer);
    } else if (key_ == kRopeLayout) {
      const auto name = std::ranges::find(kRopeLayouts, value.text);
      if (value.kind != JsonScalar::Kind::text || name == kRopeLayouts.end()) {
        fail(value.describe());
      }
      object.rope_layout = static_cast<RopeLayout>(name - kRopeLayouts.begin());
    } else if (field_ == nullptr) {
      const bool is_number =
          value.kind == JsonScalar::Kind::integer || value.kind == JsonScalar::Kind::number;
      if (key_ != kScale || !is_number || !is_scale(value.number)) fail(value.describe());
      object.scale = value.number;
    } else {
      const std::optional<std::int64_t> number = field_value(*field_, value);
      if (!number) fail(value.describe());
      field_->set(object.settings, *number);
    }
  }

 private:
  /// Says what the current field takes instead of `what`.
  [[noreturn]] void fail(std::string_view what) const {
    if (!inside_) fail_input("{}: must be an object, not {}", where_, what);
    std::string wanted = "a list of integers from 1";
    if (key_ == kScale) {
      wanted = "a finite number above 0";
    } else if (key_ == kRopeLayout) {
      wanted = fmt::format("one of {}", fmt::join(kRopeLayouts, ", "));
    } else if (field_ != nullptr) {
      wanted = field_wanted(*field_);
    }
    fail_input("{}: field \"{}\" must be {}, not {}{}", where_, key_, wanted,
               in_list_ ? "one with " : "", what);
  }

  std::string_view where_;
  SettingsScope scope_;
  bool inside_ = false;
  bool in_list_ = false;
  std::string key_;
  const SettingField* field_ = nullptr;  // of key_; null for those of operator files alone
  std::set<std::string> seen_;
};

/// Reads one object whose fields are values for all layers, or lists with one for each.
class LayersReader : public JsonReader {
 public:
  LayersReader(std::string_view where, std::size_t layers) : where_(where), layers_(layers) {}

  std::vector<Settings> settings;

  void object_begin() override {
    if (inside_) fail("an object");
    inside_ = true;
    settings.resize(layers_);
  }

  void list_begin() override {
    if (!inside_ || in_list_) fail("a list");
    in_list_ = true;
    count_ = 0;
  }

  void list_end() override {
    in_list_ = false;
    if (count_ != layers_) {
      fail_input("{}: field \"{}\" has {} values, but the model has {} layers", where_,
                 field_->name, count_, layers_);
    }
  }

  void key(std::string& name) override {
    field_ = field_find(name);
    if (field_ == nullptr) {
      fail_input("{}: unknown field \"{}\"", where_, text_printable(name));
    }
    if (!seen_.insert(field_->name).second) {
      fail_input("{}: field \"{}\" appears twice", where_, field_->name);
    }
  }

  void scalar(JsonScalar& value) override {
    if (!inside_) fail(value.describe());
    const std::optional<std::int64_t> number = field_value(*field_, value);
    if (!number) fail(value.describe());
    if (!in_list_) {
      for (Settings& layer : settings) field_->set(layer, *number);
    } else if (count_++ < layers_) {
      field_->set(settings[count_ - 1], *number);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    if (!inside_) fail_input("{}: must be an object, not {}", where_, what);
    fail_input("{}: field \"{}\" must be {} or a list of one for each layer, not {}{}", where_,
               field_->name, field_wanted(*field_), in_list_ ? "one with " : "", what);
  }

  std::string_view where_;
  std::size_t layers_;
  bool inside_ = false;
  bool in_list_ = false;
  std::size_t count_ = 0;  // values of the list so far
  const SettingField* field_ = nullptr;
  std::set<std::string_view> seen_;
};

template <typename T>
T number_parse(std::string_view name, std::string_view text, const char* wanted) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail_input("{} must be {}, not \"{}\"", name, wanted, text_printable(text));
  }
  return value;
}

double scale_parse(std::string_view text) {
  constexpr const char* kWanted = "a finite number above 0";
  const auto scale = number_parse<double>(kScale, text, kWanted);
  if (!is_scale(scale)) {
    fail_input("scale must be {}, not \"{}\"", kWanted, text_printable(text));
  }
  return scale;
}

std::vector<std::int64_t> prefill_parse(std::string_view text) {
  constexpr const char* kWanted = "a list of integers from 1 such as 128,64";
  std::vector<std::int64_t> chunks;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    chunks.push_back(
        number_parse<std::int64_t>(kPrefill, text.substr(begin, end - begin), kWanted));
    if (chunks.back() < 1) {
      fail_input("prefill must be {}, not \"{}\"", kWanted, text_printable(text));
    }
    begin = end + 1;
  }
  return chunks;
}

}  // namespace

SettingsObject settings_from_json(std::string_view text, std::string_view where,
                                  SettingsScope scope) {
  ObjectReader reader(where, scope);
  json_read(text, where, reader);
  return std::move(reader.object);
}

std::vector<Settings> settings_layers_from_json(std::string_view text, std::string_view where,
                                                std::int64_t layers) {
  if (layers < 1 || layers > kMostLayers) {
    fail_input("{}: the number of layers must be from 1 to {}, not {}", where, kMostLayers, layers);
  }
  LayersReader reader(where, static_cast<std::size_t>(layers));
  json_read(text, where, reader);
  return std::move(reader.settings);
}

void settings_override(SettingsObject& object, std::span<const SettingOverride> overrides) {
  for (const SettingOverride& change : overrides) {
    if (change.name == "preset") object.settings = settings_preset(change.text);
  }
  for (const SettingOverride& change : overrides) {
    if (change.name == "preset") continue;
    if (change.name == kScale) {
      object.scale = scale_parse(change.text);
    } else if (change.name == kPrefill) {
      object.prefill = prefill_parse(change.text);
    } else {
      settings_set(object.settings, change.name, change.text);
    }
  }
}

std::string settings_to_json(const SettingsObject& object) {
  std::vector<std::string> parts;
  for (const SettingField& field : setting_fields()) {
    const std::int64_t value = field.get(object.settings);
    if (field.is_integer) {
      parts.push_back(fmt::format("\"{}\":{}", field.name, value));
    } else {
      const auto index = static_cast<std::size_t>(value);
      parts.push_back(fmt::format("\"{}\":\"{}\"", field.name, field.choices.at(index)));
    }
  }
  if (object.scale) parts.push_back(fmt::format("\"{}\":{}", kScale, *object.scale));
  if (!object.prefill.empty()) {
    parts.push_back(fmt::format("\"{}\":[{}]", kPrefill, fmt::join(object.prefill, ",")));
  }
  if (object.rope_layout) {
    const auto index = static_cast<std::size_t>(*object.rope_layout);
    parts.push_back(fmt::format("\"{}\":\"{}\"", kRopeLayout, kRopeLayouts.at(index)));
  }
  return fmt::format("{{{}}}", fmt::join(parts, ","));
}

}  // namespace lca
