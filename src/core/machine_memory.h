#pragma once
/// Memory that this process can still take.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lca {

/// Available memory in bytes, or −1 if unknown: the least of what the machine has left, what the
/// control groups of this process (a container's limit) allow, and what the limit of its address
/// space (`ulimit -v`) leaves.
std::int64_t memory_available();

/// The part of it that is read from files; `root` holds proc and sys.
std::int64_t memory_available_in(const std::filesystem::path& root);

/// The text after "key:" in a file of such lines, without the space around it.
std::string proc_field(const std::filesystem::path& path, std::string_view key);

/// The same for a line that counts kilobytes: the bytes, or −1.
std::int64_t proc_kilobytes(const std::filesystem::path& path, std::string_view key);

}  // namespace lca
