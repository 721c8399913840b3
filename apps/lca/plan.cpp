/// `lca plan`: how much memory a context needs, and the longest that fits a budget.

#include "arguments.h"
#include "attention/settings_kind.h"
#include "attention/trained_length.h"
#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "formats/adapter.h"
#include "formats/published.h"
#include "model_flags.h"
#include "models/weight_packing.h"
#include "plan_cost.h"
#include "plan_cuda.h"
#include "terminal.h"
#include "trained_length.h"
#include "where_flags.h"
#include "workload.h"

#include <lca/method.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace lca::cli {
namespace {

constexpr const char* kPlanExamples =
    "The plan counts the caches of all sessions and the scratch memory of attention in one layer.\n"
    "With MODEL its weights and its adapter are counted too; with --shape subtract them from "
    "--budget.\n"
    "On a GPU the plan is the peak of its memory: weights in bf16 (those of a shape too), caches,\n"
    "activations and scratch, and what the driver takes. No GPU is needed for it; where there is\n"
    "one, its free memory is the budget.\n"
    "\n"
    "Examples:\n"
    "  lca plan smollm2 --length 128K\n"
    "  lca plan smollm2 --sessions 200 --length 32K --cache int8\n"
    "  lca plan --shape deepseek-v2-lite --length 128K\n"
    "  lca plan --shape qwen-7b --length 1M --budget 24GiB --group 32\n"
    "  lca plan --shape minicpm3 --length 64K --preset paper --json\n"
    "  lca plan --shape deepseek-v2-lite --length 1M --device cuda --budget 141GB";

struct PlanFlags {
  ModelArgument model;
  CommonFlags common;
  KnobFlags knobs;
  WeightsFlag packing;
  CacheFlag cache;
  AdapterFlag adapter;
  TextFlag shape, length, budget, dtype, chunk, device, groups, sessions;
  bool json = false;
};

struct Plan {
  const PlanSubject& subject;
  PlanSubject as_dense;
  Planner dense;
  Planner chosen;
  std::int64_t chunk;
  int threads;
  std::int64_t length;
  std::int64_t sessions;
  std::int64_t budget;  // 0: none given
};

std::string chosen_name(const Plan& plan) {
  return std::string(method_for(plan.subject.layers.front().settings.method).name());
}

/// What the cache stores.
std::string storage_text(const LayerSpec& layer) {
  return layer.storage == CacheStorage::int8 ? "int8" : dtype_name(layer.dtype);
}

/// The rows about the length the model was trained for.
void add_trained(Table& table, const Plan& plan) {
  const std::int64_t trained = plan.subject.context;
  const std::vector<Settings> chosen = plan.subject.settings(), dense = plan.as_dense.settings();
  const auto add = [&](const std::string& label, std::int64_t a, std::int64_t b) {
    table.add(
        {label, longest_text(a), longest_text(b), b == kEndlessContext ? "" : ratio_text(a, b)});
  };
  add(fmt::format("positions, of {} trained for", count_text(trained)),
      positions_needed(dense, plan.length), positions_needed(chosen, plan.length));
  add("longest context within those", longest_context(dense, trained),
      longest_context(chosen, trained));
}

void print_table(const Plan& plan) {
  const PlanSubject& subject = plan.subject;
  const PlanCost dense = plan.dense.cost(plan.length);
  const PlanCost chosen = plan.chosen.cost(plan.length);
  const std::string name = chosen_name(plan);

  Table table({"", "dense", name, "dense / " + name});
  const auto add_bytes = [&](const char* label, std::int64_t a, std::int64_t b) {
    const auto x = static_cast<double>(a), y = static_cast<double>(b);
    const double like = std::max(x, y);
    table.add({label, bytes_text(x, like), bytes_text(y, like), ratio_text(a, b)});
  };
  table.add({"entries a layer", fmt::format("{}", dense.entries), fmt::format("{}", chosen.entries),
             ratio_text(dense.entries, chosen.entries)});
  if (subject.weights > 0) add_bytes("weights", dense.weights, chosen.weights);
  if (chosen.adapter > 0) add_bytes("adapter beside them", dense.adapter, chosen.adapter);
  add_bytes(plan.sessions == 1 ? "cache, all layers" : "caches of all sessions", dense.cache,
            chosen.cache);
  add_bytes("workspace, one layer at a time", dense.workspace, chosen.workspace);
  if (chosen.hidden > 0) add_bytes("hidden states of the prompt", dense.hidden, chosen.hidden);
  add_bytes("together", dense.total(), chosen.total());
  if (subject.context > 0) add_trained(table, plan);
  if (plan.budget > 0) {
    const std::int64_t a = plan.dense.longest(plan.budget), b = plan.chosen.longest(plan.budget);
    const auto budget = static_cast<double>(plan.budget);
    table.add({fmt::format("longest context in {}", bytes_text(budget)), longest_text(a),
               longest_text(b), ratio_text(a, b)});
    if (plan.sessions == 1) {
      const std::int64_t x = plan.dense.sessions(plan.length, plan.budget);
      const std::int64_t y = plan.chosen.sessions(plan.length, plan.budget);
      table.add({fmt::format("sessions of {} in {}", length_text(plan.length), bytes_text(budget)),
                 longest_text(x), longest_text(y), ratio_text(x, y)});
    }
  }
  const std::vector<Settings> settings = subject.settings();
  const std::string adapter =
      subject.adapter.empty() ? "" : "adapter " + path_printable(subject.adapter) + "\n";
  print(fmt::format("{}: {} layers, {}{} tokens, {}, {} threads\n{}{}\n{}\n{}",
                    path_printable(subject.name), subject.layers.size(),
                    plan.sessions == 1 ? "" : fmt::format("{} sessions of ", plan.sessions),
                    length_text(plan.length), storage_text(subject.layers.front()), plan.threads,
                    adapter, settings_line(settings),
                    subject.context > 0 ? trained_text(subject.context, settings) + "\n" : "",
                    table.text()));
}

nlohmann::ordered_json cost_json(const Planner& planner, const Plan& plan,
                                 const PlanSubject& subject) {
  const PlanCost cost = planner.cost(plan.length);
  nlohmann::ordered_json json = {
      {"weights_bytes", cost.weights},     {"adapter_bytes", cost.adapter},
      {"entries_per_layer", cost.entries}, {"cache_bytes", cost.cache},
      {"workspace_bytes", cost.workspace}, {"hidden_bytes", cost.hidden},
      {"total_bytes", cost.total()}};
  if (subject.context > 0) {
    json["positions"] = positions_needed(subject.settings(), plan.length);
    json["longest_in_range"] = longest_in_range_json(subject.context, subject.settings());
  }
  if (plan.budget > 0) {
    json["fits"] = cost.total() <= plan.budget;
    json["longest_context"] = planner.longest(plan.budget);
    if (plan.sessions == 1) {
      json["sessions_that_fit"] = planner.sessions(plan.length, plan.budget);
    }
  }
  return json;
}

void print_plan_json(const Plan& plan) {
  const PlanSubject& subject = plan.subject;
  nlohmann::ordered_json json;
  if (subject.path.empty()) {
    json["shape"] = subject.name;
  } else {
    json["model"] = subject.path;
    if (!subject.adapter.empty()) json["adapter"] = subject.adapter;
  }
  json["layers"] = subject.layers.size();
  json["length"] = plan.length;
  json["sessions"] = plan.sessions;
  json["dtype"] = dtype_name(subject.layers.front().dtype);
  json["cache"] = storage_text(subject.layers.front());
  json["threads"] = plan.threads;
  json["chunk"] = plan.chunk;
  json["settings"] = settings_json(subject.settings());
  if (subject.context > 0) json["context"] = subject.context;
  if (plan.budget > 0) json["budget_bytes"] = plan.budget;
  json["dense"] = cost_json(plan.dense, plan, plan.as_dense);
  json[chosen_name(plan)] = cost_json(plan.chosen, plan, subject);
  json["cache_ratio"] = static_cast<double>(plan.dense.cost(plan.length).cache) /
                        static_cast<double>(plan.chosen.cost(plan.length).cache);
  print_json(json);
}

PlanSubject shape_subject(const PlanFlags& flags, DType dtype) {
  const NamedShape& model = named_shape(flags.shape.text);
  const LayerSpec spec = workload_layer(model.shape, flags.knobs.apply(Settings{}), dtype,
                                        flags.knobs.scale(model.scale));
  return {std::string(model.name), "",
          std::vector<LayerSpec>(static_cast<std::size_t>(model.layers), spec), model.hidden};
}

PlanSubject model_subject(const PlanFlags& flags, DType dtype) {
  flags.knobs.apply(Settings{});  // report a wrong flag before a wrong file
  const Checkpoint checkpoint = Checkpoint::open(flags.model.path());
  const ModelConfig& config = checkpoint.config();
  PlanSubject subject{
      checkpoint.path().filename().string(), checkpoint.path().string(), {}, config.hidden};
  subject.context = config.context;
  const Settings asked = flags.knobs.apply(Settings{});
  subject.adapter = flags.adapter.folder(flags.model.text(), {&asked, 1});
  if (!subject.adapter.empty()) {
    const ProductType type = dtype == DType::bf16 ? ProductType::bf16 : ProductType::f32;
    subject.adapter_size = static_cast<std::int64_t>(
        adapter_bytes(Adapter::open(subject.adapter, config.layers), type));
  }
  const std::vector<Settings> base = settings_of(checkpoint, subject.adapter);
  for (const Settings& settings : flags.knobs.apply(base)) {
    // Not the model's own frequencies, which no size depends on.
    subject.layers.push_back(workload_layer(config.attention, settings, dtype,
                                            flags.knobs.scale(config.softmax_scale())));
  }
  const WeightPacking packing = flags.packing.read();
  packing_require(checkpoint, packing);
  subject.weights = static_cast<std::int64_t>(weight_bytes(checkpoint, packing));
  return subject;
}

void run_cuda(const PlanFlags& flags, int device, const PlanSubject& subject, std::int64_t length,
              std::int64_t budget) {
  static constexpr std::string_view kGroups[] = {"bf16", "fp8", "int8"};
  if (flags.dtype.given() && subject.layers.front().dtype != DType::bf16) {
    fail_incompatible("--dtype {}: the GPU computes in bf16", flags.dtype.text);
  }
  if (flags.packing.given()) fail_input("--weights is for the CPU; a GPU has them in bf16");
  if (flags.cache.read() != CacheStorage::plain) {
    fail_input("--cache int8 is for the CPU; on a GPU use --groups int8");
  }
  CudaPlanAsked asked;
  asked.name = subject.name;
  asked.path = subject.path;
  asked.config = subject.path.empty() ? published_config(flags.shape.text)
                                      : Checkpoint::open(flags.model.path()).config();
  asked.layers = subject.layers;
  asked.device = device;
  asked.groups = static_cast<GroupStorage>(choice_parse("--groups", flags.groups.text, kGroups));
  asked.length = length;
  if (flags.chunk.given()) asked.chunk = count_parse("--chunk", flags.chunk.text, 1);
  asked.sessions = count_parse("--sessions", flags.sessions.text, 1, kPlannedSessions);
  asked.budget = budget;
  asked.json = flags.json;
  plan_cuda_print(asked);
}

void run(const PlanFlags& flags) {
  if (flags.model.given() == flags.shape.given()) {
    fail_input("give either MODEL (a folder, a .gguf file, or smollm2) or --shape {}",
               shape_names());
  }
  flags.packing.read();
  if (flags.packing.given() && !flags.model.given()) {
    fail_input("--weights packs those of MODEL; a shape has none");
  }
  const std::optional<int> gpu = plan_device_parse(flags.device.text);
  cuda_only_check(flags.groups, "--groups", gpu.has_value());
  const DType dtype = dtype_parse("--dtype", flags.dtype.text);
  const std::int64_t chunk = count_parse("--chunk", flags.chunk.text, 1);
  const std::int64_t length = count_parse("--length", flags.length.text, 1);
  const std::int64_t sessions = count_parse("--sessions", flags.sessions.text, 1, kMostSessions);
  const std::int64_t budget = flags.budget.given() ? size_parse("--budget", flags.budget.text) : 0;
  const int threads = Context(flags.common.threads()).threads();
  PlanSubject subject =
      flags.model.given() ? model_subject(flags, dtype) : shape_subject(flags, dtype);
  for (LayerSpec& layer : subject.layers) layer.storage = flags.cache.read();
  if (gpu) {
    run_cuda(flags, *gpu, subject, length, budget);
    return;
  }
  const PlanSubject dense = subject.with_method(MethodKind::dense);
  const Plan plan{subject,
                  dense,
                  Planner(dense, chunk, threads, sessions),
                  Planner(subject, chunk, threads, sessions),
                  chunk,
                  threads,
                  length,
                  sessions,
                  budget};
  flags.json ? print_plan_json(plan) : print_table(plan);
}

}  // namespace

std::string ratio_text(std::int64_t dense, std::int64_t chosen) {
  if (chosen == 0) return "";
  return fmt::format("{}×", number_text(static_cast<double>(dense) / static_cast<double>(chosen)));
}

std::string longest_text(std::int64_t length) {
  if (length == 0) return "none";
  if (length == kEndlessContext) return "any";
  if (length == kLongestLength) return "over 1024G";
  if (length < 10 * 1024) return fmt::format("{}", length);
  const auto kilos = static_cast<double>(length) / 1024;
  return kilos < 1024 ? fmt::format("{} ({}K)", length, number_text(kilos))
                      : fmt::format("{} ({}M)", length, number_text(kilos / 1024));
}

Command plan_command(CLI::App& parent) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = parent.add_subcommand("plan", "How much memory a context needs, dense and LCA");
  app->footer(kPlanExamples);
  flags->model.add(*app, ModelArgument::Need::optional);
  flags->shape.add(*app, "--shape", shape_names(), "a published model's attention instead");
  flags->adapter.add(*app, "count this adapter and use its settings");
  flags->packing.add(*app);
  flags->cache.add(*app);
  flags->length.add(*app, "--length", "N", "tokens of context", "128K");
  flags->budget.add(*app, "--budget", "SIZE",
                    "memory available; prints the longest context that fits");
  flags->dtype.add(*app, "--dtype", "f32|bf16", "type of the cache", "bf16");
  flags->chunk.add(*app, "--chunk", "N", "tokens prefilled at a time; on a GPU 16K unless given",
                   "2K");
  flags->device.add(*app, "--device", "cpu|cuda|cuda:N|auto", "whose memory", "cpu");
  flags->groups.add(*app, "--groups", "bf16|fp8|int8", "cuda: how representatives are stored",
                    "bf16");
  flags->sessions.add(*app, "--sessions", "N", "sessions of that length", "1");
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::yes);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
