#pragma once
/// What a report says about the machine it was made on, and how much memory a piece of work took.

#include <cstdint>
#include <filesystem>
#include <string>

namespace lca::cli {

/// The processor's own name.
std::string machine_name();

/// Now, as 2025-01-31T12:00:00Z.
std::string date_text();

/// Bytes that can be had without pushing others out, or −1 where the system does not say: what the
/// machine has left, the control groups around this process (a container's limit) allow, and the
/// limit of its address space (`ulimit -v`) leaves, whichever is least.
std::int64_t memory_available();

/// The part of it that files say; `root` is where /proc and /sys lie.
std::int64_t memory_available_in(const std::filesystem::path& root);

/// Throws Error (bad input) where `bytes` will not fit; `what` says what would take them.
void memory_require(double bytes, const std::string& what);

/// Starts counting peak resident memory anew. False where the system cannot: the peak then covers
/// the whole life of the process.
bool peak_memory_reset();

/// The most resident memory since then.
std::int64_t peak_memory();

}  // namespace lca::cli
