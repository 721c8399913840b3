#include "server/app/time_text.h"

#include <fmt/format.h>

namespace lca::server {

std::string counter_text(std::string_view name, std::string_view help, std::int64_t value) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} counter\n{0} {2}\n", name, help, value);
}

std::string histogram_text(std::string_view name, std::string_view help,
                           const TimeHistogram& times) {
  std::string text = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < times.kBounds.size(); ++i) {
    sum += times.counts[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, times.kBounds[i], sum);
  }
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                      times.count, times.sum);
  return text;
}

}  // namespace lca::server
