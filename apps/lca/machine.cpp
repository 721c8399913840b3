#include "machine.h"

#include "core/error.h"
#include "terminal.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <chrono>
#include <ctime>
#include <fstream>
#include <string_view>

namespace lca::cli {
namespace {

/// The text after "key:" in a file of such lines, without the space around it.
std::string field_read(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

/// The same for a line that counts kilobytes: the bytes, or −1.
std::int64_t kilobytes_read(const char* path, std::string_view key) {
  const std::string text = field_read(path, key);
  if (text.empty() || text[0] < '0' || text[0] > '9') return -1;
  return std::stoll(text) * 1024;
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

std::int64_t memory_available() { return kilobytes_read("/proc/meminfo", "MemAvailable"); }

void memory_require(double bytes, const std::string& what) {
  const std::int64_t available = memory_available();
  if (available < 0 || bytes <= static_cast<double>(available)) return;
  fail_input("{} needs about {} of memory and {} are available; choose a shorter one", what,
             bytes_text(bytes), bytes_text(static_cast<double>(available)));
}

void memory_trim() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
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
