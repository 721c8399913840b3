#pragma once
/// The inside of Hopper's decode kernel for quantised representatives (decode_quantised_sm90.cu):
/// its shared memory, and what a consumer warp group does with a tile.
///
/// A warp of a consumer group has 128 columns of the latent, which share a scale, for scores and
/// values alike. Pages stay as they are in shared memory; fragments are widened in registers, to
/// half precision, which holds both 8-bit types exactly. Scales stay outside the products: scores
/// are multiplied with them after, probabilities before.
///   columns of a score   any order will do as long as query and key agree: a thread takes 32
///                        neighbours (column_at), whole 16-byte chunks of a row
///   columns of a value   ldmatrix transposes pairs of bytes, so that a fragment has every second
///                        column of 16; the end of the pages puts the results in order (pages_end)
/// Exact tokens, and the representative made in this step, are bf16 and multiplied as such.

#include <cuda_fp16.h>

#include "attention/cuda/decode/decode_group.cuh"
#include "attention/cuda/decode/decode_inbox.cuh"
#include "attention/cuda/decode/decode_warps.cuh"

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
  NarrowStage stage[kNarrowStages];                 // at the end: results of both warp groups
  float parts[2][kPageParts][kNarrowHeads][kTile];  // scores of 128 columns each
  alignas(
      128) unsigned char far[kNarrowHeads * 128];  // entry positions: RoPE parts for far entries
  alignas(128) unsigned char weights[2][kNarrowHeads * 128];  // P: a row of 64 entries a head
  alignas(16) std::uint32_t fresh[R::kWidth / 2];             // the representative of this step
  float fresh_bias;
  float rescale[2][kNarrowHeads];
  float tops[2][kNarrowHeads], sums[2][kNarrowHeads];  // at the end
  Inbox<R::kValue> inbox;
  CondenseScratch<R, Helpers> condense_scratch;
  LoadBarrier full[kNarrowStages][2];  // one for each group: a stage changes hands with every use
  Barrier empty[kNarrowStages];
  Barrier fresh_made;
  Barrier group_met[2], helpers_met;
  LoadBarrier inbox_full;
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

/// One warp group's share of a block: every other tile.
template <GroupType kType, bool kEntry>
class NarrowConsumer {
 public:
  __device__ __forceinline__ NarrowConsumer(const Args& args, NarrowShared& shared, int group)
      : args_(args), shared_(shared), barrier_(shared.group_met[group]), group_(group) {
    thread_ = threadIdx.x & 127;
    lane_ = threadIdx.x & 31;
    warp_ = threadIdx.x / 32 & 3;
    row_ = lane_ / 4;
    quad_ = lane_ & 3;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o_[j][i] = 0;
    }
  }

  /// Asks for this thread's queries, heads row_ and row_ + 8; needs nothing but the launch.
  __device__ __forceinline__ void queries_load(int session, const Heads& heads) {
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int head = row_ + 8 * low;
      const bool real = head < heads.count;
      const bf16* const from =
          args_.step.queries +
          (std::int64_t{session} * args_.heads + heads.first + (real ? head : 0)) * R::kScore;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint4 chunk{0, 0, 0, 0};
        if (real) {
          chunk = load_after_wait(
              reinterpret_cast<const uint4*>(from + warp_ * 128 + column_at(2 * i)));
        }
        q_[2 * i][low] = chunk.x;
        q_[2 * i][2 + low] = chunk.y;
        q_[2 * i + 1][low] = chunk.z;
        q_[2 * i + 1][2 + low] = chunk.w;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        near_[2 * k + low] = 0;
        if (real) {
          near_[2 * k + low] = static_cast<std::uint32_t>(
              load_after_wait(reinterpret_cast<const int*>(from + R::kFirst + rope_column(k))));
        }
      }
    }
  }

  /// Where the session stands; after all threads have written the far queries.
  __device__ __forceinline__ void place(const Place& at) {
    entries_ = at.entries;
    if constexpr (kEntry) {
      far_end_ = FarEntries(at).end;
      matrix_load(
          far_, shared_address(shared_.far + chunk_offset(lane_ % 16, 2 * warp_ + lane_ / 16, 0)));
    }
  }

  /// Queries to half precision, each head's largest near the top of its range: what is lost is
  /// 2⁻³⁸ of that.
  __device__ __forceinline__ void pages_begin() {
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      float most = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int i = low; i < 4; i += 2) {
          const float2 value = unpack_bf16(q_[k][i]);
          most = fmaxf(most, fmaxf(fabsf(value.x), fabsf(value.y)));
        }
      }
      q_power_[low] = power_below(quad_max(most)) * 0x1p-14f;
      const float factor = power_inverse(q_power_[low]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int i = low; i < 4; i += 2) {
          const float2 value = unpack_bf16(q_[k][i]);
          q_[k][i] = pack_half(value.x * factor, value.y * factor);
        }
      }
    }
  }

  /// From pages to bf16 rows: queries back where `more` is to come, results in units of 1 and in
  /// order of columns. A thread has columns 4·quad … of 16 (even ones in the first tile, odd ones
  /// in the second) and gets 2·quad and the next of each 8.
  __device__ __forceinline__ void pages_end(bool more) {
    if (more) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 value = unpack_half(q_[k][i]);
          q_[k][i] = pack_bf16(value.x * q_power_[i & 1], value.y * q_power_[i & 1]);
        }
      }
    }
    const int from = (lane_ & ~3) + quad_ / 2;
    const bool odd = quad_ & 1;
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const float have[4] = {o_[j][r] * unit_, o_[j + 1][r] * unit_, o_[j][r + 1] * unit_,
                               o_[j + 1][r + 1] * unit_};
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          float got[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) got[i] = __shfl_sync(~0u, have[i], from + 2 * high);
          o_[j + high][r] = odd ? got[2] : got[0];
          o_[j + high][r + 1] = odd ? got[3] : got[1];
        }
      }
    }
  }

  /// A page of representatives, tile number `index` of the block; between pages_begin and
  /// pages_end.
  __device__ __forceinline__ void page(const Rows& rows, int index) {
    const int which = index % kNarrowStages;
    unsigned char* const stage = shared_.stage[which].bytes;
    shared_.full[which][group_].wait(full_phase(index));
    if (rows.count < kTile) {
      rows_clear<kPageParts, kPagePanelBytes>(rows.count, stage);
      shared_write_end();
    }
    std::uint32_t scales[kTile / 8];  // of entries 8·n + 2·quad and the next, in units, as halves
    page_scores(stage, rows, scales);
    barrier_.sync();
    softmax<kTile>(rows, stage);
    barrier_.sync();
    page_outputs(stage, scales);
    shared_.empty[which].arrive();  // every thread: all read, some wrote
  }

  /// Exact tokens, or the representative of this step. `newest` is this thread's 16 bytes of the
  /// newest token.
  __device__ __forceinline__ void exact(const Rows& rows, int index, const uint4& newest) {
    const int which = index % kNarrowStages;
    unsigned char* const stage = shared_.stage[which].bytes;
    const bool made = rows.kind == Rows::made;
    // The newest token is not in its ring yet, and comes from where it was given.
    const bool has_newest = !made && rows.first + rows.count == entries_;
    if (!made) {
      shared_.full[which][group_].wait(full_phase(index));
    } else {
      // No load goes to this stage: whoever reads it must have finished.
      if (index >= kNarrowStages) shared_.empty[which].wait(index / kNarrowStages - 1 & 1);
      shared_.fresh_made.wait(0);
    }
    if (made || has_newest || rows.count < kExactTile) {
      uint4 row = newest;
      if (made) row = reinterpret_cast<const uint4*>(shared_.fresh)[min(thread_, R::kChunks - 1)];
      if (made || has_newest) row_put(row, rows.count - 1, stage);
      rows_clear<kExactPanels, kExactPanelBytes>(rows.count, stage);
      shared_write_end();
    }
    exact_scores(stage, rows);
    barrier_.sync();
    softmax<kExactTile>(rows, stage);
    barrier_.sync();
    exact_outputs(stage);
    shared_.empty[which].arrive();
  }

  /// After the last tile: maxima and sums of all heads to shared memory.
  __device__ __forceinline__ void stats_write() {
    float sum = sum_;
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane_ % 8 == 0) {
      shared_.tops[group_][softmax_head()] = top_;
      shared_.sums[group_][softmax_head()] = sum;
    }
  }

  /// Results to shared memory, over the stages, which have been read.
  __device__ __forceinline__ void results_give() {
    float* const to = merge_space(group_);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = warp_ * 128 + j * 8 + 2 * quad_ + (i & 1);
        to[column * kMergeStride + row_ + 8 * (i / 2)] = o_[j][i];
      }
    }
  }

  /// Both warp groups' results as one, sent to the blocks that own the columns: a thread has two
  /// heads of every 32nd column.
  __device__ __forceinline__ void results_send() {
    const int u = group_ * 128 + thread_;
    const int first_head = u % 8 * 2;
    float weight[2][2];  // of group, head
    float2 stats[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float a = shared_.tops[0][first_head + k];
      const float b = shared_.tops[1][first_head + k];
      const float top = fmaxf(a, b);
      weight[0][k] = a == -INFINITY ? 0.f : exp2_fast(a - top);
      weight[1][k] = b == -INFINITY ? 0.f : exp2_fast(b - top);
      stats[k] = {top, shared_.sums[0][first_head + k] * weight[0][k] +
                           shared_.sums[1][first_head + k] * weight[1][k]};
    }
    const int cluster = args_.cluster;
    const int rank = static_cast<int>(blockIdx.x);
    const int width = R::kValue / cluster;
    const int shift = __ffs(width) - 1;
    if (u / 8 < cluster) {
      const Mailbox to(&shared_.inbox.stats[rank][first_head], &shared_.inbox_full, u / 8, cluster);
      to.send(0, stats[0].x, stats[0].y);
      to.send(2, stats[1].x, stats[1].y);
    }
    __syncwarp();
    float* const values = shared_.inbox.values + rank * width * kNarrowHeads;
#pragma unroll 4
    for (int column = u / 8; column < R::kValue; column += 32) {
      const float2 a =
          *reinterpret_cast<const float2*>(merge_space(0) + column * kMergeStride + first_head);
      const float2 b =
          *reinterpret_cast<const float2*>(merge_space(1) + column * kMergeStride + first_head);
      const Mailbox to(values, &shared_.inbox_full, column >> shift, cluster);
      to.send(inbox_offset(column & (width - 1), first_head),
              a.x * weight[0][0] + b.x * weight[1][0], a.y * weight[0][1] + b.y * weight[1][1]);
    }
  }

 private:
  static constexpr int kTiles = 128 / 8;  // of 8 columns, of this warp's values

  /// A group has every other use of a stage.
  __device__ static std::uint32_t full_phase(int index) { return index / kNarrowStages / 2 & 1; }
  __device__ __forceinline__ int softmax_head() const { return warp_ * 4 + lane_ / 8; }
  __device__ __forceinline__ float* merge_space(int group) const {
    return reinterpret_cast<float*>(shared_.stage) + group * (R::kValue * kMergeStride);
  }
  /// First of the four columns, of the warp's 128, that a thread has in step k of a score.
  /// Which half of its 32 columns comes first keeps reads of bf16 rows free of bank conflicts.
  __device__ __forceinline__ int column_at(int k) const {
    return quad_ * 32 + ((k >> 2) ^ (quad_ >> 1)) * 16 + (k & 3) * 4;
  }
  /// RoPE channels of this thread: two from here.
  __device__ __forceinline__ int rope_column(int k) const { return warp_ * 16 + k * 8 + quad_ * 2; }
  __device__ __forceinline__ void shared_write_end() {
    async_proxy_fence();  // the stage's next load comes after these writes
    barrier_.sync();
  }

  /// Zeros into rows that hold nothing: even a weight of zero does not cancel a NaN.
  template <int kPanels, int kBytes>
  __device__ __forceinline__ void rows_clear(int first, unsigned char* stage) const {
    // In each panel they are the bytes at the end, however those before are swizzled.
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll 1
      for (int byte = first * 128 + thread_ * 16; byte < kBytes; byte += 2048) {
        *reinterpret_cast<uint4*>(stage + panel * kBytes + byte) = uint4{0, 0, 0, 0};
      }
    }
  }
  /// A row of bf16 that this warp group's threads have, 16 bytes each.
  __device__ __forceinline__ void row_put(const uint4& chunk, int row, unsigned char* stage) const {
    if (thread_ >= R::kChunks) return;
    *reinterpret_cast<uint4*>(stage + chunk_offset(row, thread_, kExactPanelBytes)) = chunk;
  }

  /// RoPE parts of the queries as these entries see them; no tile has entries of both kinds.
  __device__ __forceinline__ void rope_choose(const Rows& rows, std::uint32_t (&rope)[4]) const {
    const bool far = kEntry && rows.first < far_end_;
#pragma unroll
    for (int i = 0; i < 4; ++i) rope[i] = far ? far_[i] : near_[i];
  }

  /// This warp's part of scores of 8 entries (2·quad and the next; heads row_ and row_ + 8).
  __device__ __forceinline__ void part_store(int entries, const float (&s)[4]) const {
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int head = row_ + 8 * low;
      const int chunk = (entries / 4 + quad_ / 2) ^ 2 * (head & 3);
      *reinterpret_cast<float2*>(&shared_.parts[group_][warp_][head][chunk * 4 + quad_ % 2 * 2]) = {
          s[2 * low], s[2 * low + 1]};
    }
  }

  __device__ __forceinline__ void page_scores(const unsigned char* stage, const Rows& rows,
                                              std::uint32_t (&scales)[kTile / 8]) {
    const unsigned char* const panel = stage + warp_ * kPagePanelBytes + row_ * 128;
    const std::uint32_t(&rope)[4] = kEntry ? far_ : near_;  // where they differ, pages are far
    const auto* const stored = reinterpret_cast<const float*>(stage + NarrowStage::kScales) + warp_;
    float scale[kTile / 8][2];
    float most = 0;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int entry = n * 8 + quad_ * 2 + e;
        scale[n][e] = entry < rows.count ? stored[entry * R::kScales] : 0.f;
        most = fmaxf(most, scale[n][e]);
      }
    }
    unit_raise(quad_max(most));
    const float inverse = power_inverse(unit_);
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      scales[n] = pack_half(scale[n][0] * inverse, scale[n][1] * inverse);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[4][4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int chunk = (2 * quad_ + (h ^ quad_ >> 1)) ^ row_;
        uint4 raw[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          raw[n] = *reinterpret_cast<const uint4*>(panel + (half * 4 + n) * 1024 + chunk * 16);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const std::uint32_t word = k == 0   ? raw[n].x
                                       : k == 1 ? raw[n].y
                                       : k == 2 ? raw[n].z
                                                : raw[n].w;
            std::uint32_t low, high;
            widen<kType>(word, low, high);
            multiply_half(s[n], q_[4 * h + k], low, high);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] *= scale[half * 4 + n][i & 1] * q_power_[i / 2];
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        std::uint32_t key[4];
        rope_load(stage + NarrowStage::kRope, half * 32 + n * 8, key);
        multiply(s[n], rope, key[0], key[1]);
        multiply(s[n + 1], rope, key[2], key[3]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) part_store(half * 32 + n * 8, s[n]);
    }
  }

  /// Fragments of this warp's 16 channels of 16 RoPE keys.
  __device__ __forceinline__ void rope_load(const unsigned char* panel, int entries,
                                            std::uint32_t (&key)[4]) const {
    const int row = entries + lane_ / 16 * 8 + lane_ % 8;
    const int chunk = (2 * warp_ + lane_ / 8 % 2) ^ (lane_ & 7);
    matrix_load(key, shared_address(panel + row * 128 + chunk * 16));
  }

  /// Probabilities times scales must fit half precision, and so must most of what is far smaller:
  /// they are in units of a power of two, 1/64 … 1/32 of the largest scale so far.
  __device__ __forceinline__ void unit_raise(float most) {
    const float needed = fmaxf(power_below(most) * 0x1p-5f, kLeastUnit);
    if (!(needed > unit_)) return;  // the same for the whole warp
    const float factor = unit_ * power_inverse(needed);
    unit_ = needed;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o_[j][i] *= factor;
    }
  }

  __device__ __forceinline__ void page_outputs(const unsigned char* stage,
                                               const std::uint32_t (&scales)[kTile / 8]) {
    results_rescale();
    std::uint32_t p[kTile / 16][4];
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      weights_load(k, p[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = half_product(p[k][i], scales[2 * k + i / 2]);
    }
    // 16 entries, two chunks of 16 columns at a time: it is sixteen products until one adds to the
    // same sums again.
    const unsigned char* const rows = stage + warp_ * kPagePanelBytes + lane_ % 16 * 128;
    std::uint32_t raw[2]
                     [4];  // entries 0–7, 8–15 of either chunk; the second while the first is used
    const auto load = [&](int step) {
      const int chunk = (step % 4 * 2 + lane_ / 16) ^ (lane_ & 7);
      matrix_load_transposed(raw[step & 1], shared_address(rows + step / 4 * 2048 + chunk * 16));
    };
    load(0);
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      if (step < 15) load(step + 1);
      std::uint32_t even[4], odd[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        widen<kType>(__byte_perm(raw[step & 1][i], 0, 0x3120), even[i], odd[i]);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int j = step % 4 * 4 + 2 * c;
        multiply_half(o_[j], p[step / 4], even[2 * c], even[2 * c + 1]);
        multiply_half(o_[j + 1], p[step / 4], odd[2 * c], odd[2 * c + 1]);
      }
    }
  }

  __device__ __forceinline__ void exact_scores(const unsigned char* stage, const Rows& rows) {
    const unsigned char* const panel =
        stage + (2 * warp_ + quad_ / 2) * kExactPanelBytes + row_ * 128;
    std::uint32_t rope[4];
    rope_choose(rows, rope);
    float s[4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = (quad_ % 2 * 4 + (i ^ quad_ / 2 * 2)) ^ row_;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint4 key = *reinterpret_cast<const uint4*>(panel + n * 1024 + chunk * 16);
        multiply(s[n], q_[2 * i], key.x, key.y);
        multiply(s[n], q_[2 * i + 1], key.z, key.w);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      std::uint32_t key[4];
      rope_load(stage + (kExactPanels - 1) * kExactPanelBytes, n * 8, key);
      multiply(s[n], rope, key[0], key[1]);
      multiply(s[n + 1], rope, key[2], key[3]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) part_store(n * 8, s[n]);
  }

  __device__ __forceinline__ void exact_outputs(const unsigned char* stage) {
    results_rescale();
    std::uint32_t p[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) weights_load(k, p[k]);
    const std::uint32_t panel = shared_address(stage + 2 * warp_ * kExactPanelBytes) + lane_ * 128;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      std::uint32_t value[4];
      matrix_load_transposed(value,
                             panel + j / 8 * kExactPanelBytes + ((j & 7) ^ (lane_ & 7)) * 16);
      multiply(o_[j], p[0], value[0], value[1]);
      multiply(o_[j], p[1], value[2], value[3]);
    }
  }

  /// Scores to weights in shared memory: half precision for pages, else bf16. Thread: one head,
  /// entries 4·(lane % 8) … and, of 64, those 32 further.
  template <int kEntries>
  __device__ __forceinline__ void softmax(const Rows& rows, const unsigned char* stage) {
    constexpr int kHalves = kEntries / 32;
    const int head = softmax_head();
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
        const float same = rows.kind == Rows::made && stored ? shared_.fresh_bias : args_.bias_all;
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

  /// Weights of all heads and entries 16·k …, as a fragment.
  __device__ __forceinline__ void weights_load(int k, std::uint32_t (&p)[4]) const {
    matrix_load(p, shared_address(shared_.weights[group_] +
                                  chunk_offset(lane_ % 16, 2 * k + lane_ / 16, 0)));
  }

  __device__ __forceinline__ void results_rescale() {
    const float upper = shared_.rescale[group_][row_];
    const float lower = shared_.rescale[group_][row_ + 8];
    if (!__any_sync(~0u, upper != 1.f || lower != 1.f)) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      o_[j][0] *= upper;
      o_[j][1] *= upper;
      o_[j][2] *= lower;
      o_[j][3] *= lower;
    }
  }

  static constexpr float kLeastUnit = 0x1p-100f;

  const Args& args_;
  NarrowShared& shared_;
  WarpsBarrier barrier_;
  int group_, thread_, lane_, warp_, row_, quad_;
  std::uint32_t q_[8][4];  // of this warp's 128 columns
  std::uint32_t near_[4], far_[4];
  int entries_ = 0, far_end_ = 0;
  float q_power_[2];
  float unit_ = kLeastUnit;
  float top_ = -INFINITY, sum_ = 0;  // of this thread's head; the sum of its entries
  float o_[kTiles][4];
};

}  // namespace lca::cuda::decoding::streaming
