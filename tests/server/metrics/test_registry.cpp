#include "server/metrics/registry.h"

#include <lca/error.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace lca::server::metrics {
namespace {

TEST(Metrics, TextIsPrometheus) {
  Registry registry;
  registry.counter("b_total", "Things\\with\nbreaks.", {{"kind", "a\"b\\c\nd"}}).add(3);
  registry.counter("b_total", "", {{"kind", "x"}}).add();
  registry.gauge("a", "A gauge.").set(0.5);
  registry.gauge_read("c", "Asked for.", [] { return std::numeric_limits<double>::infinity(); });
  Histogram& histogram = registry.histogram("d_seconds", "Times.", {0.1, 1}, {{"k", "v"}});
  for (const double value : {0.05, 0.1, 0.5, 2.0, std::nan("")}) histogram.observe(value);
  EXPECT_EQ(registry.text(),
            "# HELP a A gauge.\n# TYPE a gauge\na 0.5\n"
            "# HELP b_total Things\\\\with\\nbreaks.\n# TYPE b_total counter\n"
            "b_total{kind=\"a\\\"b\\\\c\\nd\"} 3\nb_total{kind=\"x\"} 1\n"
            "# HELP c Asked for.\n# TYPE c gauge\nc +Inf\n"
            "# HELP d_seconds Times.\n# TYPE d_seconds histogram\n"
            "d_seconds_bucket{k=\"v\",le=\"0.1\"} 2\nd_seconds_bucket{k=\"v\",le=\"1\"} 3\n"
            "d_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\nd_seconds_sum{k=\"v\"} 2.65\n"
            "d_seconds_count{k=\"v\"} 4\n");
}

TEST(Metrics, WrongNamesAndTypesAreErrors) {
  Registry registry;
  registry.counter("a_total", "");
  EXPECT_THROW(registry.gauge("a_total", ""), Error);
  EXPECT_THROW(registry.counter("1a", ""), Error);
  EXPECT_THROW(registry.counter("a b", ""), Error);
  EXPECT_THROW(registry.counter("b", "", {{"le", "1"}}), Error);
  EXPECT_THROW(registry.histogram("h", "", {2, 1}), Error);
  EXPECT_THROW(registry.histogram("h", "", {1, 1}), Error);
}

TEST(ThreadsMetrics, NothingIsLostBetweenThreads) {
  Registry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      for (int i = 0; i < 1000; ++i) {
        registry.counter("n_total", "").add();
        registry.gauge("g", "").add(1);
        registry.histogram("h", "", {1}).observe(0.5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.counter("n_total", "").value(), 4000U);
  EXPECT_EQ(registry.gauge("g", "").value(), 4000);
  EXPECT_EQ(registry.histogram("h", "", {1}).count(0), 4000U);
  EXPECT_EQ(registry.histogram("h", "", {1}).sum(), 2000);
}

}  // namespace
}  // namespace lca::server::metrics
