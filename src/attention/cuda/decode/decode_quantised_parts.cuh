#pragma once
/// The inside of Hopper's decode kernel for quantised representatives (decode_quantised_sm90.cu),
/// first part: its shared memory, numbers in half precision, the softmax of a tile, and results on
/// their way to the blocks that own their columns.

#include <cuda_fp16.h>

#include "attention/cuda/decode/decode_helpers.cuh"
#include "attention/cuda/decode/decode_inbox.cuh"

namespace lca::cuda::decoding::streaming {

inline constexpr int kNarrowStages = 3;
inline constexpr int kNarrowHeads = kBlockHeads;
inline constexpr int kPageParts = R::kSemantic / 128;      ///< panels of 128 bytes in a page's rows
inline constexpr int kPagePanelBytes = kPageRows * 128;    ///< of one panel
inline constexpr int kExactPanelBytes = kExactTile * 128;  ///< 64 columns
inline constexpr int kExactPanels = R::kWidth / 64;
inline constexpr int kMergeStride = 20;  ///< floats of a column's heads, without bank conflicts

/// A tile: latents as stored, RoPE keys (bf16), scales and biases; or bf16 rows.
struct NarrowStage {
  static constexpr int kRope = kPageParts * kPagePanelBytes;
  static constexpr int kScales = kRope + kPagePanelBytes;
  static constexpr int kBias = kScales + kPageRows * R::kScales * 4;
  static constexpr int kBytes = kBias + kPageRows * 4;
  static_assert(kExactPanels * kExactPanelBytes <= kBytes);
  alignas(1024) unsigned char bytes[kBytes];
};

struct NarrowShared {
  NarrowStage stage[kNarrowStages];                    // at the end: results of both warp groups
  float parts[2][kPageParts][kNarrowHeads][kTile];     // scores of 128 columns each
  alignas(128) unsigned char far[kNarrowHeads * 128];  // entry positions: RoPE parts, rotated
  alignas(128) unsigned char weights[2][kNarrowHeads * 128];  // P: a row of 64 entries a head
  float rescale[2][kNarrowHeads];
  float tops[2][kNarrowHeads], sums[2][kNarrowHeads];  // at the end
  Inbox<R::kValue> inbox;
  FreshGroup fresh;
  LoadBarrier full[kNarrowStages][2];  // one for each group: a stage changes hands with every use
  Barrier empty[kNarrowStages];
  Barrier group_met[2];
  LoadBarrier inbox_full;

  __device__ __forceinline__ float* merge_space(int group) {
    return reinterpret_cast<float*>(stage) + group * (R::kValue * kMergeStride);
  }
};
static_assert(2 * R::kValue * kMergeStride * 4 <= sizeof(NarrowShared::stage));

/// c[16×8] += a[16×16]·b[16×8] of half precision; fragments as multiply's.
__device__ __forceinline__ void multiply_half(float (&c)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t pack_half(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float2 unpack_half(std::uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ __forceinline__ std::uint32_t half_product(std::uint32_t a, std::uint32_t b) {
  const __half2 product =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

/// Four stored values, bytes in order of the word, as two pairs of half precision.
template <GroupType kType>
__device__ __forceinline__ void widen(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (kType == GroupType::fp8) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
        : "=r"(low), "=r"(high)
        : "r"(word));
  } else {
    // A byte below the exponent of 1024 is 1024 + byte; the sign bit flipped, value + 128.
    const std::uint32_t biased = word ^ 0x80808080u;
    const std::uint32_t a = __byte_perm(biased, 0x64646464u, 0x4140);
    const std::uint32_t b = __byte_perm(biased, 0x64646464u, 0x4342);
    const __half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1152
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&a), offset);
    const __half2 y = __hsub2(*reinterpret_cast<const __half2*>(&b), offset);
    low = *reinterpret_cast<const std::uint32_t*>(&x);
    high = *reinterpret_cast<const std::uint32_t*>(&y);
  }
}

/// 2 to the exponent of a positive number, and one over it; far from both ends of the range.
__device__ __forceinline__ float power_below(float value) {
  const std::uint32_t exponent = min(max(__float_as_uint(value) >> 23, 27u), 227u);
  return __uint_as_float(exponent << 23);
}
__device__ __forceinline__ float power_inverse(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}

/// Softmax of a warp group's tiles. A thread has one head.
class NarrowSoftmax {
 public:
  __device__ __forceinline__ NarrowSoftmax(const Args& args, NarrowShared& shared, int group)
      : args_(args), shared_(shared), group_(group), lane_(threadIdx.x & 31) {}

  /// Scores to weights in shared memory: half precision for pages, else bf16. Thread: one head,
  /// entries 4·(lane % 8) … and, of 64, those 32 further.
  template <int kEntries>
  __device__ __forceinline__ void tile(const Rows& rows, const unsigned char* stage) {
    constexpr int kHalves = kEntries / 32;
    const int head = this->head();
    const int at = lane_ % 8;
    const float factor = args_.step.scale * kLog2e;
    const bool stored = args_.step.pool.bias != nullptr;
    float x[kHalves][4];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int chunk = (half * 8 + at) ^ 2 * (head & 3);
      float4 sum = *reinterpret_cast<const float4*>(&shared_.parts[group_][0][head][chunk * 4]);
#pragma unroll
      for (int w = 1; w < kPageParts; ++w) {
        const float4 part =
            *reinterpret_cast<const float4*>(&shared_.parts[group_][w][head][chunk * 4]);
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      float4 bias{0.f, 0.f, 0.f, 0.f};
      if (rows.kind != Rows::exact) {
        const float same = rows.kind == Rows::made && stored ? shared_.fresh.bias : args_.bias_all;
        bias = {same, same, same, same};
        if (rows.kind == Rows::page && stored) {
          bias = reinterpret_cast<const float4*>(stage + NarrowStage::kBias)[half * 8 + at];
        }
      }
      const float scores[4] = {sum.x, sum.y, sum.z, sum.w};
      const float biases[4] = {bias.x, bias.y, bias.z, bias.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool real = half * 32 + at * 4 + i < rows.count;
        x[half][i] = real ? fmaf(scores[i], factor, biases[i] * kLog2e) : -INFINITY;
      }
    }
    float top = -INFINITY;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top = fmaxf(top, x[half][i]);
    }
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    }
    const bool larger = top > top_ + kLazyRescale;
    const float rescale = larger ? exp2f(top_ - top) : 1.f;
    if (larger) top_ = top;
    if (at == 0) shared_.rescale[group_][head] = rescale;
    float sum = 0;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = exp2_fast(x[half][i] - top_);
        sum += w[i];
      }
      uint2 packed;
      if constexpr (kEntries == kTile) {
        packed = {pack_half(w[0], w[1]), pack_half(w[2], w[3])};
      } else {
        packed = {pack_bf16(w[0], w[1]), pack_bf16(w[2], w[3])};
      }
      *reinterpret_cast<uint2*>(shared_.weights[group_] + chunk_offset(head, half * 4 + at / 2, 0) +
                                at % 2 * 8) = packed;
    }
    sum_ = sum_ * rescale + sum;
  }

  /// After the last tile: maxima and sums of all heads to shared memory.
  __device__ __forceinline__ void stats_write() const {
    float sum = sum_;
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane_ % 8 == 0) {
      shared_.tops[group_][head()] = top_;
      shared_.sums[group_][head()] = sum;
    }
  }

 private:
  __device__ __forceinline__ int head() const { return (threadIdx.x / 32 & 3) * 4 + lane_ / 8; }

  const Args& args_;
  NarrowShared& shared_;
  int group_, lane_;
  float top_ = -INFINITY, sum_ = 0;  // the sum of this thread's entries
};

/// Both warp groups' results as one, sent to the blocks that own the columns: thread u of
/// both has two heads of every 32nd column.
__device__ __forceinline__ void narrow_results_send(const Args& args, NarrowShared& shared, int u) {
  const int first_head = u % 8 * 2;
  float weight[2][2];  // of group, head
  float2 stats[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float a = shared.tops[0][first_head + k];
    const float b = shared.tops[1][first_head + k];
    const float top = fmaxf(a, b);
    weight[0][k] = a == -INFINITY ? 0.f : exp2_fast(a - top);
    weight[1][k] = b == -INFINITY ? 0.f : exp2_fast(b - top);
    stats[k] = {top, shared.sums[0][first_head + k] * weight[0][k] +
                         shared.sums[1][first_head + k] * weight[1][k]};
  }
  const int cluster = args.cluster;
  const int rank = static_cast<int>(blockIdx.x);
  const int width = R::kValue / cluster;
  const int shift = __ffs(width) - 1;
  if (u / 8 < cluster) {
    const Mailbox to(&shared.inbox.stats[rank][first_head], &shared.inbox_full, u / 8, cluster);
    to.send(0, stats[0].x, stats[0].y);
    to.send(2, stats[1].x, stats[1].y);
  }
  __syncwarp();
  float* const values = shared.inbox.values + rank * width * kNarrowHeads;
#pragma unroll 4
  for (int column = u / 8; column < R::kValue; column += 32) {
    const float2 a = *reinterpret_cast<const float2*>(shared.merge_space(0) +
                                                      column * kMergeStride + first_head);
    const float2 b = *reinterpret_cast<const float2*>(shared.merge_space(1) +
                                                      column * kMergeStride + first_head);
    const Mailbox to(values, &shared.inbox_full, column >> shift, cluster);
    to.send(inbox_offset(column & (width - 1), first_head), a.x * weight[0][0] + b.x * weight[1][0],
            a.y * weight[0][1] + b.y * weight[1][1]);
  }
}

}  // namespace lca::cuda::decoding::streaming
