#pragma once
/// Models on the CPU.

#include <memory>

#include "models/backend.h"
#include "models/model_state.h"

namespace lca {

/// The backend of a model whose weights are loaded; `model` must outlive it.
std::unique_ptr<ModelBackend> cpu_backend(const Model::State& model);

}  // namespace lca
