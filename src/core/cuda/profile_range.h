#pragma once
/// Named ranges in NVIDIA's profilers; without one attached they cost a few nanoseconds.

#include <nvtx3/nvToolsExt.h>

namespace lca::cuda {

class ProfileRange {
 public:
  explicit ProfileRange(const char* name) { nvtxRangePushA(name); }
  ~ProfileRange() { nvtxRangePop(); }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace lca::cuda
