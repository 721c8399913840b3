#pragma once
/// Flags that several commands share, and parsers of their values. Values are kept as text until a
/// command runs, so that every error message is our own.

#include "formats/settings_json.h"

#include <lca/settings.h>
#include <lca/tensor.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

/// Longer contexts are taken for typing errors; the limit also keeps every product inside 64 bits.
inline constexpr std::int64_t kLongestLength = std::int64_t{1} << 40;

/// A whole number with an optional K, M or G (×1024 each), from `minimum` to `maximum`. Throws
/// Error that names `flag`.
std::int64_t count_parse(std::string_view flag, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum = kLongestLength);

/// A comma-separated list of the same.
std::vector<std::int64_t> counts_parse(std::string_view flag, std::string_view text,
                                       std::int64_t minimum, std::int64_t maximum);

/// Bytes: 24GiB, 1.5MiB (×1024), 24GB (×1000), 4G (as 4GiB), or a plain number.
std::int64_t size_parse(std::string_view flag, std::string_view text);

/// A finite number from `minimum` to `maximum`.
double number_parse(std::string_view flag, std::string_view text, double minimum, double maximum);

/// A finite number above 0.
double positive_parse(std::string_view flag, std::string_view text);

/// The index of `text` in `choices`.
std::size_t choice_parse(std::string_view flag, std::string_view text,
                         std::span<const std::string_view> choices);

/// f32 or bf16.
DType dtype_parse(std::string_view flag, std::string_view text);

/// A flag that takes one value, kept as text.
struct TextFlag {
  CLI::Option* option = nullptr;
  std::string text;

  /// `value` is the placeholder in the help; `fallback` is the text when the flag is absent.
  void add(CLI::App& app, const std::string& name, const std::string& value,
           const std::string& help, const std::string& fallback = "");
  bool given() const { return option != nullptr && option->count() > 0; }
};

/// `--threads` and `--version`, which every command has.
class CommonFlags {
 public:
  void add(CLI::App& app);
  /// As given to this command or, before its name, to a parent; 0 (one per core) unless given.
  int threads() const;

 private:
  const CLI::App* app_ = nullptr;
  TextFlag threads_;
};

/// `--preset`, one flag for each knob of the mechanism, and `--scale`.
class KnobFlags {
 public:
  enum class MethodFlag { yes, no };
  enum class ScaleFlag { yes, no };

  /// Commands that run a model have no `--scale`: it is the model's own.
  void add(CLI::App& app, MethodFlag method_flag, ScaleFlag scale_flag = ScaleFlag::yes);
  /// `base`, or the preset where one is named, with the single flags applied.
  Settings apply(const Settings& base) const;
  /// The same for each layer of a model.
  std::vector<Settings> apply(const std::vector<Settings>& layers) const;
  /// The softmax scale given, else `base`.
  double scale(double base) const;
  /// The flags that were given, checked, for settings that come from a file.
  std::vector<SettingOverride> overrides() const;

 private:
  struct Knob {
    const SettingField* field;
    TextFlag flag;
  };
  TextFlag preset_;
  TextFlag scale_;
  std::deque<Knob> knobs_;  // a deque: the parser keeps addresses of the texts
};

/// The names of all shapes, as a placeholder: a|b|c.
std::string shape_names();

/// The object of a settings file: {"method": "lca", "group": 16, …}.
nlohmann::ordered_json settings_json(const Settings& settings);

/// The same for all layers of a model: one object, or a list where they differ.
nlohmann::ordered_json settings_json(const std::vector<Settings>& layers);

/// Every setting in one line, named like the flags: "group 16, window 1024, …".
std::string settings_line(const Settings& settings);
/// The same for all layers of a model; says so where they differ.
std::string settings_line(const std::vector<Settings>& layers);

/// Prints it as one line; invalid UTF-8 in its texts is replaced.
void print_json(const nlohmann::ordered_json& json);

}  // namespace lca::cli
