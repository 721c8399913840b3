#pragma once
/// Every knob of the mechanism, with the defaults of preset `training`.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

enum class MethodKind : std::uint8_t { lca = 0, dense = 1, window = 2 };
enum class Summary : std::uint8_t { streaming = 0, prompt = 1 };
enum class HeadReduce : std::uint8_t { mean = 0, sum = 1, max = 2 };
enum class Pool : std::uint8_t { weighted = 0, mean = 1, max = 2, select = 3 };
enum class Mass : std::uint8_t { none = 0, count = 1, score = 2 };
enum class Positions : std::uint8_t { token = 0, entry = 1 };

/// How a GPU stores representatives: as they are, or in 8 bits with scales (mechanism §7).
enum class GroupStorage : std::uint8_t { bf16 = 0, fp8 = 1, int8 = 2 };

/// How a CPU stores cache rows: in the cache's dtype, or in 8 bits with scales, all but the sink
/// (mechanism §7).
enum class CacheStorage : std::uint8_t { plain = 0, int8 = 1 };

/// Settings of one attention layer (mechanism §2–§6, §10).
struct Settings {
  MethodKind method = MethodKind::lca;
  std::int64_t group = 16;            ///< g, tokens in a group
  std::int64_t window = 1024;         ///< w, tokens that always stay exact
  std::int64_t sink = 0;              ///< s, leading tokens that are never condensed
  std::int64_t summary_queries = 16;  ///< n_q, queries whose mean scores a group
  Summary summary = Summary::streaming;
  HeadReduce head_reduce = HeadReduce::mean;
  Pool semantic_pool = Pool::weighted;
  Pool positional_pool = Pool::select;
  Mass mass = Mass::none;
  Positions positions = Positions::token;  ///< what RoPE counts (mechanism §10)

  /// Throws Error naming the first field that is out of range.
  void validate() const;

  bool operator==(const Settings&) const = default;
};

/// The settings of preset `paper`, `training` or `training-free`; throws Error that lists the
/// names.
Settings settings_preset(std::string_view name);

/// Names of all presets.
const std::vector<std::string_view>& settings_presets();

/// Changes the field `name` (spelled as in a settings file: "group", "semantic_pool", …) to the
/// value written in `text`; throws Error naming the field and what it takes.
void settings_set(Settings& settings, std::string_view name, std::string_view text);

/// A knob as files and flags know it.
struct SettingField {
  std::string_view name;                       ///< as in a settings file, with underscores
  std::string_view help;                       ///< one line for `--help`
  bool is_integer;                             ///< else one of `choices`
  std::int64_t minimum;                        ///< smallest integer allowed
  std::vector<std::string_view> choices;       ///< names of the values, in the enum's order
  std::int64_t (*get)(const Settings&);        ///< the integer, or the index into `choices`
  void (*set)(Settings&, std::int64_t value);  ///< the same, unchecked
};

/// All knobs, in the order of the settings file.
const std::vector<SettingField>& setting_fields();

}  // namespace lca
