#include "models/cuda/stage_clock.h"

#include <algorithm>

#include "core/cuda/device.h"

namespace lca::cuda {

StageClock::~StageClock() {
  for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
}

void StageClock::mark(std::string_view part, cudaStream_t stream) {
  if (!on_) return;
  if (used_ == marks_.size()) {
    Mark& made = marks_.emplace_back();
    check(cudaEventCreate(&made.event), "making an event");
  }
  Mark& mark = marks_[used_++];
  mark.part = part;
  check(cudaEventRecord(mark.event, stream), "taking the time");
}

std::vector<StepProfile::Part> StageClock::take() {
  std::vector<StepProfile::Part> parts;
  if (used_ > 0) check(cudaEventSynchronize(marks_[used_ - 1].event), "running on the GPU");
  for (std::size_t i = 1; i < used_; ++i) {
    if (marks_[i].part.empty()) continue;
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_[i - 1].event, marks_[i].event),
          "taking the time");
    auto known = std::ranges::find(parts, marks_[i].part, &StepProfile::Part::name);
    if (known == parts.end()) {
      parts.push_back({std::string(marks_[i].part), 0});
      known = parts.end() - 1;
    }
    known->seconds += milliseconds / 1e3;
  }
  used_ = 0;
  return parts;
}

}  // namespace lca::cuda
