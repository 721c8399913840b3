#pragma once
/// Facts about the machine for reports, and memory: available, and peak use.

#include <cstdint>
#include <filesystem>
#include <string>

namespace lca::cli {

/// The processor's own name.
std::string machine_name();

/// Now, as 2025-01-31T12:00:00Z.
std::string date_text();

/// Available memory in bytes, or −1 if unknown: the least of what the machine has left, what the
/// control groups of this process (a container's limit) allow, and what the limit of its address
/// space (`ulimit -v`) leaves.
std::int64_t memory_available();

/// The part of it that is read from files; `root` holds proc and sys.
std::int64_t memory_available_in(const std::filesystem::path& root);

/// Throws Error (bad input) if `bytes` are not available; `what` names what needs them.
void memory_require(double bytes, const std::string& what);

/// Resets the peak of resident memory. False if the system cannot: the peak then covers the whole
/// process so far.
bool peak_memory_reset();

/// Peak resident memory since then.
std::int64_t peak_memory();

}  // namespace lca::cli
