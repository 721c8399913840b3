#include "core/error.h"
#include "core/text.h"

#include <lca/settings.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

namespace lca {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

// The addresses of a field's reader and writer, whatever its type.
template <auto Member>
std::int64_t field_get(const Settings& settings) {
  return static_cast<std::int64_t>(settings.*Member);
}

template <auto Member>
void field_set(Settings& settings, std::int64_t value) {
  auto& field = settings.*Member;
  field = static_cast<std::remove_reference_t<decltype(field)>>(value);
}

template <auto Member>
SettingField integer_field(std::string_view name, std::int64_t minimum, std::string_view help) {
  return {name, help, true, minimum, {}, field_get<Member>, field_set<Member>};
}

template <auto Member>
SettingField choice_field(std::string_view name, std::vector<std::string_view> choices,
                          std::string_view help) {
  return {name, help, false, 0, std::move(choices), field_get<Member>, field_set<Member>};
}

std::vector<SettingField> make_fields() {
  const std::vector<std::string_view> pools = {"weighted", "mean", "max", "select"};
  return {
      choice_field<&Settings::method>("method", {"lca", "dense", "window"}, "what a query sees"),
      integer_field<&Settings::group>("group", 1, "tokens condensed into one representative"),
      integer_field<&Settings::window>("window", 1, "recent tokens that always stay exact"),
      integer_field<&Settings::sink>("sink", 0, "leading tokens that are never condensed"),
      integer_field<&Settings::summary_queries>("summary_queries", 1,
                                                "queries whose mean scores a group"),
      choice_field<&Settings::summary>(
          "summary", {"streaming", "prompt"},
          "score a group when it leaves the window, or at the prompt's end"),
      choice_field<&Settings::head_reduce>("head_reduce", {"mean", "sum", "max"},
                                           "how heads share one score"),
      choice_field<&Settings::semantic_pool>("semantic_pool", pools,
                                             "how a group's latents (GQA: values) become one"),
      choice_field<&Settings::positional_pool>("positional_pool", pools,
                                               "how a group's RoPE keys become one"),
      choice_field<&Settings::mass>("mass", {"none", "count", "score"},
                                    "logit bias of a representative: 0, log g, or by score"),
      choice_field<&Settings::positions>(
          "positions", {"token", "entry"},
          "positions of condensed history: its tokens', or its entries' in the cache"),
  };
}

struct Preset {
  std::string_view name;
  Settings settings;
};

/// The table of mechanism §6.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    Settings paper;
    paper.summary = Summary::prompt;
    Settings training_free;
    training_free.sink = 16;
    training_free.semantic_pool = Pool::select;
    training_free.mass = Mass::score;
    training_free.positions = Positions::entry;
    return std::vector<Preset>{
        {"paper", paper}, {"training", Settings{}}, {"training-free", training_free}};
  }();
  return all;
}

/// An integer with an optional K or M (1024, 1024²), or nothing.
std::optional<std::int64_t> integer_parse(std::string_view text) {
  std::int64_t unit = 1;
  if (!text.empty() && (text.back() == 'K' || text.back() == 'M')) {
    unit = text.back() == 'K' ? 1024 : 1024 * 1024;
    text.remove_suffix(1);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (value > kLargest || value < -kLargest) return std::nullopt;
  return value * unit;
}

}  // namespace

const std::vector<SettingField>& setting_fields() {
  static const std::vector<SettingField> fields = make_fields();
  return fields;
}

void Settings::validate() const {
  for (const SettingField& field : setting_fields()) {
    const std::int64_t value = field.get(*this);
    if (field.is_integer && (value < field.minimum || value > kLargest)) {
      fail_input("{} must be an integer from {} to {}, not {}", field.name, field.minimum, kLargest,
                 value);
    }
    if (!field.is_integer && value >= static_cast<std::int64_t>(field.choices.size())) {
      fail_input("{} must be one of {}, not value {}", field.name, fmt::join(field.choices, ", "),
                 value);
    }
  }
}

Settings settings_preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset.settings;
  }
  fail_input("unknown preset \"{}\"; there are {}", text_printable(name),
             fmt::join(settings_presets(), ", "));
}

const std::vector<std::string_view>& settings_presets() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Preset& preset : presets()) list.push_back(preset.name);
    return list;
  }();
  return names;
}

void settings_set(Settings& settings, std::string_view name, std::string_view text) {
  const auto& fields = setting_fields();
  const auto field = std::ranges::find(fields, name, &SettingField::name);
  if (field == fields.end()) fail_input("unknown setting \"{}\"", text_printable(name));

  if (field->is_integer) {
    const std::optional<std::int64_t> value = integer_parse(text);
    if (!value || *value < field->minimum || *value > kLargest) {
      fail_input("{} must be an integer from {} to {}, not \"{}\"", name, field->minimum, kLargest,
                 text_printable(text));
    }
    field->set(settings, *value);
    return;
  }
  const auto choice = std::ranges::find(field->choices, text);
  if (choice == field->choices.end()) {
    fail_input("{} must be one of {}, not \"{}\"", name, fmt::join(field->choices, ", "),
               text_printable(text));
  }
  field->set(settings, choice - field->choices.begin());
}

}  // namespace lca
