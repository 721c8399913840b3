#pragma once
/// The half of `lca plan` that is about a GPU.

#include "arguments.h"
#include "formats/model_config.h"

#include <lca/cache.h>
#include <lca/model.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

/// The GPU that `--device` of a plan names, which need not exist; none for the CPU. `auto` is the
/// GPU where there is one.
std::optional<int> plan_device_parse(std::string_view text);

/// Sessions that a model on a GPU opens at a time.
inline constexpr std::int64_t kPlannedSessions = 2048;

/// What is planned.
struct CudaPlanAsked {
  std::string name;
  std::string path;  ///< empty for a shape
  ModelConfig config;
  std::vector<LayerSpec> layers;
  int device = 0;
  GroupStorage groups = GroupStorage::bf16;
  std::int64_t length = 0;
  std::int64_t chunk = 0;  ///< 0: as models do
  std::int64_t sessions = 1;
  std::int64_t budget = 0;  ///< bytes; 0: what is free on the GPU, where there is one
  bool json = false;
};

void plan_cuda_print(const CudaPlanAsked& asked);

/// The longest length in a plan, in words.
std::string longest_text(std::int64_t length);
/// "14.3×"; empty for a `chosen` of 0.
std::string ratio_text(std::int64_t dense, std::int64_t chosen);

}  // namespace lca::cli
