#pragma once
/// What Linux control groups (containers, systemd units) allow this process.

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace lca {

struct Cgroup {
  enum class Version { v1, v2 };
  std::filesystem::path folder;
  Version version = Version::v2;
};

/// The groups that limit `controller` ("cpu", "memory") for this process: its own and all around
/// it, outermost first. Folders may be absent: inside a container the outer part of the path is not
/// visible. `root` is the file system's root; tests give another.
std::vector<Cgroup> cgroups_of(std::string_view controller,
                               const std::filesystem::path& root = "/");

/// Processors' worth of time in the text of `cpu.max`, or in the numbers of `cpu.cfs_quota_us` and
/// `cpu.cfs_period_us`; nothing where it sets no limit or makes no sense.
std::optional<double> cpu_max_parse(std::string_view text);
std::optional<double> cpu_quota_parse(std::string_view quota, std::string_view period);

/// The least of all groups' quotas; nothing where none is set.
std::optional<double> cgroup_cpus(const std::filesystem::path& root = "/");

/// How many threads can run at once: the processors this process may use, and no more than its
/// quota, rounded up. At least 1.
int cpus_available(const std::filesystem::path& root = "/");

}  // namespace lca
