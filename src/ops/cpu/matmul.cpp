#include "ops/matmul.h"

#include <dnnl.hpp>
#include <omp.h>

#include <array>
#include <map>

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

void sgemm(char trans_b, const MatrixView& a, const MatrixView& b, std::int64_t n, float* out,
           std::int64_t out_stride, float beta = 0) {
  const auto status = dnnl_sgemm('N', trans_b, a.rows, n, a.columns, 1.0F,
                                 static_cast<const float*>(a.data), a.stride,
                                 static_cast<const float*>(b.data), b.stride, beta, out, out_stride);
  if (status != dnnl_success) fail_run("oneDNN refused a float32 product ({})", int{status});
}

/// A bfloat16 product of one shape, made once per thread: making it costs more than a small run.
struct Bf16Product {
  dnnl::memory::desc a, b, c;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

using ProductKey = std::array<std::int64_t, 6>;

const Bf16Product& bf16_product(const ProductKey& key) {
  thread_local std::map<ProductKey, Bf16Product> products;
  const auto found = products.find(key);
  if (found != products.end()) return found->second;
  // Chunked prompts bring ever new row counts; the few that recur are cheap to make again.
  constexpr std::size_t kMostProducts = 64;
  if (products.size() >= kMostProducts) products.clear();
  using dnnl::memory;
  const auto [m, n, k, lda, ldb, ldc] = key;
  Bf16Product product{memory::desc({m, k}, memory::data_type::bf16, memory::dims{lda, 1}),
                      memory::desc({k, n}, memory::data_type::bf16, memory::dims{1, ldb}),
                      memory::desc({m, n}, memory::data_type::f32, memory::dims{ldc, 1}),
                      {}};
  const dnnl::matmul::desc desc(product.a, product.b, product.c);
  product.primitive = dnnl::matmul(dnnl::matmul::primitive_desc(desc, cpu_engine()));
  return products.emplace(key, std::move(product)).first->second;
}

}  // namespace

bool matmul_has_bf16() {
#if defined(__x86_64__)
  static const bool has =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has;
#else
  return false;
#endif
}

void matmul_nt(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride) {
  const OmpThreads alone(1);
  if (a.dtype == DType::f32) {
    sgemm('T', a, b, b.rows, out, out_stride);
    return;
  }
  const Bf16Product& product =
      bf16_product({a.rows, b.rows, a.columns, a.stride, b.stride, out_stride});
  thread_local dnnl::stream stream(cpu_engine());
  const dnnl::memory ma(product.a, cpu_engine(), const_cast<void*>(a.data));
  const dnnl::memory mb(product.b, cpu_engine(), const_cast<void*>(b.data));
  const dnnl::memory mc(product.c, cpu_engine(), out);
  product.primitive.execute(
      stream, {{DNNL_ARG_SRC, ma}, {DNNL_ARG_WEIGHTS, mb}, {DNNL_ARG_DST, mc}});
  stream.wait();
}

void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  const OmpThreads alone(1);
  sgemm('N', a, b, b.columns, out, out_stride, add ? 1.0F : 0.0F);
}

void gemm_parallel_f32(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       const float* b, float* c) {
  const OmpThreads team(threads);
  sgemm('N', {a, DType::f32, m, k, k}, {b, DType::f32, k, n, n}, n, c, n);
}

}  // namespace lca
