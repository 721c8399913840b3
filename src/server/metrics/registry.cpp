#include "server/metrics/registry.h"

#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <variant>

namespace lca::server::metrics {
namespace {

bool metric_name_valid(std::string_view name, bool colons) {
  const auto letter = [colons](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':');
  };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && !digit(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || digit(c); });
}

std::string metric_escape(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// `a="1",b="2"`, which also identifies a metric within its family.
std::string labels_text(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    if (!metric_name_valid(name, false) || name.starts_with("__") || name == "le") {
      fail_input("'{}' is no name for a metric's label", name);
    }
    if (!out.empty()) out += ',';
    fmt::format_to(std::back_inserter(out), "{}=\"{}\"", name, metric_escape(value, true));
  }
  return out;
}

using GaugeRead = std::function<double()>;
using Metric = std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>,
                            std::unique_ptr<Histogram>, GaugeRead>;

struct Family {
  std::string type, help;
  std::map<std::string, Metric> members;
};

void sample_append(std::string& out, std::string_view name, std::string_view labels,
                   std::string_view value) {
  auto end = std::back_inserter(out);
  if (labels.empty()) {
    fmt::format_to(end, "{} {}\n", name, value);
  } else {
    fmt::format_to(end, "{}{{{}}} {}\n", name, labels, value);
  }
}

void histogram_append(std::string& out, const std::string& name, const std::string& labels,
                      const Histogram& histogram) {
  const std::string start = labels.empty() ? "" : labels + ",";
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) {
    total += histogram.count(i);
    const std::string bound =
        i < histogram.bounds().size() ? metric_number(histogram.bounds()[i]) : "+Inf";
    sample_append(out, name + "_bucket", fmt::format("{}le=\"{}\"", start, bound),
                  fmt::format("{}", total));
  }
  sample_append(out, name + "_sum", labels, metric_number(histogram.sum()));
  sample_append(out, name + "_count", labels, fmt::format("{}", total));
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  if (!std::ranges::is_sorted(bounds_, std::less_equal<>{}) && bounds_.size() > 1) {
    fail_input("a histogram's bounds must ascend");
  }
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;  // would make the sum useless for ever
  // A bound belongs to the bucket below it.
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<double> seconds_bounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   30,    60,   120, 300,  600};
}

struct Registry::Impl {
  mutable std::mutex mutex;
  std::map<std::string, Family> families;

  template <typename Kind, typename Make>
  Kind& member(const std::string& type, const std::string& name, const std::string& help,
               const Labels& labels, const Make& make) {
    if (!metric_name_valid(name, true)) fail_input("'{}' is no name for a metric", name);
    const std::string key = labels_text(labels);
    const std::lock_guard lock(mutex);
    Family& family = families[name];
    if (family.type.empty()) family = {type, help, {}};
    auto found = family.members.find(key);
    if (found == family.members.end() && family.type == type) {
      found = family.members.emplace(key, make()).first;
    }
    Kind* metric = found == family.members.end() ? nullptr : std::get_if<Kind>(&found->second);
    if (!metric) fail_input("the metric {} is of another type, {}", name, family.type);
    return *metric;
  }
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter& Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  return *impl_->member<std::unique_ptr<Counter>>("counter", name, help, labels,
                                                  [] { return std::make_unique<Counter>(); });
}

Gauge& Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return *impl_->member<std::unique_ptr<Gauge>>("gauge", name, help, labels,
                                                [] { return std::make_unique<Gauge>(); });
}

Histogram& Registry::histogram(const std::string& name, const std::string& help,
                               const std::vector<double>& bounds, const Labels& labels) {
  return *impl_->member<std::unique_ptr<Histogram>>(
      "histogram", name, help, labels, [&bounds] { return std::make_unique<Histogram>(bounds); });
}

void Registry::gauge_read(const std::string& name, const std::string& help,
                          std::function<double()> read, const Labels& labels) {
  impl_->member<GaugeRead>("gauge", name, help, labels, [&read] { return std::move(read); });
}

std::string Registry::text() const {
  std::string out;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [name, family] : impl_->families) {
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name,
                   metric_escape(family.help, false), name, family.type);
    for (const auto& [labels, metric] : family.members) {
      if (const auto* counter = std::get_if<std::unique_ptr<Counter>>(&metric)) {
        sample_append(out, name, labels, fmt::format("{}", (*counter)->value()));
      } else if (const auto* gauge = std::get_if<std::unique_ptr<Gauge>>(&metric)) {
        sample_append(out, name, labels, metric_number((*gauge)->value()));
      } else if (const auto* read = std::get_if<GaugeRead>(&metric)) {
        sample_append(out, name, labels, metric_number((*read)()));
      } else {
        histogram_append(out, name, labels, *std::get<std::unique_ptr<Histogram>>(metric));
      }
    }
  }
  return out;
}

}  // namespace lca::server::metrics
