#include "ops/matmul.h"

#include <dnnl.h>

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include "core/cpu_level.h"
#include "core/error.h"
#include "core/workspace.h"
#include "ops/cpu/omp_threads.h"

namespace lca {

namespace {

/// oneDNN generates its code on first use, and crashes where there is no memory for it.
constexpr std::size_t kCodeBytes = std::size_t{32} << 20;

/// Keeps oneDNN to the level in use. It takes no such wish after its first product.
void isa_settle() {
#if defined(__x86_64__)
  static const bool settled = [] {
    const CpuLevel level = cpu_level();
    if (level < CpuLevel::avx512) {
      dnnl::set_max_cpu_isa(level == CpuLevel::avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::sse41);
    }
    return true;
  }();
  static_cast<void>(settled);
#endif
}

}  // namespace

void matmul_prepare() {
  static const bool prepared = [] {
    memory_room_require(kCodeBytes);
    isa_settle();
    // One product for each way it chooses between: one row, few and many.
    constexpr std::int64_t kMost = 64;
    const std::vector<float> in(kMost * kMost, 1.0F);
    std::vector<float> out(kMost * kMost);
    for (const char transposed : {'N', 'T'}) {
      for (const float beta : {0.0F, 1.0F}) {
        for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, kMost}) {
          dnnl_sgemm('N', transposed, rows, kMost, kMost, 1.0F, in.data(), kMost, in.data(), kMost,
                     beta, out.data(), kMost);
        }
      }
    }
    return true;
  }();
  static_cast<void>(prepared);
}

namespace {

void sgemm_check(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success) fail_internal("oneDNN refused a float32 product ({})", int{status});
}

void multiply(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
              float beta) {
  matmul_prepare();
  const auto status = dnnl_sgemm('N', 'N', a.rows, b.columns, a.columns, 1.0F, a.data, a.stride,
                                 b.data, b.stride, beta, out, out_stride);
  sgemm_check(status);
}

}  // namespace

void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  const OmpThreads alone(1);
  multiply(a, b, out, out_stride, add ? 1.0F : 0.0F);
}

void matmul_nt(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  const OmpThreads alone(1);
  matmul_prepare();
  const auto status = dnnl_sgemm('N', 'T', a.rows, b.rows, a.columns, 1.0F, a.data, a.stride,
                                 b.data, b.stride, add ? 1.0F : 0.0F, out, out_stride);
  sgemm_check(status);
}

bool product_bf16_is_native() {
  isa_settle();
  static const bool native = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_bf16;
  return native;
}

namespace {

/// A product of one shape, made once per thread: oneDNN generates code for it.
struct Bf16Product {
  dnnl::memory::desc a, b, c;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

Bf16Product& bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t out_stride) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  // Prompts end in chunks of any length, so shapes are many; forgetting them all is cheap.
  constexpr std::size_t kMostShapes = 256;
  thread_local std::map<Key, Bf16Product> products;
  const Key key{m, n, k, out_stride};
  const auto found = products.find(key);
  if (found != products.end()) return found->second;
  if (products.size() >= kMostShapes) products.clear();

  memory_room_require(kCodeBytes);
  using Memory = dnnl::memory;
  const Memory::desc a({m, k}, Memory::data_type::bf16, Memory::dims{k, 1});
  const Memory::desc b({k, n}, Memory::data_type::bf16, Memory::dims{1, k});
  const Memory::desc c({m, n}, Memory::data_type::f32, Memory::dims{out_stride, 1});
  const dnnl::matmul::desc shape(a, b, c);
  const dnnl::matmul::primitive_desc plan(shape, cpu_engine());
  return products.emplace(key, Bf16Product{a, b, c, dnnl::matmul(plan)}).first->second;
}

}  // namespace

void matmul_nt_bf16(std::int64_t m, std::int64_t n, std::int64_t k, const bf16_bits* a,
                    const bf16_bits* b, float* out, std::int64_t out_stride) {
  const OmpThreads alone(1);
  try {
    thread_local dnnl::stream stream(cpu_engine());
    for (std::int64_t first = 0; first < m;) {
      const std::int64_t rows = bf16_rows_together(m - first);
      const Bf16Product& product = bf16_product(rows, n, k, out_stride);
      const dnnl::memory from(product.a, cpu_engine(), const_cast<bf16_bits*>(a + first * k));
      const dnnl::memory weights(product.b, cpu_engine(), const_cast<bf16_bits*>(b));
      const dnnl::memory to(product.c, cpu_engine(), out + first * out_stride);
      product.primitive.execute(
          stream, {{DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, to}});
      stream.wait();
      first += rows;
    }
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    fail_internal("oneDNN refused a bfloat16 product: {}", error.what());
  }
}

namespace {

/// Multiplies the first rows of some matrix, more and more of them, and compares them with those of
/// the whole.
template <typename T, typename Multiply>
bool rows_are_alike(std::int64_t n, std::int64_t k, const T& one, const Multiply& multiply) {
  constexpr std::int64_t kMost = 160;
  std::vector<T> a(static_cast<std::size_t>(kMost * k), one);
  std::vector<T> b(static_cast<std::size_t>(n * k), one);
  // Values whose sums depend on the order in which they are added.
  std::uint32_t seed = 1;
  const auto fill = [&seed](std::vector<T>& values) {
    for (T& value : values) {
      seed = seed * 1664525u + 1013904223u;
      const float number = static_cast<float>(seed >> 8) / 8388608.0F - 1.0F;
      if constexpr (std::is_same_v<T, float>) {
        value = number;
      } else {
        value = bf16_from_f32(number);
      }
    }
  };
  fill(a);
  fill(b);
  std::vector<float> whole(static_cast<std::size_t>(kMost * n));
  std::vector<float> some(whole.size());
  multiply(kMost, n, k, a.data(), b.data(), whole.data());
  for (const std::int64_t rows :
       {kAlikeRows, std::int64_t{17}, std::int64_t{24}, std::int64_t{31}, std::int64_t{32},
        std::int64_t{47}, std::int64_t{64}, std::int64_t{96}, std::int64_t{129}}) {
    multiply(rows, n, k, a.data(), b.data(), some.data());
    if (!std::equal(some.begin(), some.begin() + rows * n, whole.begin())) return false;
  }
  return true;
}

template <typename T, typename Multiply>
bool shapes_are_alike(const T& one, const Multiply& multiply) {
  constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{96, 576},   {32, 64}, {64, 16},
                                                               {256, 1536}, {32, 48}, {40, 200}};
  for (const auto& [n, k] : kShapes) {
    if (!rows_are_alike(n, k, one, multiply)) return false;
  }
  return true;
}

}  // namespace

bool product_rows_are_alike(bool bf16) {
  if (!bf16) {
    static const bool alike =
        shapes_are_alike(1.0F, [](std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                                  const float* b, float* out) {
          matmul_nt({a, m, k, k}, {b, n, k, k}, out, n);
        });
    return alike;
  }
  static const bool alike = shapes_are_alike(
      bf16_bits{0}, [](std::int64_t m, std::int64_t n, std::int64_t k, const bf16_bits* a,
                       const bf16_bits* b, float* out) { matmul_nt_bf16(m, n, k, a, b, out, n); });
  return alike;
}

void gemm_parallel_f32(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       const float* b, float* c) {
  const OmpThreads team(threads);
  multiply({a, m, k, k}, {b, k, n, n}, c, n, 0);
}

}  // namespace lca
