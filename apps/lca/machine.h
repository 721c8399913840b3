#pragma once
/// Facts about the machine for reports, and memory: available, and peak use.

#include <cstdint>
#include <string>

#include "core/machine_memory.h"

namespace lca::cli {

/// The processor's own name.
std::string machine_name();

/// The same with the level of its instructions that kernels use.
std::string machine_text();

/// Now, as 2025-01-31T12:00:00Z.
std::string date_text();

using lca::memory_available;
using lca::memory_available_in;

/// Throws Error (bad input) if `bytes` are not available; `what` names what needs them.
void memory_require(double bytes, const std::string& what);

/// Resets the peak of resident memory. False if the system cannot: the peak then covers the whole
/// process so far.
bool peak_memory_reset();

/// Peak resident memory since then.
std::int64_t peak_memory();

}  // namespace lca::cli
