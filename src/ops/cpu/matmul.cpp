#include "ops/matmul.h"

#include <dnnl.h>
#include <omp.h>

#include "core/error.h"

namespace lca {

namespace {

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

void multiply(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
              float beta) {
  const auto status = dnnl_sgemm('N', 'N', a.rows, b.columns, a.columns, 1.0F, a.data, a.stride,
                                 b.data, b.stride, beta, out, out_stride);
  if (status != dnnl_success) fail_run("oneDNN refused a float32 product ({})", int{status});
}

}  // namespace

void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  const OmpThreads alone(1);
  multiply(a, b, out, out_stride, add ? 1.0F : 0.0F);
}

void gemm_parallel_f32(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       const float* b, float* c) {
  const OmpThreads team(threads);
  multiply({a, m, k, k}, {b, k, n, n}, c, n, 0);
}

}  // namespace lca
