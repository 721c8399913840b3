#include "machine.h"

#include "core/cpu_level.h"
#include "core/error.h"
#include "terminal.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <ctime>

namespace lca::cli {

std::string machine_name() {
  std::string name = proc_field("/proc/cpuinfo", "model name");
  if (!name.empty()) return name;
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

std::string machine_text() {
  return fmt::format("{} ({})", machine_name(), cpu_level_name(cpu_level()));
}

std::string date_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

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
  const std::int64_t peak = proc_kilobytes("/proc/self/status", "VmHWM");
  if (peak >= 0) return peak;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace lca::cli
