#pragma once
/// The matrices of a model without their values: how large each is and where it belongs.

#include "formats/model_config.h"
#include "models/weights.h"

namespace lca {

/// Every matrix has its type (bf16), rows and columns; its data must not be read. Vectors are
/// zeros.
DecoderWeights weight_shapes(const ModelConfig& config);

}  // namespace lca
