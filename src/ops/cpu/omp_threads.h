#pragma once
/// How many threads oneDNN may use.

#include <omp.h>

namespace lca {

/// oneDNN takes its number of threads from OpenMP's setting of the calling thread. Our own pool
/// shares the work out, so inside a task a product must stay on its thread.
class OmpThreads {
 public:
  explicit OmpThreads(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
  }
  ~OmpThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_;
};

}  // namespace lca
