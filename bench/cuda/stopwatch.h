#pragma once
/// Timing on the GPU: CUDA events, and graphs for what is shorter than its launch.

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/cuda/bench.h"
#include "core/cuda/device.h"

namespace lca::cuda {

/// Pairs of events around calls on one stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {}
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// The median seconds of `count` calls that are enqueued one behind the other.
  template <typename Call>
  double median(int count, const Call& call) {
    while (events_.size() < static_cast<std::size_t>(count) * 2) {
      events_.emplace_back();
      check(cudaEventCreate(&events_.back()), "making an event");
    }
    for (int i = 0; i < count; ++i) {
      record(2 * i);
      call();
      record(2 * i + 1);
    }
    check(cudaStreamSynchronize(stream_), "running on the GPU");
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, event(2 * i), event(2 * i + 1)), "taking the time");
      seconds.push_back(milliseconds / 1e3);
    }
    const auto middle = seconds.begin() + count / 2;
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
  }

 private:
  cudaEvent_t event(int index) const { return events_[static_cast<std::size_t>(index)]; }
  void record(int index) { check(cudaEventRecord(event(index), stream_), "taking the time"); }

  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

/// Calls that fill the time that one row of a table may take.
inline int repetitions_for(double seconds, int most) {
  constexpr double kBudget = 0.1;  // longer, and the GPU is measured hot, as no peer is
  return static_cast<int>(
      std::clamp(std::ceil(kBudget / std::max(seconds, 1e-6)), 5.0, static_cast<double>(most)));
}

template <typename Call>
Timed time_calls(cudaStream_t stream, const Call& call) {
  constexpr double kLong = 3;  // seconds; then one call has to do
  Stopwatch watch(stream);
  call();  // the first use loads code and makes plans
  const double once = watch.median(1, call);
  if (once > kLong) return {once, 1, 1};
  const int count = repetitions_for(once, 200);
  return {watch.median(count, call), count, 1};
}

/// A captured sequence of launches.
class Graph {
 public:
  template <typename Body>
  Graph(cudaStream_t stream, const Body& body) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capturing a graph");
    body();
    check(cudaStreamEndCapture(stream, &graph), "capturing a graph");
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "making a graph");
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const { check(cudaGraphLaunch(exec_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

/// Replays of a graph of call(0) … call(sets − 1), repeated until there are eight calls or more: a
/// kernel is one of many in real use, and the launch of a graph is not its time. At most `most`
/// rounds of all sets are run.
template <typename Call>
Timed time_graph(cudaStream_t stream, int sets, int most, const Call& call) {
  constexpr int kCalls = 8;
  const int rounds = (kCalls + sets - 1) / sets;
  call(0);
  check(cudaStreamSynchronize(stream), "running on the GPU");
  const Graph graph(stream, [&] {
    for (int round = 0; round < rounds; ++round) {
      for (int set = 0; set < sets; ++set) call(set);
    }
  });
  const auto launch = [&] { graph.launch(); };
  Stopwatch watch(stream);
  launch();
  const int count = repetitions_for(watch.median(1, launch), std::max(most / rounds - 2, 1));
  return {watch.median(count, launch) / (rounds * sets), count, sets};
}

}  // namespace lca::cuda
