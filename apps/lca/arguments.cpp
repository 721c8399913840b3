#include "arguments.h"

#include "core/error.h"
#include "core/text.h"
#include "terminal.h"

#include <lca/shape.h>
#include <lca/version.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace lca::cli {
namespace {

constexpr int kMostThreads = 1024;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "semantic_pool" → "--semantic-pool".
std::string flag_name(std::string_view field) {
  std::string name = "--" + std::string(field);
  std::ranges::replace(name, '_', '-');
  return name;
}

std::optional<std::int64_t> count_read(std::string_view text) {
  std::int64_t unit = 1;
  if (!text.empty() && !is_digit(text.back())) {
    switch (lower(text.back())) {
      case 'k':
        unit = std::int64_t{1} << 10;
        break;
      case 'm':
        unit = std::int64_t{1} << 20;
        break;
      case 'g':
        unit = std::int64_t{1} << 30;
        break;
      default:
        return std::nullopt;
    }
    text.remove_suffix(1);
  }
  if (text.empty() || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value > std::numeric_limits<std::int64_t>::max() / unit) {
    return std::numeric_limits<std::int64_t>::max();  // a valid number above every limit
  }
  return value * unit;
}

/// The factor of a unit of size; 0 if unknown.
double unit_read(std::string_view text) {
  std::string unit;
  for (const char c : text) unit += lower(c);
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = std::string_view("kmgt").find(unit.front());
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(unit).substr(1);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, static_cast<double>(power + 1));
  if (rest == "b") return std::pow(1000.0, static_cast<double>(power + 1));
  return 0;
}

std::string knob_placeholder(const SettingField& field) {
  return field.is_integer ? "N" : fmt::format("{}", fmt::join(field.choices, "|"));
}

}  // namespace

std::int64_t count_parse(std::string_view flag, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum) {
  const std::optional<std::int64_t> value = count_read(text);
  if (!value || *value < minimum || *value > maximum) {
    fail_input("{} must be a whole number from {} to {}{}, not \"{}\"", flag, minimum, maximum,
               maximum > kMostThreads ? " (128K means 128 × 1024)" : "", text_printable(text));
  }
  return *value;
}

std::vector<std::int64_t> counts_parse(std::string_view flag, std::string_view text,
                                       std::int64_t minimum, std::int64_t maximum) {
  std::vector<std::int64_t> counts;
  for (;;) {
    const std::size_t comma = text.find(',');
    counts.push_back(count_parse(flag, text.substr(0, comma), minimum, maximum));
    if (comma == std::string_view::npos) return counts;
    text.remove_prefix(comma + 1);
  }
}

std::int64_t size_parse(std::string_view flag, std::string_view text) {
  const auto is_number = [](char c) { return is_digit(c) || c == '.'; };
  const auto unit_at = std::ranges::find_if_not(text, is_number);
  const std::string_view number(text.begin(), unit_at);
  const double unit = unit_read({unit_at, text.end()});

  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool whole =
      !number.empty() && error == std::errc{} && end == number.data() + number.size();
  const double bytes = value * unit;
  if (!whole || unit == 0 || !(bytes >= 1) || bytes > static_cast<double>(kMostBytes)) {
    fail_input("{} must be a size such as 24GiB, 512MiB or 80GB, at least one byte, not \"{}\"",
               flag, text_printable(text));
  }
  return static_cast<std::int64_t>(bytes);
}

double number_parse(std::string_view flag, std::string_view text, double minimum, double maximum) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= minimum) ||
      !(value <= maximum)) {
    fail_input("{} must be a number from {} to {}, not \"{}\"", flag, minimum, maximum,
               text_printable(text));
  }
  return value;
}

double positive_parse(std::string_view flag, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) ||
      value <= 0) {
    fail_input("{} must be a finite number above 0, such as 0.0722, not \"{}\"", flag,
               text_printable(text));
  }
  return value;
}

std::size_t choice_parse(std::string_view flag, std::string_view text,
                         std::span<const std::string_view> choices) {
  const auto choice = std::ranges::find(choices, text);
  if (choice == choices.end()) {
    fail_input("{} must be one of {}, not \"{}\"", flag, fmt::join(choices, ", "),
               text_printable(text));
  }
  return static_cast<std::size_t>(choice - choices.begin());
}

DType dtype_parse(std::string_view flag, std::string_view text) {
  static constexpr std::string_view kNames[] = {"f32", "bf16"};
  return choice_parse(flag, text, kNames) == 0 ? DType::f32 : DType::bf16;
}

void TextFlag::add(CLI::App& app, const std::string& name, const std::string& value,
                   const std::string& help, const std::string& fallback) {
  text = fallback;
  const std::string shown =
      fallback.empty() ? help : fmt::format("{} (default {})", help, fallback);
  option = app.add_option(name, text, shown)->type_name(value);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void CommonFlags::add(CLI::App& app) {
  app_ = &app;
  threads_.add(app, "--threads", "N", "threads; one per core unless given");
  app.set_version_flag("--version", std::string("lca ") + version(), "print the version and exit");
  app.get_help_ptr()->description("print this help and exit");
}

int CommonFlags::threads() const {
  for (const CLI::App* app = app_; app != nullptr; app = app->get_parent()) {
    const CLI::Option* option = app->get_option_no_throw("--threads");
    if (option == nullptr || option->count() == 0) continue;
    return static_cast<int>(count_parse("--threads", option->results().back(), 1, kMostThreads));
  }
  return 0;
}

void KnobFlags::add(CLI::App& app, MethodFlag method_flag, ScaleFlag scale_flag) {
  const std::string group = "Mechanism";
  preset_.add(app, "--preset", fmt::format("{}", fmt::join(settings_presets(), "|")),
              "settings to start from; single flags override");
  preset_.option->group(group);
  for (const SettingField& field : setting_fields()) {
    if (field.name == "method" && method_flag == MethodFlag::no) continue;
    Knob& knob = knobs_.emplace_back(Knob{&field, {}});
    knob.flag.add(app, flag_name(field.name), knob_placeholder(field), std::string(field.help));
    knob.flag.option->group(group);
  }
  if (scale_flag == ScaleFlag::no) return;
  scale_.add(app, "--scale", "X", "softmax scale");
  scale_.option->group(group);
}

Settings KnobFlags::apply(const Settings& base) const {
  Settings settings = preset_.given() ? settings_preset(preset_.text) : base;
  for (const Knob& knob : knobs_) {
    if (!knob.flag.given()) continue;
    const SettingField& field = *knob.field;
    const std::string flag = flag_name(field.name);
    if (field.is_integer) {
      constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
      field.set(settings, count_parse(flag, knob.flag.text, field.minimum, kLargest));
    } else {
      const std::size_t choice = choice_parse(flag, knob.flag.text, field.choices);
      field.set(settings, static_cast<std::int64_t>(choice));
    }
  }
  settings.validate();
  return settings;
}

std::vector<Settings> KnobFlags::apply(const std::vector<Settings>& layers) const {
  std::vector<Settings> applied;
  applied.reserve(layers.size());
  for (const Settings& base : layers) applied.push_back(apply(base));
  return applied;
}

double KnobFlags::scale(double base) const {
  return scale_.given() ? positive_parse("--scale", scale_.text) : base;
}

std::vector<SettingOverride> KnobFlags::overrides() const {
  const Settings checked = apply(Settings{});
  std::vector<SettingOverride> list;
  if (preset_.given()) list.push_back({"preset", preset_.text});
  for (const Knob& knob : knobs_) {
    if (!knob.flag.given()) continue;
    const SettingField& field = *knob.field;
    const std::int64_t value = field.get(checked);
    list.push_back({std::string(field.name),
                    field.is_integer
                        ? fmt::format("{}", value)
                        : std::string(field.choices[static_cast<std::size_t>(value)])});
  }
  if (scale_.given()) list.push_back({"scale", fmt::format("{}", scale(0))});
  return list;
}

std::string shape_names() {
  std::vector<std::string_view> names;
  for (const NamedShape& shape : named_shapes()) names.push_back(shape.name);
  return fmt::format("{}", fmt::join(names, "|"));
}

nlohmann::ordered_json settings_json(const Settings& settings) {
  nlohmann::ordered_json json;
  for (const SettingField& field : setting_fields()) {
    const std::int64_t value = field.get(settings);
    if (field.is_integer) {
      json[std::string(field.name)] = value;
    } else {
      json[std::string(field.name)] = field.choices[static_cast<std::size_t>(value)];
    }
  }
  return json;
}

nlohmann::ordered_json settings_json(const std::vector<Settings>& layers) {
  if (std::ranges::adjacent_find(layers, std::ranges::not_equal_to{}) == layers.end()) {
    return layers.empty() ? nlohmann::ordered_json() : settings_json(layers.front());
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Settings& settings : layers) list.push_back(settings_json(settings));
  return list;
}

std::string settings_line(const Settings& settings) {
  std::vector<std::string> parts;
  for (const SettingField& field : setting_fields()) {
    std::string name(field.name);
    std::ranges::replace(name, '_', '-');
    const std::int64_t value = field.get(settings);
    parts.push_back(field.is_integer ? fmt::format("{} {}", name, value)
                                     : fmt::format("{} {}", name,
                                                   field.choices[static_cast<std::size_t>(value)]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string settings_line(const std::vector<Settings>& layers) {
  if (layers.empty()) return "";
  const bool same = std::ranges::adjacent_find(layers, std::ranges::not_equal_to{}) == layers.end();
  return settings_line(layers.front()) + (same ? "" : " (first layer; layers differ)");
}

void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace lca::cli
