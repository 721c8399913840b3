/// `lca plan --device cuda`: what a model, its sessions and its work take of a GPU's memory.

#include "plan_cuda.h"

#include "attention/layout.h"
#include "core/cuda/device_name.h"
#include "core/error.h"
#include "core/text.h"
#include "models/cuda/cuda_memory.h"
#include "terminal.h"

#include <lca/method.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<LayerSpec> cuda_dense_layers(std::vector<LayerSpec> layers) {
  for (LayerSpec& layer : layers) layer.settings.method = MethodKind::dense;
  return layers;
}

/// One method's part of a plan.
class CudaCost {
 public:
  CudaCost(const CudaPlan& plan, const CudaPlanAsked& asked, std::vector<LayerSpec> layers)
      : plan_(plan), asked_(asked), layers_(std::move(layers)) {}

  CudaMemory memory() const { return memory(asked_.length, asked_.sessions); }

  std::int64_t entries() const {
    std::int64_t most = 0;
    for (const LayerSpec& layer : layers_) {
      most = std::max(most, Layout(layer.settings).entries(asked_.length));
    }
    return most;
  }

  /// The longest context that fits, of so many sessions; 0 where none does.
  std::int64_t longest(std::int64_t budget) const {
    return last_that_fits(CudaPlan::longest(), budget,
                          [&](std::int64_t length) { return memory(length, asked_.sessions); });
  }

  /// Sessions of the length asked for that fit.
  std::int64_t sessions(std::int64_t budget) const {
    return last_that_fits(kPlannedSessions, budget,
                          [&](std::int64_t count) { return memory(asked_.length, count); });
  }

 private:
  CudaMemory memory(std::int64_t length, std::int64_t sessions) const {
    return plan_.memory({layers_, asked_.groups, length, asked_.chunk, sessions});
  }

  template <typename Memory>
  static std::int64_t last_that_fits(std::int64_t most, std::int64_t budget, const Memory& of) {
    std::int64_t fits = 0, exceeds = most + 1;
    while (exceeds - fits > 1) {
      const std::int64_t middle = fits + (exceeds - fits) / 2;
      (static_cast<std::int64_t>(of(middle).total()) <= budget ? fits : exceeds) = middle;
    }
    return fits;
  }

  const CudaPlan& plan_;
  const CudaPlanAsked& asked_;
  std::vector<LayerSpec> layers_;
};

std::string cuda_chosen_name(const CudaPlanAsked& asked) {
  return std::string(method_for(asked.layers.front().settings.method).name());
}

Json cuda_cost_json(const CudaCost& cost, const CudaPlanAsked& asked, std::int64_t budget) {
  const CudaMemory memory = cost.memory();
  Json json = {{"weights_bytes", memory.weights}, {"entries_per_layer", cost.entries()},
               {"cache_bytes", memory.caches},    {"work_bytes", memory.work()},
               {"peak_bytes", memory.peak()},     {"driver_bytes", memory.driver},
               {"total_bytes", memory.total()}};
  if (budget > 0) {
    json["fits"] = static_cast<std::int64_t>(memory.total()) <= budget;
    json["longest_context"] = cost.longest(budget);
    if (asked.sessions == 1) json["sessions_that_fit"] = cost.sessions(budget);
  }
  return json;
}

void cuda_print_plan(const CudaPlanAsked& asked, const CudaCost& dense, const CudaCost& chosen,
                     std::int64_t budget) {
  const std::string name = cuda_chosen_name(asked);
  Table table({"", "dense", name, "dense / " + name});
  const auto add_counts = [&](const std::string& label, std::int64_t a, std::int64_t b) {
    table.add({label, longest_text(a), longest_text(b), ratio_text(a, b)});
  };
  const CudaMemory before = dense.memory(), after = chosen.memory();
  const auto add_bytes = [&](const char* label, std::size_t a, std::size_t b) {
    const auto x = static_cast<double>(a), y = static_cast<double>(b);
    const double like = std::max(x, y);
    table.add({label, bytes_text(x, like), bytes_text(y, like),
               ratio_text(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b))});
  };
  table.add({"entries a layer", fmt::format("{}", dense.entries()),
             fmt::format("{}", chosen.entries()), ratio_text(dense.entries(), chosen.entries())});
  add_bytes("weights, in bf16", before.weights, after.weights);
  add_bytes("caches", before.caches, after.caches);
  add_bytes("activations and scratch", before.work(), after.work());
  add_bytes("peak", before.peak(), after.peak());
  add_bytes("with the driver's part, about", before.total(), after.total());
  if (budget > 0) {
    const std::string where = bytes_text(static_cast<double>(budget));
    add_counts(fmt::format("longest context in {}", where), dense.longest(budget),
               chosen.longest(budget));
    if (asked.sessions == 1) {
      add_counts(fmt::format("sessions of {} in {}", length_text(asked.length), where),
                 dense.sessions(budget), chosen.sessions(budget));
    }
  }
  std::vector<Settings> settings;
  for (const LayerSpec& layer : asked.layers) settings.push_back(layer.settings);
  print(
      fmt::format("{} on a GPU: {} layers, {} of {} tokens\n{}\n\n{}", path_printable(asked.name),
                  asked.layers.size(),
                  asked.sessions == 1 ? "one session" : fmt::format("{} sessions", asked.sessions),
                  length_text(asked.length), settings_line(settings), table.text()));
}

}  // namespace

std::optional<int> plan_device_parse(std::string_view text) {
  constexpr std::string_view kNumbered = "cuda:";
  constexpr std::int64_t kMostDevices = 1024;
  if (text == "cpu") return std::nullopt;
  if (text == "auto") return cuda::device_count() > 0 ? std::optional<int>(0) : std::nullopt;
  if (text == "cuda") return 0;
  if (text.starts_with(kNumbered)) {
    return static_cast<int>(
        count_parse("--device cuda:N", text.substr(kNumbered.size()), 0, kMostDevices));
  }
  fail_input("--device must be cpu, cuda, cuda:N or auto, not \"{}\"", text_printable(text));
}

void plan_cuda_print(const CudaPlanAsked& asked) {
  const CudaPlan plan(asked.config, asked.path.empty());
  if (asked.length > CudaPlan::longest()) {
    fail_input("--length {}: a session on a GPU has at most {} tokens", asked.length,
               CudaPlan::longest());
  }
  const bool there = cuda::device_missing(asked.device).empty();
  const std::int64_t budget = asked.budget > 0 || !there
                                  ? asked.budget
                                  : static_cast<std::int64_t>(cuda_memory_free(asked.device));
  const CudaCost dense(plan, asked, cuda_dense_layers(asked.layers));
  const CudaCost chosen(plan, asked, asked.layers);
  if (!asked.json) {
    cuda_print_plan(asked, dense, chosen, budget);
    return;
  }
  std::vector<Settings> settings;
  for (const LayerSpec& layer : asked.layers) settings.push_back(layer.settings);
  Json json;
  json[asked.path.empty() ? "shape" : "model"] = asked.path.empty() ? asked.name : asked.path;
  json["device"] = fmt::format("cuda:{}", asked.device);
  json["layers"] = asked.layers.size();
  json["length"] = asked.length;
  json["sessions"] = asked.sessions;
  json["settings"] = settings_json(settings);
  if (budget > 0) json["budget_bytes"] = budget;
  json["dense"] = cuda_cost_json(dense, asked, budget);
  json[cuda_chosen_name(asked)] = cuda_cost_json(chosen, asked, budget);
  print_json(json);
}

}  // namespace lca::cli
