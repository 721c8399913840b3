#pragma once
/// The few Hopper pieces the kernels of this folder are built from: matrix descriptors for wgmma,
/// products on register arrays, and stores of accumulators. Instructions come from CuTe.

#include <cuda_bf16.h>

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>

#include <cstdint>
#include <utility>

#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {

using Barrier = cutlass::arch::ClusterBarrier;
using LoadBarrier = cutlass::arch::ClusterTransactionBarrier;
using cutlass::arch::NamedBarrier;
namespace gmma = cute::SM90::GMMA;

/// wgmma's field of a swizzled layout: rows of 128 or of 64 bytes.
template <int RowBytes>
inline constexpr std::uint64_t kSwizzle = RowBytes == 128 ? 1 : 2;

/// A descriptor of a tile whose rows of RowBytes lie one after another, swizzled as TMA writes them
/// (eight rows are one pattern), `offset` bytes after shared address 16·`base`. `leading` is the
/// distance of the next RowBytes-wide panel; only operands whose contiguous dimension is not the
/// inner one (values) look at it.
template <int RowBytes>
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t base, std::uint32_t offset,
                                                    std::uint32_t leading = 16) {
  constexpr std::uint64_t high = (8 * RowBytes / 16) | kSwizzle<RowBytes> << 30;
  return high << 32 | (base + (offset / 16 + (leading / 16 << 16)));
}

namespace detail {

template <int N>
struct Atom;
template <>
struct Atom<64> {
  using Shared = gmma::MMA_64x64x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
  using Registers = gmma::MMA_64x64x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>;
};
template <>
struct Atom<128> {
  using Shared = gmma::MMA_64x128x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
  using Registers = gmma::MMA_64x128x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>;
};

template <>
struct Atom<80> {
  using Shared = gmma::MMA_64x80x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<96> {
  using Shared = gmma::MMA_64x96x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<176> {
  using Shared = gmma::MMA_64x176x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<192> {
  using Shared = gmma::MMA_64x192x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
  using Registers = gmma::MMA_64x192x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>;
};

template <typename Op, std::size_t... I>
__device__ __forceinline__ void fma_shared(float* d, std::uint64_t a, std::uint64_t b, bool add,
                                           std::index_sequence<I...>) {
  Op::fma(a, b, d[I]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}
template <typename Op, std::size_t... I>
__device__ __forceinline__ void fma_registers(float* d, const std::uint32_t* a, std::uint64_t b,
                                              bool add, std::index_sequence<I...>) {
  Op::fma(a[0], a[1], a[2], a[3], b, d[I]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

}  // namespace detail

/// D [64×N] (+)= A [64×16]·B [N×16]ᵀ, both in shared memory with the inner dimension contiguous.
template <int N>
__device__ __forceinline__ void product_shared(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                               bool add) {
  detail::fma_shared<typename detail::Atom<N>::Shared>(d, a, b, add,
                                                       std::make_index_sequence<N / 2>());
}

/// D [64×N] += A [64×16]·B [16×N], A in registers, B in shared memory with N contiguous.
template <int N>
__device__ __forceinline__ void product_registers(float (&d)[N / 2], const std::uint32_t* a,
                                                  std::uint64_t b, bool add) {
  detail::fma_registers<typename detail::Atom<N>::Registers>(d, a, b, add,
                                                             std::make_index_sequence<N / 2>());
}

/// Keeps the compiler from moving uses of accumulators across asynchronous products.
template <int N>
__device__ __forceinline__ void accumulators_fence(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(d[i]);
}

/// A new maximum moves the running one only when it is this much larger (in powers of two): most
/// blocks then leave the output alone, and probabilities stay below 2^8.
inline constexpr float kLazyRescale = 8.0f;

/// Shared memory that threads wrote is read by wgmma or TMA next: each writer calls this before the
/// barrier.
__device__ __forceinline__ void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Transposes a 4×4 matrix held by the four lanes of a quad: lane q's v[k] becomes lane k's v[q].
__device__ __forceinline__ void quad_transpose(std::uint32_t (&v)[4], int q) {
  const bool odd = q & 1;
  const bool high = q & 2;
  std::uint32_t a = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
  std::uint32_t b = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
  if (odd) {
    v[0] = a;
    v[2] = b;
  } else {
    v[1] = a;
    v[3] = b;
  }
  a = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
  b = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
  if (high) {
    v[0] = a;
    v[1] = b;
  } else {
    v[2] = a;
    v[3] = b;
  }
}

}  // namespace lca::cuda
