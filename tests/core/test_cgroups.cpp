#include "core/cgroups.h"

#include "formats/byte_files.h"

#include <gtest/gtest.h>

#include <thread>

namespace lca {
namespace {

using test::ScratchFolder;
using test::write_file;

/// A file system with the files of one process' control groups.
class Root {
 public:
  Root& file(const std::string& path, const std::string& text) {
    const std::filesystem::path place = folder_ / path;
    std::filesystem::create_directories(place.parent_path());
    write_file(place, text);
    return *this;
  }
  std::optional<double> cpus() const { return cgroup_cpus(folder_.path()); }
  int threads() const { return cpus_available(folder_.path()); }

 private:
  ScratchFolder folder_;
};

TEST(Cgroups, ReadTheQuotaOfVersion2) {
  EXPECT_EQ(cpu_max_parse("150000 100000"), 1.5);
  EXPECT_EQ(cpu_max_parse("50000 100000\n"), 0.5);
  EXPECT_EQ(cpu_max_parse("max 100000"), std::nullopt);
  for (const char* wrong : {"", " ", "max", "100000", "-1 100000", "0 100000", "100000 0",
                            "100000 -5", "1e5 100000", "99999999999999999999 100000", "1 2 3"}) {
    EXPECT_EQ(cpu_max_parse(wrong), std::nullopt) << wrong;
  }
}

TEST(Cgroups, ReadTheQuotaOfVersion1) {
  EXPECT_EQ(cpu_quota_parse("200000", "100000"), 2.0);
  EXPECT_EQ(cpu_quota_parse("-1", "100000"), std::nullopt);
  EXPECT_EQ(cpu_quota_parse("", ""), std::nullopt);
}

TEST(Cgroups, TheLeastQuotaOfNestedGroupsCounts) {
  EXPECT_EQ(Root().cpus(), std::nullopt);
  const std::string nested = "sys/fs/cgroup/outer/inner/cpu.max";
  EXPECT_EQ(Root().file("proc/self/cgroup", "0::/outer/inner\n").file(nested, "max 100000").cpus(),
            std::nullopt);
  const auto outer_and_inner = [&](const char* outer, const char* inner) {
    return Root()
        .file("proc/self/cgroup", "0::/outer/inner\n")
        .file("sys/fs/cgroup/outer/cpu.max", outer)
        .file(nested, inner)
        .cpus();
  };
  EXPECT_EQ(outer_and_inner("100000 100000", "max 100000"), 1.0);
  EXPECT_EQ(outer_and_inner("100000 100000", "300000 100000"), 1.0);
  EXPECT_EQ(outer_and_inner("300000 100000", "250000 100000"), 2.5);
}

TEST(Cgroups, AnotherProcessGroupsQuotaDoesNotCount) {
  EXPECT_EQ(Root()
                .file("proc/self/cgroup", "0::/mine\n")
                .file("sys/fs/cgroup/other/cpu.max", "100000 100000")
                .cpus(),
            std::nullopt);
}

TEST(Cgroups, AContainerSeesItsQuotaAtTheMount) {
  // Version 2 with a namespace of its own, and version 1 whose paths are those of the host.
  EXPECT_EQ(Root()
                .file("proc/self/cgroup", "0::/\n")
                .file("sys/fs/cgroup/cpu.max", "50000 100000\n")
                .cpus(),
            0.5);
  EXPECT_EQ(Root()
                .file("proc/self/cgroup", "12:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n")
                .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n")
                .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
                .cpus(),
            3.0);
  EXPECT_EQ(Root()
                .file("proc/self/cgroup", "0::/../../elsewhere\n")
                .file("sys/fs/cgroup/cpu.max", "100000 100000\n")
                .cpus(),
            1.0);
}

TEST(Cgroups, Version1CountsItsOwnControllerOnly) {
  Root root;
  root.file("proc/self/cgroup", "4:cpuset:/a\n3:cpuacct:/a\n")
      .file("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000")
      .file("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.cpus(), std::nullopt);
  root.file("proc/self/cgroup", "4:cpuset:/b\n3:cpuacct,cpu:/a\n");
  EXPECT_EQ(root.cpus(), 1.0);
}

TEST(Cgroups, ThreadsFollowTheQuotaRoundedUp) {
  const int all = Root().threads();
  EXPECT_GE(all, 1);
  EXPECT_LE(all, static_cast<int>(std::thread::hardware_concurrency()));
  const auto with = [](const char* quota) {
    return Root().file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpu.max", quota).threads();
  };
  EXPECT_EQ(with("10000 100000"), 1);
  EXPECT_EQ(with("100000 100000"), 1);
  EXPECT_EQ(with("110000 100000"), std::min(all, 2));
  EXPECT_EQ(with("900000000 100000"), all);
}

}  // namespace
}  // namespace lca
