#include "formats/settings_json.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/json_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace lca {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kScale = "scale";
constexpr std::string_view kPrefill = "prefill";

bool is_scale(double value) { return std::isfinite(value) && value > 0; }

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
    field_ = nullptr;
    for (const SettingField& field : setting_fields()) {
      if (field.name == key_) field_ = &field;
    }
    const bool is_run = key_ == kScale || key_ == kPrefill;
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
    } else if (field_ == nullptr) {
      const bool is_number =
          value.kind == JsonScalar::Kind::integer || value.kind == JsonScalar::Kind::number;
      if (key_ != kScale || !is_number || !is_scale(value.number)) fail(value.describe());
      object.scale = value.number;
    } else if (field_->is_integer) {
      if (value.kind != JsonScalar::Kind::integer || value.integer < field_->minimum ||
          value.integer > kLargest) {
        fail(value.describe());
      }
      field_->set(object.settings, value.integer);
    } else {
      const auto choice = std::ranges::find(field_->choices, value.text);
      if (value.kind != JsonScalar::Kind::text || choice == field_->choices.end()) {
        fail(value.describe());
      }
      field_->set(object.settings, choice - field_->choices.begin());
    }
  }

 private:
  /// Says what the current field takes instead of `what`.
  [[noreturn]] void fail(std::string_view what) const {
    if (!inside_) fail_input("{}: must be an object, not {}", where_, what);
    std::string wanted = "a list of integers from 1";
    if (key_ == kScale) {
      wanted = "a finite number above 0";
    } else if (field_ != nullptr && field_->is_integer) {
      wanted = fmt::format("an integer from {} to {}", field_->minimum, kLargest);
    } else if (field_ != nullptr) {
      wanted = fmt::format("one of {}", fmt::join(field_->choices, ", "));
    }
    fail_input("{}: field \"{}\" must be {}, not {}{}", where_, key_, wanted,
               in_list_ ? "one with " : "", what);
  }

  std::string_view where_;
  SettingsScope scope_;
  bool inside_ = false;
  bool in_list_ = false;
  std::string key_;
  const SettingField* field_ = nullptr;  // of key_; null for scale and prefill
  std::set<std::string> seen_;
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
  return fmt::format("{{{}}}", fmt::join(parts, ","));
}

}  // namespace lca
