#pragma once
/// Settings as the JSON object of the key `lca`, in operator files and in a checkpoint's config.

#include <lca/settings.h>
#include <lca/shape.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// What such an object says.
struct SettingsObject {
  Settings settings;
  std::optional<double> scale;            ///< only in operator files
  std::vector<std::int64_t> prefill;      ///< only in operator files; empty: not given
  std::optional<RopeLayout> rope_layout;  ///< only in operator files

  bool operator==(const SettingsObject&) const = default;
};

/// Which fields an object may have.
enum class SettingsScope {
  layer,    ///< those of Settings
  op_file,  ///< and `scale`, `prefill` and `rope_layout`
};

/// Reads the object; a missing field takes the value of preset `training`. Throws Error that begins
/// with `where` and names the field.
SettingsObject settings_from_json(std::string_view text, std::string_view where,
                                  SettingsScope scope);

/// The object of a checkpoint or adapter, where any field may be a list with one value per layer:
/// the settings of each of `layers` layers. Throws Error that begins with `where`.
std::vector<Settings> settings_layers_from_json(std::string_view text, std::string_view where,
                                                std::int64_t layers);

/// A setting from the command line, with its file name ("semantic_pool") and text. Besides the
/// fields of Settings there are "preset" (replaces them all; applied first, wherever it stands),
/// "scale" and "prefill" ("128,64").
struct SettingOverride {
  std::string name;
  std::string text;
};

/// Changes what a file says to what the command line says; throws Error naming the setting.
void settings_override(SettingsObject& object, std::span<const SettingOverride> overrides);

/// The object with every field of Settings, and those of operator files where given, on one line.
std::string settings_to_json(const SettingsObject& object);

}  // namespace lca
