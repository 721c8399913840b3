#include "machine.h"

#include "core/cgroups.h"
#include "core/error.h"
#include "terminal.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <string_view>
#include <system_error>

namespace lca::cli {

namespace fs = std::filesystem;

namespace {

/// The text after "key:" in a file of such lines, without the space around it.
std::string field_read(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

/// The number at the beginning of a text; −1 if there is none or it does not fit.
std::int64_t number_parse(std::string_view text) {
  std::int64_t number = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && number >= 0 ? number : -1;
}

/// The same for a line that counts kilobytes: the bytes, or −1.
std::int64_t kilobytes_read(const fs::path& path, std::string_view key) {
  const std::int64_t number = number_parse(field_read(path, key));
  return number > INT64_MAX / 1024 ? -1 : std::max<std::int64_t>(-1, number * 1024);
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
  const std::int64_t used = kilobytes_read("/proc/self/status", "VmSize");
  const auto most = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  return std::max<std::int64_t>(0, most - std::max<std::int64_t>(0, used));
}

}  // namespace

std::string machine_name() {
  std::string name = field_read("/proc/cpuinfo", "model name");
  if (!name.empty()) return name;
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

std::string date_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::int64_t memory_available_in(const fs::path& root) {
  return lesser(kilobytes_read(root / "proc/meminfo", "MemAvailable"), control_groups_left(root));
}

std::int64_t memory_available() { return lesser(memory_available_in("/"), address_space_left()); }

void memory_require(double bytes, const std::string& what) {
  const std::int64_t available = memory_available();
  if (available < 0 || bytes <= static_cast<double>(available)) return;
  fail_input("{} needs about {} of memory and {} are available; choose a shorter one", what,
             bytes_text(bytes), bytes_text(static_cast<double>(available)));
}

bool peak_memory_reset() {
  const int file = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = ::write(file, "5", 1) == 1;
  ::close(file);
  return done;
}

std::int64_t peak_memory() {
  const std::int64_t peak = kilobytes_read("/proc/self/status", "VmHWM");
  if (peak >= 0) return peak;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace lca::cli
