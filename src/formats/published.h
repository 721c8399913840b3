#pragma once
/// Configurations of published models, by name: for measurements that need a model's shape and not
/// its weights. The names are those of named_shapes().

#include <string_view>

#include "formats/model_config.h"

namespace lca {

/// Throws Error (bad input) with the names there are.
ModelConfig published_config(std::string_view name);

}  // namespace lca
