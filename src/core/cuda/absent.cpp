// A build without CUDA: there are no devices.

#include "core/cuda/device_name.h"
#include "core/error.h"

namespace lca::cuda {

int device_count() { return 0; }

std::string device_missing(int) {
  return "this build has no CUDA; build with `make cuda` (needs nvcc), or use the CPU";
}

int device_parse(std::string_view text) {
  if (text != "cuda" && !text.starts_with("cuda:")) {
    fail_input("no device is called '{}'; a GPU is cuda, or cuda:N counted from 0", text);
  }
  fail_incompatible("{}", device_missing(0));
}

std::size_t memory_held() { return 0; }
std::size_t memory_peak() { return 0; }
void memory_peak_reset() {}

}  // namespace lca::cuda
