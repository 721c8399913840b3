#pragma once
/// The name of a precision, in files, flags and reports.

#include <lca/model.h>

#include <string_view>

namespace lca {

/// In the order of the enumeration.
inline constexpr std::string_view kPrecisionNames[] = {"auto", "f32", "bf16"};

constexpr std::string_view precision_name(Precision precision) {
  return kPrecisionNames[static_cast<int>(precision)];
}

}  // namespace lca
