#pragma once
/// Models on a GPU. In builds without CUDA the function throws Error
/// (incompatible).

#include <lca/context.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "models/backend.h"
#include "models/model_state.h"

namespace lca {

/// The backend of a model whose weights are bound, on GPU `ordinal`: copies the
/// weights there, unpacked to bf16. `model` must outlive it. `progress`
/// receives 0 … 1 and may throw.
std::unique_ptr<ModelBackend> cuda_backend(const Model::State& model, int ordinal, Context& context,
                                           const std::function<void(double)>& progress);

}  // namespace lca
