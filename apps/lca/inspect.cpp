/// `lca inspect`: facts about a model and the size of its cache, without loading its weights.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "formats/adapter.h"
#include "model_flags.h"
#include "models/weight_packing.h"
#include "terminal.h"
#include "trained_length.h"

#include <lca/cache.h>
#include <lca/chat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInspectExamples =
    "Cache sizes are for bf16. LCA's cache per 1K tokens is what each further 1K adds once the "
    "window\n"
    "is full.\n"
    "\n"
    "Examples:\n"
    "  lca inspect smollm2\n"
    "  lca inspect path/to/folder --json\n"
    "  lca inspect model.gguf --group 32 --window 2K";

struct InspectFlags {
  ModelArgument model;
  CommonFlags common;
  KnobFlags knobs;
  WeightsFlag packing;
  AdapterFlag adapter;
  bool json = false;
};

/// Cache size of one method, all layers together.
struct CacheSize {
  double per_1k = 0;
  double at_128k = 0;
};

/// A value that a checkpoint may lack or that cannot be read.
struct Maybe {
  std::string value;
  std::string error;  // empty if there is a value

  template <typename Read>
  static Maybe of(const Read& read) {
    try {
      return {read(), ""};
    } catch (const Error& error) {
      return {"", error.what()};
    }
  }
  Json json() const { return error.empty() ? Json(value) : Json(); }
  std::string text() const { return error.empty() ? value : "none: " + error; }
};

struct Facts {
  std::string path, format;
  ModelConfig config;
  std::int64_t parameters = 0;
  std::size_t weight_bytes = 0;  // after packing
  std::string packing;
  std::string adapter;                               // its folder; empty: none
  std::size_t adapter_bytes = 0;                     // beside the weights
  bool trained = false;                              // with the settings it carries
  std::map<std::string, std::int64_t> weight_types;  // tensors of each
  std::vector<std::int32_t> end_tokens;
  Maybe tokenizer, chat_format;
  std::vector<std::string> warnings;  // of the tokenizer
  std::vector<Settings> settings;
  CacheSize dense, lca;
};

CacheSize cache_size(const ModelConfig& config, const std::vector<Settings>& layers) {
  constexpr std::int64_t kThousand = 1024;
  CacheSize size;
  for (const Settings& settings : layers) {
    const LayerSpec spec{config.attention, settings, DType::bf16, config.softmax_scale(), {}};
    // Measured over whole groups at a length far beyond the window, where growth is linear.
    const std::int64_t begin = settings.sink + settings.window + kThousand * settings.group;
    const std::int64_t end = begin + kThousand * settings.group;
    const auto growth = static_cast<double>(cache_bytes(spec, end) - cache_bytes(spec, begin));
    size.per_1k += growth / static_cast<double>(settings.group);
    size.at_128k += static_cast<double>(cache_bytes(spec, 128 * kThousand));
  }
  return size;
}

/// Number of parameters; a tied head counts once.
std::int64_t parameters_of(const Checkpoint& checkpoint) {
  const std::optional<StoredTensor> head = checkpoint.find("lm_head.weight");
  const std::optional<StoredTensor> embedding = checkpoint.find("model.embed_tokens.weight");
  const bool again = checkpoint.config().tied && head && embedding && head->data != embedding->data;
  std::int64_t count = again ? -head->values() : 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool frequencies = tensor.name.starts_with("rope_") || tensor.name.ends_with("inv_freq");
    if (!frequencies) count += tensor.values();
  }
  return count;
}

Facts facts_of(const Checkpoint& checkpoint, const InspectFlags& flags) {
  Facts facts;
  facts.path = checkpoint.path().string();
  facts.format = checkpoint.kind() == Checkpoint::Kind::gguf ? "gguf" : "huggingface";
  facts.config = checkpoint.config();
  facts.parameters = parameters_of(checkpoint);
  const WeightPacking packing = flags.packing.read();
  packing_require(checkpoint, packing);
  facts.weight_bytes = weight_bytes(checkpoint, packing);
  facts.packing = packing_name(packing);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    ++facts.weight_types[std::string(packed_type_info(tensor.type).name)];
  }
  facts.end_tokens = checkpoint.end_tokens();
  facts.tokenizer = Maybe::of([&] {
    const Tokenizer tokenizer = checkpoint.tokenizer();
    facts.warnings = tokenizer.warnings();
    return tokenizer.describe();
  });
  facts.chat_format = Maybe::of([&] {
    const auto name = architecture_name(facts.config.architecture);
    return std::string(chat_format_name(chat_format_detect(checkpoint.chat_template(), name)));
  });
  const Settings asked = flags.knobs.apply(Settings{});
  facts.adapter = flags.adapter.folder(flags.model.text(), {&asked, 1});
  facts.trained = !facts.config.lca.empty();
  if (!facts.adapter.empty()) {
    const Adapter adapter = Adapter::open(facts.adapter, facts.config.layers);
    facts.adapter_bytes = adapter_bytes(adapter, ProductType::bf16);
    facts.trained = facts.trained || !adapter.settings().empty();
  }
  facts.settings = flags.knobs.apply(settings_of(checkpoint, facts.adapter));
  std::vector<Settings> dense = facts.settings;
  for (Settings& settings : dense) settings.method = MethodKind::dense;
  facts.lca = cache_size(facts.config, facts.settings);
  facts.dense = cache_size(facts.config, dense);
  return facts;
}

Json shape_json(const ModelConfig& config) {
  const AttentionShape& shape = config.attention;
  if (shape.form == Form::gqa) return {{"key", shape.d_rope}, {"value", shape.d_value}};
  return {{"latent", shape.d_latent},
          {"rope", shape.d_rope},
          {"nope", shape.d_nope},
          {"value", shape.d_value},
          {"query_latent", config.query_latent}};
}

Json rope_json(const RopeConfig& rope) {
  Json json = {{"type", rope_kind_name(rope.kind)},
               {"base", rope.base},
               {"width", rope.width},
               {"layout", rope.layout == RopeLayout::halves ? "halves" : "adjacent"}};
  if (rope.kind != RopeKind::standard) json["factor"] = rope.factor;
  if (rope.original_length > 0) json["original_length"] = rope.original_length;
  return json;
}

Json experts_json(const ExpertConfig& experts) {
  if (experts.count == 0) return {};
  return {{"count", experts.count},
          {"per_token", experts.per_token},
          {"width", experts.width},
          {"shared", experts.shared},
          {"dense_layers", experts.dense_layers}};
}

void print_facts_json(const Facts& facts) {
  const ModelConfig& config = facts.config;
  Json json = {{"path", facts.path},
               {"format", facts.format},
               {"architecture", architecture_name(config.architecture)},
               {"parameters", facts.parameters},
               {"layers", config.layers},
               {"hidden", config.hidden},
               {"feed_forward", config.feed_forward},
               {"attention", config.attention.form == Form::mla ? "mla" : "gqa"},
               {"heads", config.attention.heads},
               {"kv_heads", config.attention.kv_heads},
               {"head_widths", shape_json(config)},
               {"vocabulary", config.vocabulary},
               {"context", config.context},
               {"longest_in_range", longest_in_range_json(config.context, facts.settings)},
               {"weight_bytes", facts.weight_bytes},
               {"weight_types", facts.weight_types},
               {"weight_packing", facts.packing},
               {"adapter", facts.adapter.empty() ? Json() : Json(facts.adapter)},
               {"adapter_bytes", facts.adapter_bytes},
               {"rope", rope_json(config.rope)},
               {"experts", experts_json(config.experts)},
               {"tied", config.tied},
               {"tokenizer", facts.tokenizer.json()}};
  if (!facts.tokenizer.error.empty()) json["tokenizer_error"] = facts.tokenizer.error;
  if (!facts.warnings.empty()) json["tokenizer_warnings"] = facts.warnings;
  json["chat_format"] = facts.chat_format.json();
  if (!facts.chat_format.error.empty()) json["chat_format_error"] = facts.chat_format.error;
  json["end_tokens"] = facts.end_tokens;
  json["lca"] = config.lca.empty() ? Json() : settings_json(config.lca);
  json["settings"] = settings_json(facts.settings);
  json["cache_bytes_per_1k_tokens"] = {{"dense", std::llround(facts.dense.per_1k)},
                                       {"lca", std::llround(facts.lca.per_1k)}};
  json["cache_bytes_at_128k_tokens"] = {{"dense", std::llround(facts.dense.at_128k)},
                                        {"lca", std::llround(facts.lca.at_128k)}};
  print_json(json);
}

std::string heads_text(const ModelConfig& config) {
  const AttentionShape& shape = config.attention;
  if (shape.form == Form::gqa) {
    return fmt::format("{} heads of {}, {} KV heads", shape.heads, shape.d_rope, shape.kv_heads);
  }
  return fmt::format("MLA: {} heads, latent {}, RoPE key {}, key {}, value {}", shape.heads,
                     shape.d_latent, shape.d_rope, shape.d_nope, shape.d_value);
}

std::string rope_text(const RopeConfig& rope) {
  std::string text = fmt::format("{}, base {}", rope_kind_name(rope.kind), rope.base);
  if (rope.kind != RopeKind::standard) text += fmt::format(", factor {}", rope.factor);
  return text;
}

std::string weights_text(const Facts& facts) {
  std::vector<std::string> types;
  for (const auto& [name, count] : facts.weight_types) {
    types.push_back(fmt::format("{} × {}", count, name));
  }
  return fmt::format(
      "{} ({}{})", bytes_text(static_cast<double>(facts.weight_bytes)),
      facts.packing == "keep" ? "" : fmt::format("packed to {} from ", facts.packing),
      fmt::join(types, ", "));
}

std::string cache_text(double dense, double lca) {
  return fmt::format("dense {}, LCA {} ({}×)", bytes_text(dense), bytes_text(lca, dense),
                     number_text(dense / lca));
}

void print_facts(const Facts& facts) {
  const ModelConfig& config = facts.config;
  const auto line = [](std::string_view label, std::string_view text) {
    print(fmt::format("{:<22}{}\n", label, text_printable(text, 2000)));
  };
  line("path", facts.path);
  line("format", facts.format);
  line("architecture", architecture_name(config.architecture));
  line("parameters",
       fmt::format("{} million{}", number_text(static_cast<double>(facts.parameters) / 1e6),
                   config.tied ? ", head tied to the embedding" : ""));
  line("layers", fmt::format("{}, hidden {}, feed-forward {}", config.layers, config.hidden,
                             config.feed_forward));
  line("attention", heads_text(config));
  if (config.experts.count > 0) {
    line("experts", fmt::format("{} of {} a token, {} shared", config.experts.per_token,
                                config.experts.count, config.experts.shared));
  }
  line("vocabulary", fmt::format("{}", config.vocabulary));
  line("context", trained_text(config.context, facts.settings));
  line("rope", rope_text(config.rope));
  line("weights", weights_text(facts));
  if (!facts.adapter.empty()) {
    line("adapter", fmt::format("{}, {} beside them", facts.adapter,
                                bytes_text(static_cast<double>(facts.adapter_bytes))));
  }
  line("tokenizer", facts.tokenizer.text());
  for (const std::string& warning : facts.warnings) line("", "warning: " + warning);
  line("chat format", facts.chat_format.text());
  line("end tokens", fmt::format("{}", fmt::join(facts.end_tokens, ", ")));
  line("settings",
       fmt::format("{}{}", settings_line(facts.settings), facts.trained ? " (from training)" : ""));
  line("cache per 1K tokens",
       cache_text(facts.dense.per_1k, facts.lca.per_1k) + " for each beyond the window");
  line("cache at 128K tokens", cache_text(facts.dense.at_128k, facts.lca.at_128k));
}

void run(const InspectFlags& flags) {
  flags.common.threads();
  flags.packing.read();
  flags.knobs.apply(Settings{});
  const Facts facts = facts_of(Checkpoint::open(flags.model.path()), flags);
  flags.json ? print_facts_json(facts) : print_facts(facts);
}

}  // namespace

Command inspect_command(CLI::App& parent) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* app = parent.add_subcommand("inspect", "Facts about a model and the size of its cache");
  app->footer(kInspectExamples);
  flags->model.add(*app);
  flags->adapter.add(*app, "use the settings of this adapter");
  flags->packing.add(*app);
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::yes, KnobFlags::ScaleFlag::no);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
