#pragma once
/// Fingerprints of a loaded model's weights.

#include <lca/model.h>

#include <string>

namespace lca {

/// The fingerprint of session files of version 1, which covers precision and cache type as well.
std::string fingerprint_version1(const Model& model, Precision precision, DType dtype);

/// The storage type of most bytes of its matrices in memory: "Q4_1", "BF16", ….
std::string model_weight_type(const Model& model);

}  // namespace lca
