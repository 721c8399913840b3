#include "formats/config_rope.h"

#include "core/error.h"
#include "core/text.h"

#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <optional>

namespace lca {
namespace {

constexpr std::array kKinds = {RopeKind::standard, RopeKind::linear,   RopeKind::dynamic,
                               RopeKind::yarn,     RopeKind::longrope, RopeKind::llama3};
constexpr std::int64_t kLongestOriginal = std::numeric_limits<std::int32_t>::max();

RopeKind kind_read(const JsonFields& rope) {
  // The newer name of the field is the one that counts where both are there.
  const std::string_view name = rope.has("rope_type") ? "rope_type" : "type";
  const std::optional<std::string> text = rope.text_if(name);
  if (!text) return RopeKind::standard;
  std::vector<std::string_view> names;
  for (const RopeKind kind : kKinds) {
    if (rope_kind_name(kind) == *text) return kind;
    names.push_back(rope_kind_name(kind));
  }
  fail_input("{}: {} \"{}\" is not supported; these are: {}", rope.where(), name,
             text_printable(*text), fmt::join(names, ", "));
}

/// A number that the kind cannot do without.
double number_need(const JsonFields& rope, std::string_view name, RopeKind kind) {
  const std::optional<double> value = rope.number_if(name, kSmallestPositive);
  if (!value) {
    fail_input("{}: rope \"{}\" needs field \"{}\"", rope.where(), rope_kind_name(kind), name);
  }
  return *value;
}

/// A number where both 0 and null mean the default.
double number_or(const JsonFields& rope, std::string_view name, double fallback) {
  const double value = rope.number_if(name, 0).value_or(0);
  return value != 0 ? value : fallback;
}

void check_whole(const JsonFields& fields) {
  const std::optional<double> part = fields.number_if("partial_rotary_factor", 0);
  if (part && *part != 1) {
    fail_input("{}: partial_rotary_factor {} is not supported, only 1", fields.where(), *part);
  }
}

void kind_fields_read(RopeConfig& config, const JsonFields& rope, std::int64_t context) {
  const double stretch = static_cast<double>(context) / static_cast<double>(config.original_length);
  switch (config.kind) {
    case RopeKind::standard:
      break;
    case RopeKind::linear:
    case RopeKind::dynamic:
      config.factor = number_need(rope, "factor", config.kind);
      break;
    case RopeKind::yarn:
      // null asks for the ratio of the lengths; a field that is not there is a mistake.
      if (rope.find("factor") == nullptr) number_need(rope, "factor", config.kind);
      config.factor = rope.number_if("factor", kSmallestPositive).value_or(stretch);
      config.attention_factor = rope.number_if("attention_factor", kSmallestPositive);
      config.beta_fast = number_or(rope, "beta_fast", 32);
      config.beta_slow = number_or(rope, "beta_slow", 1);
      config.mscale = rope.number_if("mscale", 0);
      config.truncate = rope.boolean("truncate", true);
      break;
    case RopeKind::longrope: {
      config.factor = rope.number_if("factor", kSmallestPositive).value_or(stretch);
      config.attention_factor = rope.number_if("attention_factor", kSmallestPositive);
      const auto factors_need = [&](std::string_view name) {
        std::optional<std::vector<double>> factors = rope.numbers_if(name);
        if (!factors) fail_input("{}: rope \"longrope\" needs field \"{}\"", rope.where(), name);
        return std::move(*factors);
      };
      config.short_factors = factors_need("short_factor");
      config.long_factors = factors_need("long_factor");
      break;
    }
    case RopeKind::llama3:
      config.factor = number_need(rope, "factor", config.kind);
      config.low_frequency_factor = number_need(rope, "low_freq_factor", config.kind);
      config.high_frequency_factor = number_need(rope, "high_freq_factor", config.kind);
      break;
  }
  // MLA scales its scores by it whatever the kind.
  if (config.kind != RopeKind::standard) {
    config.mscale_all_dim = rope.number_if("mscale_all_dim", 0);
  }
}

}  // namespace

RopeConfig rope_config_from_json(const JsonFields& config, std::int64_t width,
                                 std::int64_t context) {
  RopeConfig result;
  result.width = width;
  result.base = config.number_if("rope_theta", kSmallestPositive).value_or(result.base);
  check_whole(config);

  // An empty object counts as none; of two, transformers takes the older spelling.
  std::optional<JsonFields> rope = config.object_if("rope_scaling");
  if (!rope || rope->all().empty()) rope = config.object_if("rope_parameters");
  if (!rope || rope->all().empty()) return result;

  for (const JsonField& field : rope->all()) {
    if (field.kind == JsonField::Kind::object) {
      fail_input("{}: \"{}\" is an object: different rotations per layer are not supported",
                 rope->where(), text_printable(field.name));
    }
  }
  check_whole(*rope);
  if (rope->has("mrope_section")) {
    fail_input("{}: mrope_section is not supported", rope->where());
  }
  result.kind = kind_read(*rope);
  result.base = rope->number_if("rope_theta", kSmallestPositive).value_or(result.base);
  if (result.kind == RopeKind::standard || result.kind == RopeKind::linear) {
    result.original_length = 0;
  } else if (result.kind == RopeKind::dynamic) {
    result.original_length = context;
  } else {
    // Some files have the original length outside, where it counts more than inside.
    constexpr std::string_view kOriginal = "original_max_position_embeddings";
    const std::optional<std::int64_t> outside = config.integer_if(kOriginal, 1, kLongestOriginal);
    const std::optional<std::int64_t> inside = rope->integer_if(kOriginal, 1, kLongestOriginal);
    result.original_length = outside.value_or(inside.value_or(context));
  }
  kind_fields_read(result, *rope, context);
  return result;
}

}  // namespace lca
