/// `lca plan`: how much memory a context takes, and the longest that fits a budget.

#include "arguments.h"
#include "attention/layout.h"
#include "command.h"
#include "core/error.h"
#include "terminal.h"

#include <lca/method.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

namespace lca::cli {
namespace {

constexpr const char* kExamples =
    "Counted are the cache of all layers and what attention needs beside it, one layer at a time;\n"
    "not the weights: give --budget what they leave.\n"
    "\n"
    "Examples:\n"
    "  lca plan --shape deepseek-v2-lite --length 128K\n"
    "  lca plan --shape qwen-7b --length 1M --budget 24GiB --group 32\n"
    "  lca plan --shape minicpm3 --length 64K --preset paper --json";

struct Flags {
  CommonFlags common;
  KnobFlags knobs;
  TextFlag shape, length, budget, dtype, chunk;
  bool json = false;
};

/// Bytes of one method at one length.
struct Cost {
  std::int64_t entries = 0;    // a layer
  std::int64_t cache = 0;      // all layers
  std::int64_t workspace = 0;  // attention's scratch, and tokens of the run not yet released
  std::int64_t hidden = 0;     // hidden states of the whole prompt, where the mode keeps them

  std::int64_t total() const { return cache + workspace + hidden; }
};

struct Planner {
  const NamedShape& model;
  LayerSpec spec;
  std::int64_t chunk;
  int threads;

  Cost cost(std::int64_t length) const {
    const Layout layout(spec.settings);
    const bool whole_prompt =
        spec.settings.method == MethodKind::lca && spec.settings.summary == Summary::prompt;
    // `prompt` mode cannot go chunk by chunk: a layer takes the whole prompt before it condenses.
    const std::int64_t run = whole_prompt ? length : std::min(chunk, length);
    const auto value_bytes = static_cast<std::int64_t>(dtype_bytes(spec.dtype));
    const std::int64_t entry_bytes = spec.shape.entry_values() * value_bytes;
    Cost cost;
    cost.entries = layout.groups(length) + length - layout.dropped(length);
    cost.cache = static_cast<std::int64_t>(cache_bytes(spec, length)) * model.layers;
    cost.workspace =
        static_cast<std::int64_t>(attention_workspace_bytes(spec, length, run, threads)) +
        std::min(run, layout.dropped(length)) * entry_bytes;
    cost.hidden = whole_prompt ? length * model.hidden * value_bytes : 0;
    return cost;
  }

  /// The most that is held on the way to `length`: a cache is largest just before it condenses.
  std::int64_t peak(std::int64_t length) const {
    const Layout layout(spec.settings);
    const std::int64_t groups = layout.groups(length);
    const std::int64_t now = cost(length).total();
    return groups == 0 ? now : std::max(now, cost(layout.group_exit(groups - 1)).total());
  }

  /// The longest context that never exceeds `budget`, up to kLongestLength; 0 where none fits.
  std::int64_t longest(std::int64_t budget) const {
    std::int64_t fits = 0, exceeds = kLongestLength + 1;
    while (exceeds - fits > 1) {
      const std::int64_t middle = fits + (exceeds - fits) / 2;
      (peak(middle) <= budget ? fits : exceeds) = middle;
    }
    return fits;
  }
};

struct Plan {
  Planner dense;
  Planner chosen;
  std::int64_t length;
  std::int64_t budget;  // 0: none given
};

std::string chosen_name(const Plan& plan) {
  return std::string(method_for(plan.chosen.spec.settings.method).name());
}

std::string ratio_text(std::int64_t dense, std::int64_t chosen) {
  if (chosen == 0) return "";
  return fmt::format("{}×", number_text(static_cast<double>(dense) / static_cast<double>(chosen)));
}

std::string longest_text(std::int64_t length) {
  if (length == 0) return "none";
  if (length == kLongestLength) return "over 1024G";
  if (length < 10 * 1024) return fmt::format("{}", length);
  const auto kilos = static_cast<double>(length) / 1024;
  return kilos < 1024 ? fmt::format("{} ({}K)", length, number_text(kilos))
                      : fmt::format("{} ({}M)", length, number_text(kilos / 1024));
}

void print_table(const Plan& plan) {
  const NamedShape& model = plan.dense.model;
  const Cost dense = plan.dense.cost(plan.length);
  const Cost chosen = plan.chosen.cost(plan.length);
  const std::string name = chosen_name(plan);

  Table table({"", "dense", name, "dense / " + name});
  const auto add_bytes = [&](const char* label, std::int64_t a, std::int64_t b) {
    const auto x = static_cast<double>(a), y = static_cast<double>(b);
    const double like = std::max(x, y);
    table.add({label, bytes_text(x, like), bytes_text(y, like), ratio_text(a, b)});
  };
  table.add({"entries a layer", fmt::format("{}", dense.entries), fmt::format("{}", chosen.entries),
             ratio_text(dense.entries, chosen.entries)});
  add_bytes("cache, all layers", dense.cache, chosen.cache);
  add_bytes("workspace, one layer at a time", dense.workspace, chosen.workspace);
  if (chosen.hidden > 0) add_bytes("hidden states of the prompt", dense.hidden, chosen.hidden);
  add_bytes("together", dense.total(), chosen.total());
  if (plan.budget > 0) {
    const std::int64_t a = plan.dense.longest(plan.budget), b = plan.chosen.longest(plan.budget);
    const auto budget = static_cast<double>(plan.budget);
    table.add({fmt::format("longest context in {}", bytes_text(budget)), longest_text(a),
               longest_text(b), ratio_text(a, b)});
  }
  print(fmt::format("{}: {} layers, {} tokens, {}, {} threads\n{}\n\n{}", model.name, model.layers,
                    length_text(plan.length), dtype_name(plan.dense.spec.dtype), plan.dense.threads,
                    settings_line(plan.chosen.spec.settings), table.text()));
}

nlohmann::ordered_json cost_json(const Planner& planner, const Plan& plan) {
  const Cost cost = planner.cost(plan.length);
  nlohmann::ordered_json json = {{"entries_per_layer", cost.entries},
                                 {"cache_bytes", cost.cache},
                                 {"workspace_bytes", cost.workspace},
                                 {"hidden_bytes", cost.hidden},
                                 {"total_bytes", cost.total()}};
  if (plan.budget > 0) {
    json["fits"] = cost.total() <= plan.budget;
    json["longest_context"] = planner.longest(plan.budget);
  }
  return json;
}

void print_json(const Plan& plan) {
  nlohmann::ordered_json json = {{"shape", plan.dense.model.name},
                                 {"layers", plan.dense.model.layers},
                                 {"length", plan.length},
                                 {"dtype", dtype_name(plan.dense.spec.dtype)},
                                 {"threads", plan.dense.threads},
                                 {"chunk", plan.dense.chunk},
                                 {"settings", settings_json(plan.chosen.spec.settings)}};
  if (plan.budget > 0) json["budget_bytes"] = plan.budget;
  json["dense"] = cost_json(plan.dense, plan);
  json[chosen_name(plan)] = cost_json(plan.chosen, plan);
  json["cache_ratio"] = static_cast<double>(plan.dense.cost(plan.length).cache) /
                        static_cast<double>(plan.chosen.cost(plan.length).cache);
  print(json.dump() + "\n");
}

void run(const Flags& flags) {
  if (!flags.shape.given()) {
    fail_input("--shape is missing; it takes one of {}", shape_names());
  }
  const NamedShape& model = named_shape(flags.shape.text);
  LayerSpec spec{model.shape, flags.knobs.apply(Settings{}), DType::bf16, 0};
  spec.dtype = dtype_parse("--dtype", flags.dtype.text);
  spec.scale = flags.knobs.scale(model.scale);
  spec.validate();
  LayerSpec dense = spec;
  dense.settings.method = MethodKind::dense;

  const std::int64_t chunk = count_parse("--chunk", flags.chunk.text, 1);
  const int threads = Context(flags.common.threads()).threads();
  const Plan plan{{model, dense, chunk, threads},
                  {model, spec, chunk, threads},
                  count_parse("--length", flags.length.text, 1),
                  flags.budget.given() ? size_parse("--budget", flags.budget.text) : 0};
  flags.json ? print_json(plan) : print_table(plan);
}

}  // namespace

Command plan_command(CLI::App& parent) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = parent.add_subcommand("plan", "How much memory a context takes, dense and LCA");
  app->footer(kExamples);
  flags->shape.add(*app, "--shape", shape_names(), "whose attention (required)");
  flags->length.add(*app, "--length", "N", "tokens of context", "128K");
  flags->budget.add(*app, "--budget", "SIZE",
                    "memory for it; prints the longest context that fits");
  flags->dtype.add(*app, "--dtype", "f32|bf16", "what the cache stores", "bf16");
  flags->chunk.add(*app, "--chunk", "N", "tokens prefilled at a time", "2K");
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::yes);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
