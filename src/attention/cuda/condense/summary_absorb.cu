// Mean queries absorbed into latent space: Σ_h W_uk_hᵀ q̄_h (mechanism §3).
//
// Shapes (DeepSeek-V2-Lite, 128K): means [8128][2][2048] bf16 (high and low part), W_uk
// [2048][512], summary [8128][512 + 64] float. Two products of 17 Gflop on tensor cores with
// float32 sums: about 50 µs; 67 MB read, 19 MB written: 20 µs. One mean alone (summary mode
// `prompt`) reads 2 MB of W: 0.5 µs at 4.27 TB/s, so it is bound by latency: a kernel of its own,
// spread over many blocks.
#include <cstdint>

#include "attention/cuda/condense/condense.h"
#include "attention/cuda/condense/condense_vectors.h"
#include "ops/cuda/product.h"

namespace lca::cuda {
namespace {

constexpr int kAbsorbThreads = 512;
constexpr int kAbsorbColumns = 16;  // a full sector of 32 bytes from each row of W
constexpr std::int64_t kAbsorbFew = 4;

// A few means by W_uk without tensor cores: a block makes 16 columns of one mean, its threads cut
// over W's rows. 2 MB of W over 32 blocks, 8 loads of 16 bytes in flight in each thread.
template <int kVec>
__global__ __launch_bounds__(kAbsorbThreads) void absorb_few_kernel(const bf16* nope,
                                                                    const float* rope,
                                                                    const bf16* w, float* summary,
                                                                    int inner, int d_c, int d_r) {
  constexpr int kAcross = kAbsorbColumns / kVec;
  constexpr int kSlices = kAbsorbThreads / kAcross;
  constexpr int kWarps = kAbsorbThreads / 32;
  constexpr int kBatch = 8;
  __shared__ float partial[kWarps][kAbsorbColumns];

  const int tid = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int out_heads = static_cast<int>(gridDim.y);
  const std::int64_t row = blockIdx.z;
  const int column = static_cast<int>(blockIdx.x) * kAbsorbColumns + (tid % kAcross) * kVec;
  const std::int64_t all = static_cast<std::int64_t>(inner) * out_heads;
  const bf16* high = nope + row * 2 * all + static_cast<std::int64_t>(head) * inner;
  const bf16* low = high + all;
  const bf16* columns = w + static_cast<std::int64_t>(head) * inner * d_c + column;

  float sum[kVec] = {};
  if (column < d_c) {
    for (int k = tid / kAcross; k < inner; k += kBatch * kSlices) {
      Vector<kVec> batch[kBatch];
      float q[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int at = k + b * kSlices;
        if (at < inner) {
          batch[b].load(columns + static_cast<std::int64_t>(at) * d_c);
          q[b] = __bfloat162float(high[at]) + __bfloat162float(low[at]);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (k + b * kSlices < inner) {
          float value[kVec];
          batch[b].get(value);
#pragma unroll
          for (int i = 0; i < kVec; ++i) sum[i] += q[b] * value[i];
        }
      }
    }
  }
  // Lanes that hold the same columns differ in the bits of kAcross and above.
#pragma unroll
  for (int mask = kAcross; mask < 32; mask *= 2) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
  }
  if (tid % 32 < kAcross) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) partial[tid / 32][(tid % 32) * kVec + i] = sum[i];
  }
  __syncthreads();
  float* to = summary + (row * out_heads + head) * (d_c + d_r);
  const int mine = static_cast<int>(blockIdx.x) * kAbsorbColumns + tid;
  if (tid < kAbsorbColumns && mine < d_c) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += partial[i][tid];
    to[mine] = total;
  }
  if (blockIdx.x == 0) {
    for (int i = tid; i < d_r; i += kAbsorbThreads) {
      to[d_c + i] = rope[(row * out_heads + head) * d_r + i];
    }
  }
}

// summary[row][d_c …] = rope[row], for rows of d_c + d_r.
__global__ void rope_copy_kernel(const float* rope, float* summary, std::int64_t values, int d_c,
                                 int d_r) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= values) return;
  const std::int64_t row = at / d_r;
  summary[row * (d_c + d_r) + d_c + (at - row * d_r)] = rope[at];
}

}  // namespace

void summary_absorb(const AttentionShape& shape, HeadReduce reduce, const QueryMeans& means,
                    std::int64_t count, const bf16* w_uk, float* summary,
                    const ProductSpace& products, const Queue& queue, MeanParts parts) {
  if (count <= 0) return;
  if (shape.form == Form::gqa) {
    if (summary == nullptr || summary == means.rope) return;
    const auto values =
        static_cast<std::size_t>(count * shape.kv_heads * summary_width(shape, reduce));
    check(cudaMemcpyAsync(summary, means.rope, values * sizeof(float), cudaMemcpyDeviceToDevice,
                          queue),
          "copying the summary");
    return;
  }

  const int out_heads = static_cast<int>(reduce == HeadReduce::max ? shape.heads : 1);
  const int inner = static_cast<int>(shape.heads / out_heads * shape.d_nope);
  const int d_c = static_cast<int>(shape.d_latent);
  const int d_r = static_cast<int>(shape.d_rope);
  if (count <= kAbsorbFew && out_heads <= 65535) {
    const dim3 grid(static_cast<unsigned>((d_c + kAbsorbColumns - 1) / kAbsorbColumns),
                    static_cast<unsigned>(out_heads), static_cast<unsigned>(count));
    const auto kernel =
        d_c % 8 == 0 && aligned_16(w_uk) ? absorb_few_kernel<8> : absorb_few_kernel<1>;
    kernel<<<grid, kAbsorbThreads, 0, queue.stream>>>(means.nope, means.rope, w_uk, summary, inner,
                                                      d_c, d_r);
    check(cudaGetLastError(), "absorbing a mean query");
    return;
  }

  const std::int64_t all = static_cast<std::int64_t>(inner) * out_heads;
  Product part;
  part.b = w_uk;
  part.c = summary;
  part.rows = count;
  part.columns = d_c;
  part.inner = inner;
  part.a_stride = 2 * all;
  part.b_stride = d_c;
  part.c_stride = static_cast<std::int64_t>(out_heads) * (d_c + d_r);
  part.b_transposed = false;
  part.c_float = true;
  part.batch = out_heads;
  part.a_batch = inner;
  part.b_batch = static_cast<std::int64_t>(inner) * d_c;
  part.c_batch = d_c + d_r;
  part.a = means.nope;
  products.multiply(part, queue);
  if (parts == MeanParts::both) {
    part.a = means.nope + all;  // what the high part left over
    part.accumulate = true;
    products.multiply(part, queue);
  }

  constexpr int kCopyThreads = 256;
  const std::int64_t values = count * out_heads * d_r;
  rope_copy_kernel<<<static_cast<unsigned>((values + kCopyThreads - 1) / kCopyThreads),
                     kCopyThreads, 0, queue.stream>>>(means.rope, summary, values, d_c, d_r);
  check(cudaGetLastError(), "completing the summary");
}

}  // namespace lca::cuda
