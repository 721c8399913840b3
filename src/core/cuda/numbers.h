#pragma once
/// Between natural logarithms and those of base 2, in which the kernels exponentiate.

namespace lca::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

}  // namespace lca::cuda
