#pragma once
/// Where the time of steps goes: events between the parts of a step, on the stream they run on.

#include <cuda_runtime.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "models/backend.h"

namespace lca::cuda {

class StageClock {
 public:
  StageClock() = default;
  ~StageClock();
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  void set(bool on) { on_ = on; }
  bool on() const { return on_; }
  /// What was enqueued since the last call belongs to `part`; empty: to none, a step begins here.
  void mark(std::string_view part, cudaStream_t stream);
  /// Sums by part since the last call. Waits for the stream.
  std::vector<StepProfile::Part> take();

 private:
  struct Mark {
    std::string_view part;  // of a constant
    cudaEvent_t event = nullptr;
  };
  bool on_ = false;
  std::vector<Mark> marks_;
  std::size_t used_ = 0;
};

}  // namespace lca::cuda
