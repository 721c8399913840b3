#pragma once
/// The inside of Hopper's decode kernel for quantised representatives (decode_quantised_sm90.cu),
/// second part: what a consumer warp group does with a tile.
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

#include "attention/cuda/decode/decode_quantised_parts.cuh"

namespace lca::cuda::decoding::streaming {

/// One warp group's share of a block: every other tile.
template <GroupType kType, bool kEntry>
class NarrowConsumer {
 public:
  __device__ __forceinline__ NarrowConsumer(const Args& args, NarrowShared& shared, int group)
      : args_(args),
        shared_(shared),
        softmax_(args, shared, group),
        barrier_(shared.group_met[group]),
        group_(group) {
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

  /// Where the session stands.
  __device__ __forceinline__ void place(const Place& at) {
    entries_ = at.entries;
    if constexpr (kEntry) far_end_ = FarEntries(at).end;
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
    softmax_.tile<kTile>(rows, stage);
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
    }
    if (made || has_newest || rows.count < kExactTile) {
      uint4 row = newest;
      if (made) row = shared_.fresh.wait(thread_);
      if (made || has_newest) row_put(row, rows.count - 1, stage);
      rows_clear<kExactPanels, kExactPanelBytes>(rows.count, stage);
      shared_write_end();
    }
    exact_scores(stage, rows);
    barrier_.sync();
    softmax_.tile<kExactTile>(rows, stage);
    barrier_.sync();
    exact_outputs(stage);
    shared_.empty[which].arrive();
  }

  /// After the last tile: maxima and sums of all heads to shared memory.
  __device__ __forceinline__ void stats_write() const { softmax_.stats_write(); }

  /// Results to shared memory, over the stages, which have been read.
  __device__ __forceinline__ void results_give() {
    float* const to = shared_.merge_space(group_);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = warp_ * 128 + j * 8 + 2 * quad_ + (i & 1);
        to[column * kMergeStride + row_ + 8 * (i / 2)] = o_[j][i];
      }
    }
  }

 private:
  static constexpr int kTiles = 128 / 8;  // of 8 columns, of this warp's values

  /// A group has every other use of a stage.
  __device__ static std::uint32_t full_phase(int index) { return index / kNarrowStages / 2 & 1; }
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

  /// RoPE parts of the queries as window or far entries see them; no tile has entries of both
  /// kinds. Far ones stay in shared memory: registers are short.
  __device__ __forceinline__ void rope_choose(bool far, std::uint32_t (&rope)[4]) const {
    if (kEntry && far) {
      matrix_load(
          rope, shared_address(shared_.far + chunk_offset(lane_ % 16, 2 * warp_ + lane_ / 16, 0)));
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rope[i] = near_[i];
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
      std::uint32_t rope[4];
      rope_choose(true, rope);  // where they differ, pages are far
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
    rope_choose(rows.first < far_end_, rope);
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
  NarrowSoftmax softmax_;
  WarpsBarrier barrier_;
  int group_, thread_, lane_, warp_, row_, quad_;
  std::uint32_t q_[8][4];  // of this warp's 128 columns
  std::uint32_t near_[4];
  int entries_ = 0, far_end_ = 0;
  float q_power_[2];
  float unit_ = kLeastUnit;
  float o_[kTiles][4];
};

}  // namespace lca::cuda::decoding::streaming
