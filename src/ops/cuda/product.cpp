// Products through cuBLASLt. It counts by columns: our row-major C [rows][columns] is its Cᵀ, so it
// is asked for Cᵀ = op(B)·Aᵀ, with B first, and every stride is a leading dimension as it is.

#include "ops/cuda/product.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "core/error.h"

namespace lca::cuda {
namespace {

constexpr std::size_t kPlansMost = 4096;

void blas_check(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check(cudaPeekAtLastError(), doing);  // of an earlier kernel: it says more
  fail_internal("{}: cuBLASLt reports: {}", doing, cublasLtGetStatusString(status));
}

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* thing) const {
    kDestroy(thing);
  }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Matrix = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

/// A product that has been looked up: how to call it, and with which algorithm.
struct Plan {
  Operation operation;
  Matrix a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

/// Everything an algorithm depends on.
using Key = std::array<std::int64_t, 17>;

/// Of a pointer, at most 256: more makes no difference to an algorithm.
std::int64_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return static_cast<std::int64_t>(address & (~address + 1));
}

/// A row-major [rows][width] as cuBLAS sees it: `width` rows in `rows` columns.
Matrix matrix(cudaDataType_t type, std::int64_t rows, std::int64_t width, std::int64_t stride,
              int batch, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  blas_check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(width),
                                        static_cast<std::uint64_t>(rows), std::max(stride, width)),
             "describing a matrix");
  Matrix layout(made);
  if (batch > 1) {
    const std::int32_t count = batch;
    blas_check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count),
               "describing a batch");
    blas_check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &batch_stride, sizeof batch_stride),
               "describing a batch");
  }
  return layout;
}

Plan plan_make(cublasLtHandle_t handle, const Product& p) {
  Plan plan;
  cublasLtMatmulDesc_t operation = nullptr;
  blas_check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "describing a product");
  plan.operation.reset(operation);
  const cublasOperation_t first = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  blas_check(
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
      "describing a product");

  const cublasOperation_t second = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  blas_check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                            sizeof second),
             "describing a product");

  plan.a = p.a_transposed ? matrix(CUDA_R_16BF, p.inner, p.rows, p.a_stride, p.batch, p.a_batch)
                          : matrix(CUDA_R_16BF, p.rows, p.inner, p.a_stride, p.batch, p.a_batch);
  plan.b = p.b_transposed ? matrix(CUDA_R_16BF, p.columns, p.inner, p.b_stride, p.batch, p.b_batch)
                          : matrix(CUDA_R_16BF, p.inner, p.columns, p.b_stride, p.batch, p.b_batch);
  plan.c = matrix(p.c_float ? CUDA_R_32F : CUDA_R_16BF, p.rows, p.columns, p.c_stride, p.batch,
                  p.c_batch);

  cublasLtMatmulPreference_t preference = nullptr;
  blas_check(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
  const Preference owned(preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    blas_check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
               "choosing an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{Products::kScratchBytes});
  // Views into larger tensors: without being told, cuBLASLt takes 256 bytes for granted.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(alignment(p.b)));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(alignment(p.a)));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignment(p.c)));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignment(p.c)));

  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation, plan.b.get(), plan.a.get(), plan.c.get(),
                                     plan.c.get(), preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    fail_internal("no algorithm for a product of {} x {} x {} (batch {}): cuBLASLt reports: {}",
                  p.rows, p.columns, p.inner, p.batch, cublasLtGetStatusString(status));
  }
  plan.algorithm = found.algo;
  return plan;
}

void sizes_check(const Product& p) {
  const std::int64_t b_rows = p.b_transposed ? p.columns : p.inner;
  const std::int64_t b_width = p.b_transposed ? p.inner : p.columns;
  const auto wrong = [](std::int64_t rows, std::int64_t width, std::int64_t stride) {
    return rows < 0 || width < 0 || (rows > 1 && stride < width);
  };
  if ((p.a_transposed ? wrong(p.inner, p.rows, p.a_stride) : wrong(p.rows, p.inner, p.a_stride)) ||
      wrong(b_rows, b_width, p.b_stride) || wrong(p.rows, p.columns, p.c_stride) || p.batch < 0) {
    fail_input("a product of {} x {} x {} (batch {}) with row strides {}, {}, {}: rows overlap",
               p.rows, p.columns, p.inner, p.batch, p.a_stride, p.b_stride, p.c_stride);
  }
}

}  // namespace

struct Products::State {
  explicit State(const Device& of) : device(of) {
    const DeviceScope scope(device);
    cublasLtHandle_t made = nullptr;
    blas_check(cublasLtCreate(&made), "starting cuBLASLt");
    handle.reset(made);
  }

  const Plan& plan_for(const Product& p) {
    const Key key{p.rows,         p.columns,      p.inner,        p.a_stride,     p.b_stride,
                  p.c_stride,     p.batch,        p.a_batch,      p.b_batch,      p.c_batch,
                  alignment(p.a), alignment(p.b), alignment(p.c), p.b_transposed, p.c_float,
                  p.accumulate,   p.a_transposed};
    const auto known = plans.find(key);
    if (known != plans.end()) return known->second;
    if (plans.size() >= kPlansMost) plans.clear();
    return plans.emplace(key, plan_make(handle.get(), p)).first->second;
  }

  const Device& device;
  Handle handle;
  std::map<Key, Plan> plans;
};

Products::Products(const Device& device) : state_(std::make_unique<State>(device)) {}

Products::~Products() = default;

void Products::multiply(const Product& product, void* scratch, cudaStream_t stream) {
  sizes_check(product);
  if (product.rows == 0 || product.columns == 0 || product.batch == 0) return;
  if (product.inner == 0) {  // nothing to add up
    if (product.accumulate) return;
    const std::size_t size = product.c_float ? sizeof(float) : sizeof(bf16);
    const std::int64_t stride = std::max(product.c_stride, product.columns);
    for (int i = 0; i < product.batch; ++i) {
      char* const to = static_cast<char*>(product.c) + i * product.c_batch * std::int64_t(size);
      check(cudaMemset2DAsync(to, static_cast<std::size_t>(stride) * size, 0,
                              static_cast<std::size_t>(product.columns) * size,
                              static_cast<std::size_t>(product.rows), stream),
            "clearing a product");
    }
    return;
  }
  const Plan& plan = state_->plan_for(product);
  const float before = product.accumulate ? 1 : 0;
  blas_check(
      cublasLtMatmul(state_->handle.get(), plan.operation.get(), &product.alpha, product.b,
                     plan.b.get(), product.a, plan.a.get(), &before, product.c, plan.c.get(),
                     product.c, plan.c.get(), &plan.algorithm, scratch, kScratchBytes, stream),
      "multiplying matrices on the GPU");
}

}  // namespace lca::cuda
