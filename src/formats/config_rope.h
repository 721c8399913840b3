#pragma once
/// The rotary part of a `config.json`.

#include "formats/json_fields.h"
#include "formats/model_config.h"

#include <cstdint>

namespace lca {

/// Reads `rope_theta`, `rope_scaling` and `rope_parameters` for `width` turning channels of a model
/// of `context` positions. Throws Error naming what is wrong or not done here.
RopeConfig rope_config_from_json(const JsonFields& config, std::int64_t width,
                                 std::int64_t context);

}  // namespace lca
