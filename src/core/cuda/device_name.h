#pragma once
/// GPUs by name, for code that is built with and without CUDA. Without CUDA every name is an Error.

#include <cstddef>
#include <string>
#include <string_view>

namespace lca::cuda {

/// GPUs that this process can use; 0 without CUDA, without a driver and without a GPU.
int device_count();

/// The ordinal in `cuda` (0) or `cuda:N`. Throws Error (bad input) where the text is neither, and
/// Error (incompatible) where that GPU cannot be used.
int device_parse(std::string_view text);

/// Why GPU `ordinal` cannot be used, in one line that says what to do; empty where it can.
std::string device_missing(int ordinal = 0);

/// GPU memory that this process has allocated for weights, caches and activations, in bytes: now,
/// and the most since the last reset. What the driver takes for itself is not in it. 0 without
/// CUDA.
std::size_t memory_held();
std::size_t memory_peak();
void memory_peak_reset();

}  // namespace lca::cuda
