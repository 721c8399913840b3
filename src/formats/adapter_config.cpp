#include "formats/adapter_config.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/json_fields.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace lca {
namespace {

constexpr std::int64_t kHighestRank = 1 << 16;
constexpr std::size_t kMostPatterns = 4096;
constexpr std::size_t kLongestPattern = 1000;
constexpr std::uint32_t kMatchSteps = 20'000;
constexpr std::uint32_t kMatchKibibytes = 4096;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct DataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// Whether a pattern is a name: letters, digits, underscores, and dots, which as a regular
/// expression match any character.
bool is_plain(std::string_view pattern) {
  return std::ranges::all_of(pattern, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  });
}

bool plain_matches(std::string_view pattern, std::string_view module) {
  if (pattern.size() > module.size()) return false;
  const std::string_view front = module.substr(0, module.size() - pattern.size());
  if (!front.empty() && front.back() != '.') return false;
  const std::string_view back = module.substr(front.size());
  return std::ranges::equal(pattern, back, [](char p, char m) { return p == m || p == '.'; });
}

bool regex_matches(const pcre2_code* code, std::string_view module, std::string_view pattern,
                   std::string_view where) {
  const std::unique_ptr<pcre2_match_data, DataFree> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, ContextFree> context(
      pcre2_match_context_create(nullptr));
  if (!data || !context) fail_memory("out of memory");
  pcre2_set_match_limit(context.get(), kMatchSteps);
  pcre2_set_depth_limit(context.get(), kMatchSteps);
  pcre2_set_heap_limit(context.get(), kMatchKibibytes);
  const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0,
                                0, data.get(), context.get());
  if (count < 0 && count != PCRE2_ERROR_NOMATCH) {
    fail_input("{}: pattern \"{}\" cannot be matched (error {}); write a simpler one", where,
               text_printable(pattern), count);
  }
  return count >= 0;
}

}  // namespace

struct ModulePatterns::Pattern {
  std::string text;
  std::string where;
  std::unique_ptr<pcre2_code, CodeFree> code;  // none where the text is plain
  double value = 0;
};

ModulePatterns::ModulePatterns() = default;
ModulePatterns::~ModulePatterns() = default;
ModulePatterns::ModulePatterns(ModulePatterns&&) noexcept = default;
ModulePatterns& ModulePatterns::operator=(ModulePatterns&&) noexcept = default;

void ModulePatterns::add(std::string_view pattern, double value, std::string_view where) {
  if (patterns_.size() == kMostPatterns || pattern.size() > kLongestPattern) {
    fail_input("{}: there may be {} patterns of {} bytes each", where, kMostPatterns,
               kLongestPattern);
  }
  Pattern entry{std::string(pattern), std::string(where), nullptr, value};
  if (!is_plain(pattern)) {
    const std::string regex = fmt::format("^(?:.*\\.)?(?:{})$", pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    entry.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                   PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
    if (!entry.code) {
      fail_input("{}: pattern \"{}\" is no regular expression (error {})", where,
                 text_printable(pattern), error);
    }
  }
  patterns_.push_back(std::move(entry));
}

double ModulePatterns::find(std::string_view module, double fallback) const {
  for (const Pattern& pattern : patterns_) {
    const bool matches =
        pattern.code ? regex_matches(pattern.code.get(), module, pattern.text, pattern.where)
                     : plain_matches(pattern.text, module);
    if (matches) return pattern.value;
  }
  return fallback;
}

namespace {

void switch_refuse(const JsonFields& fields, std::string_view name) {
  if (fields.boolean_if(name).value_or(false)) {
    fail_input("{}: {} true is not supported", fields.where(), name);
  }
}

/// Refuses a field that is there, unless it is null, false, or an empty list or object.
void presence_refuse(const JsonFields& fields, std::string_view name) {
  const JsonField* field = fields.find(name);
  if (field == nullptr || field->is_null()) return;
  const bool is_off =
      field->kind == JsonField::Kind::scalar
          ? field->scalar.kind == JsonScalar::Kind::boolean && !field->scalar.boolean
          : field->text == "[]" || field->text == "{}";
  if (!is_off) fail_input("{}: {} is not supported; leave it empty", fields.where(), name);
}

/// Some ways to begin a training change the base model too: what was trained then is no change to
/// the published one.
void start_refuse(const JsonFields& fields) {
  const JsonField* field = fields.find("init_lora_weights");
  if (field == nullptr || field->kind != JsonField::Kind::scalar ||
      field->scalar.kind != JsonScalar::Kind::text) {
    return;
  }
  for (const std::string_view name : {"pissa", "olora", "corda", "lora_ga", "loftq"}) {
    if (field->scalar.text.starts_with(name)) {
      fail_input(
          "{}: init_lora_weights {} changes the base model; convert the adapter to plain LoRA when "
          "saving it (PEFT: path_initial_model_for_weight_conversion)",
          fields.where(), field->describe());
    }
  }
}

void patterns_read(ModulePatterns& patterns, const JsonFields& fields, std::string_view name,
                   bool is_rank) {
  const std::optional<JsonFields> object = fields.object_if(name);
  if (!object) return;
  for (const JsonField& field : object->all()) {
    const double value = is_rank
                             ? static_cast<double>(object->integer(field.name, 0, 1, kHighestRank))
                             : object->number(field.name, 0, 0);
    patterns.add(field.name, value, object->where());
  }
}

}  // namespace

std::int64_t AdapterConfig::rank_of(std::string_view module) const {
  return static_cast<std::int64_t>(ranks.find(module, static_cast<double>(rank)));
}

double AdapterConfig::scale_of(std::string_view module) const {
  const auto divisor = static_cast<double>(rank_of(module));
  return alphas.find(module, alpha) / (by_root ? std::sqrt(divisor) : divisor);
}

AdapterConfig adapter_config_from_json(std::string_view text, std::string_view where) {
  const JsonFields fields = JsonFields::parse(text, where);
  const std::optional<std::string> type = fields.text_if("peft_type");
  if (!type) fail_input("{}: field \"peft_type\" is missing: not a PEFT adapter?", where);
  if (*type != "LORA") {
    fail_input("{}: peft_type \"{}\" is not supported, only LORA", where, text_printable(*type));
  }
  const std::optional<std::string> bias = fields.text_if("bias");
  if (bias && *bias != "none") {
    fail_input("{}: bias \"{}\" is not supported, only none", where, text_printable(*bias));
  }
  for (const char* name : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    switch_refuse(fields, name);
  }
  for (const char* name : {"modules_to_save", "target_parameters", "layer_replication",
                           "trainable_token_indices", "alora_invocation_tokens", "megatron_config",
                           "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"}) {
    presence_refuse(fields, name);
  }
  start_refuse(fields);

  AdapterConfig config;
  config.rank = fields.integer("r", 8, 1, kHighestRank);
  config.alpha = fields.number("lora_alpha", 8, 0);
  config.by_root = fields.boolean_if("use_rslora").value_or(false);
  patterns_read(config.ranks, fields, "rank_pattern", true);
  patterns_read(config.alphas, fields, "alpha_pattern", false);
  config.base_model = fields.text_if("base_model_name_or_path").value_or("");
  return config;
}

}  // namespace lca
