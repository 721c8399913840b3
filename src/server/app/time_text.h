#pragma once
/// Numbers that a host keeps itself, in Prometheus' format.

#include "server/host/host_meter.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace lca::server {

std::string counter_text(std::string_view name, std::string_view help, std::int64_t value);
std::string histogram_text(std::string_view name, std::string_view help,
                           const TimeHistogram& times);

}  // namespace lca::server
