#include "core/cgroups.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace lca {
namespace fs = std::filesystem;
namespace {

std::string line_read(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A positive whole number that fills the text.
std::optional<std::int64_t> positive_parse(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

/// `mount` and every folder on the way down `path`.
void groups_add(const fs::path& mount, const std::string& path, Cgroup::Version version,
                std::vector<Cgroup>& to) {
  to.push_back({mount, version});
  fs::path folder = mount;
  for (const fs::path& part : fs::path(path).relative_path()) {
    if (part == "..") return;  // outside what this namespace shows
    folder /= part;
    to.push_back({folder, version});
  }
}

int affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::vector<Cgroup> cgroups_of(std::string_view controller, const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  const std::string wanted = "," + std::string(controller) + ",";
  std::vector<Cgroup> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/path", "4:cpu,cpuacct:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      groups_add(mount, path, Cgroup::Version::v2, groups);
      groups_add(mount / "unified", path, Cgroup::Version::v2, groups);
    } else if (controllers.find(wanted) != std::string::npos) {
      groups_add(mount / controller, path, Cgroup::Version::v1, groups);
    }
  }
  return groups;
}

std::optional<double> cpu_quota_parse(std::string_view quota, std::string_view period) {
  const std::optional<std::int64_t> share = positive_parse(quota);  // −1: no limit
  const std::optional<std::int64_t> whole = positive_parse(period);
  if (!share || !whole) return std::nullopt;
  return static_cast<double>(*share) / static_cast<double>(*whole);
}

std::optional<double> cpu_max_parse(std::string_view text) {
  const std::size_t space = text.find(' ');  // "150000 100000", "max 100000"
  if (space == std::string_view::npos) return std::nullopt;
  return cpu_quota_parse(text.substr(0, space), text.substr(space + 1));
}

std::optional<double> cgroup_cpus(const fs::path& root) {
  std::optional<double> least;
  for (const Cgroup& group : cgroups_of("cpu", root)) {
    const std::optional<double> cpus =
        group.version == Cgroup::Version::v2
            ? cpu_max_parse(line_read(group.folder / "cpu.max"))
            : cpu_quota_parse(line_read(group.folder / "cpu.cfs_quota_us"),
                              line_read(group.folder / "cpu.cfs_period_us"));
    if (cpus) least = std::min(*cpus, least.value_or(*cpus));
  }
  return least;
}

int cpus_available(const fs::path& root) {
  const int processors = affinity_count();
  const std::optional<double> quota = cgroup_cpus(root);
  if (!quota || *quota >= processors) return processors;
  return std::max(1, static_cast<int>(std::ceil(*quota)));
}

}  // namespace lca
