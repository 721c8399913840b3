#include "core/machine_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

#include "core/cgroups.h"

namespace lca {
namespace fs = std::filesystem;
namespace {

/// The number at the beginning of a text; −1 if there is none or it does not fit.
std::int64_t number_parse(std::string_view text) {
  std::int64_t number = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && number >= 0 ? number : -1;
}

/// The number in a file that holds one; −1 if there is none ("max" means no limit).
std::int64_t number_read(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return number_parse(text);
}

/// The smaller of two amounts; −1 is no amount.
std::int64_t lesser(std::int64_t a, std::int64_t b) {
  return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

/// File names of a control group.
struct GroupFiles {
  const char *limit, *used, *cached;
};
constexpr GroupFiles kGroupV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kGroupV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file"};

/// Memory that one group has left, or −1. Its usage includes cached file pages, which can be
/// reclaimed.
std::int64_t group_left(const fs::path& group, const GroupFiles& names) {
  const std::int64_t limit = number_read(group / names.limit);
  const std::int64_t used = number_read(group / names.used);
  if (limit < 0 || used < 0) return -1;
  std::int64_t cached = 0;
  std::ifstream file(group / "memory.stat");
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.compare(0, space, names.cached) != 0) continue;
    cached = std::clamp<std::int64_t>(number_parse(line.substr(space + 1)), 0, used);
  }
  return std::max<std::int64_t>(0, limit - (used - cached));
}

/// The least of all groups that limit memory, or −1.
std::int64_t control_groups_left(const fs::path& root) {
  std::int64_t least = -1;
  for (const Cgroup& group : cgroups_of("memory", root)) {
    const bool v2 = group.version == Cgroup::Version::v2;
    least = lesser(least, group_left(group.folder, v2 ? kGroupV2 : kGroupV1));
  }
  return least;
}

/// What the limit of the address space leaves, or −1 if there is no limit.
std::int64_t address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  const std::int64_t used = proc_kilobytes("/proc/self/status", "VmSize");
  const auto most = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  return std::max<std::int64_t>(0, most - std::max<std::int64_t>(0, used));
}

}  // namespace

std::string proc_field(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

std::int64_t proc_kilobytes(const fs::path& path, std::string_view key) {
  const std::int64_t number = number_parse(proc_field(path, key));
  return number > INT64_MAX / 1024 ? -1 : std::max<std::int64_t>(-1, number * 1024);
}

std::int64_t memory_available_in(const fs::path& root) {
  return lesser(proc_kilobytes(root / "proc/meminfo", "MemAvailable"), control_groups_left(root));
}

std::int64_t memory_available() { return lesser(memory_available_in("/"), address_space_left()); }

}  // namespace lca
