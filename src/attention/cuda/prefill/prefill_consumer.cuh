#pragma once
/// Hopper's prefill kernel (prefill_sm90.cu): what a consumer warp group does with a tile: scores,
/// masks, softmax, outputs.

#include "attention/cuda/prefill/prefill_producer.cuh"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda::prefilling {

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& params, Shared<C>& shared, int group)
      : p_(params), shared_(shared), group_(group), lane_(threadIdx.x & 31) {
    const int warp = threadIdx.x / 32 & 3;
    row_ = group * 64 + warp * 16 + lane_ / 4;
    query_ = cute::cast_smem_ptr_to_uint(shared.query) / 16;
    keys_ = cute::cast_smem_ptr_to_uint(shared.key) / 16;
    values_ = cute::cast_smem_ptr_to_uint(shared.value) / 16;
  }

  __device__ __forceinline__ void run() {
    if (group_ == kConsumers - 1) turn_pass();  // the first warp group may begin
    for (std::uint32_t k = 0;; ++k) {
      shared_.tile_full[k & 1].wait(k >> 1 & 1);
      const QueryTile& tile = shared_.tiles[k & 1];
      if (tile.rows == 0) return;
      attend(tile, k);
      write(tile);
      __syncwarp();
      warp_release(shared_.tile_empty[k & 1]);
    }
  }

 private:
  static constexpr int kKeys = C::kKeys;
  static constexpr int kScores = kKeys / 2;       // accumulators of QKᵀ
  static constexpr int kOutputs = C::kValue / 2;  // and of PV

  /// One lane speaks for a warp whose lanes have all come this far: they have waited for the same
  /// products, or met in __syncwarp.
  __device__ __forceinline__ void warp_release(Barrier& barrier) {
    if (lane_ == 0) barrier.arrive();
  }
  __device__ __forceinline__ void turn_take() { NamedBarrier::sync(256, group_); }
  __device__ __forceinline__ void turn_pass() {
    NamedBarrier::arrive(256, group_ + 1 == kConsumers ? 0 : group_ + 1);
  }

  __device__ __forceinline__ void scores_issue() {
    const std::uint32_t k = keys_ + key_.slot * (C::kKeyBytes / 16);
    accumulators_fence(s_);
    cute::warpgroup_arrive();
#pragma unroll
    for (int c = 0; c < C::kNope; c += 16) {
      const int panel = c / 64 * 64, inside = (c & 63) * 2;
      product_shared<kKeys>(
          s_, descriptor<128>(query_, panel * kQueries * 2 + inside) + group_ * (64 * 128 / 16),
          descriptor<128>(k, panel * kKeys * 2 + inside), c > 0);
    }
#pragma unroll
    for (int c = 0; c < C::kRope; c += 16) {
      constexpr int kRow = C::kRope == 32 ? 64 : 128;
      product_shared<kKeys>(
          s_, descriptor<kRow>(query_, C::kNope * kQueries * 2 + c * 2) + group_ * (64 * kRow / 16),
          descriptor<kRow>(k, C::kNope * kKeys * 2 + c * 2), true);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(s_);
  }

  __device__ __forceinline__ void outputs_issue(bool add) {
    const std::uint32_t v = values_ + value_.slot * (C::kValueBytes / 16);
    accumulators_fence(o_);
    cute::warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      product_registers<C::kValue>(o_, &probabilities_[n / 4],
                                   descriptor<128>(v, n * 128, kKeys * 128), n > 0 || add);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(o_);
  }

  /// The queries as sink and representatives see them, over those that the window saw: once a tile,
  /// each warp its 16 rows. All products with the queries have ended.
  __device__ __forceinline__ void queries_rotate(const QueryTile& tile) {
    NamedBarrier::sync(128, kConsumers + group_);  // those of the other warps too
    const int first = row_ - lane_ / 4;
    const int position = min(tile.first + first + (lane_ & 15), tile.last);
    const int difference = -p_.layout.position_shift(position + 1);
    unsigned char* const rows = shared_.query + (C::kRope > 0 ? C::kNope * kQueries * 2 : 0);
    rows_rotate(p_.rotation, difference, lane_, [&](int row, int channel) {
      // As TMA swizzles: the 16-byte chunks of a row are permuted by the row.
      constexpr int kRow = C::kRope == 32 ? 64 : 128;
      row += first;
      const int chunk = (channel * 2 & kRow - 1) / 16 ^ (kRow == 64 ? row / 2 & 3 : row & 7);
      const int panel = channel * 2 / kRow * (kQueries * kRow);
      return reinterpret_cast<bf16*>(rows + panel + row * kRow + chunk * 16 + (channel & 7) * 2);
    });
    async_proxy_fence();
    NamedBarrier::sync(128, kConsumers + group_);
  }

  /// Waits for the values of block n − 1 or the last, and clears rows that hold no data.
  __device__ __forceinline__ void values_wait(const QueryTile& tile, int n) {
    shared_.value_full[value_.slot].wait(value_.phase);
    const int2 owned = block_owned<kKeys>(tile, tile_block<kKeys>(tile, n));
    if (owned.x == 0 && owned.y == kKeys) return;
    for (int i = threadIdx.x & 127; i < kKeys * C::kValue / 8; i += 128) {
      const int row = i / 8 % kKeys;  // swizzling moves bytes within a row only
      if (row >= owned.x && row < owned.y) continue;
      reinterpret_cast<uint4*>(shared_.value[value_.slot])[i] = uint4{0, 0, 0, 0};
    }
    async_proxy_fence();
    NamedBarrier::sync(128, kConsumers + group_);
  }

  __device__ __forceinline__ void scores_bias() {
    const float* bias = shared_.bias[key_.slot] + 2 * (lane_ & 3);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 b = *reinterpret_cast<const float2*>(bias + 2 * i);
      s_[i] = fmaf(b.x, p_.inverse_scale, s_[i]);
      s_[i + 1] = fmaf(b.y, p_.inverse_scale, s_[i + 1]);
      s_[i + 2] = fmaf(b.x, p_.inverse_scale, s_[i + 2]);
      s_[i + 3] = fmaf(b.y, p_.inverse_scale, s_[i + 3]);
    }
  }

  __device__ __forceinline__ void scores_mask(const QueryTile& tile, const Block& block) {
    const int column = block.base + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Span span = row_span<C::kEntry>(rows_[r], tile, block.kind);
      const unsigned from_low = column - span.low;
      const auto sunk = [&](int c) {
        return static_cast<unsigned>(column + c) < static_cast<unsigned>(span.sink);
      };
      if (block.base < span.sink) {  // seldom: the tile in which the window leaves the sink
        scores_drop(r, [&](int c) { return from_low + c >= span.count && !sunk(c); });
      } else {
        scores_drop(r, [&](int c) { return from_low + c >= span.count; });
      }
    }
  }

  template <typename Unseen>
  __device__ __forceinline__ void scores_drop(int r, Unseen unseen) {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (unseen(2 * i + j)) s_[i + j + 2 * r] = -INFINITY;
      }
    }
  }

  /// Scores to probabilities; returns whether the output must be rescaled by `rescale_`.
  __device__ __forceinline__ bool softmax(const QueryTile& tile, int n) {
    const Block block = tile_block<kKeys>(tile, n);
    if (block.kind == BlockKind::groups && p_.bias != nullptr) {
      scores_bias();
      __syncwarp();
    }
    if (n > 0) warp_release(shared_.key_empty[key_.slot]);  // keys and biases are read
    if (block_needs_mask<kKeys>(tile, block)) scores_mask(tile, block);
    const float shift = block.kind == BlockKind::groups ? p_.bias_log2 : 0.0f;
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = s_[2 * r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        top = fmaxf(top, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaf(top, p_.scale_log2, shift);
      const bool larger = top > top_[r] + kLazyRescale;
      rescale_[r] = larger ? exp2_fast(top_[r] - top) : 1.0f;
      if (larger) top_[r] = top;
      moved |= larger;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0;
      const float minus_top = shift - top_[r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s_[i + 2 * r + j];
          x = exp2_fast(fmaf(x, p_.scale_log2, minus_top));
          sum += x;
        }
      }
      sum_[r] = sum_[r] * rescale_[r] + sum;
    }
    return __any_sync(~0u, moved);
  }

  __device__ __forceinline__ void probabilities_pack() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) probabilities_[i / 2] = pack_bf16(s_[i], s_[i + 1]);
  }

  __device__ __forceinline__ void attend(const QueryTile& tile, std::uint32_t k) {
    const int blocks = tile.blocks();
    shared_.query_full.wait(k & 1);
    shared_.key_full[key_.slot].wait(key_.phase);
    scores_issue();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows_[r] = row_of(p_.layout, tile, row_ + 8 * r);
      top_[r] = -INFINITY;
      sum_[r] = 0;
    }
    cute::warpgroup_wait<0>();
    accumulators_fence(s_);
    warp_release(shared_.key_empty[key_.slot]);
    if (blocks == 1) warp_release(shared_.query_empty);
    softmax(tile, 0);  // local: no bias to read
    key_.next();
    probabilities_pack();

    for (int n = 1; n < blocks; ++n) {
      if constexpr (C::kEntry) {
        if (n == tile.local_blocks) queries_rotate(tile);
      }
      shared_.key_full[key_.slot].wait(key_.phase);
      turn_take();
      scores_issue();
      values_wait(tile, n - 1);
      outputs_issue(n > 1);
      turn_pass();
      cute::warpgroup_wait<1>();
      accumulators_fence(s_);
      if (n + 1 == blocks) warp_release(shared_.query_empty);
      const bool moved = softmax(tile, n);
      key_.next();
      cute::warpgroup_wait<0>();
      accumulators_fence(o_);
      warp_release(shared_.value_empty[value_.slot]);
      value_.next();
      if (moved) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) o_[i] *= rescale_[i >> 1 & 1];
      }
      probabilities_pack();
    }
    values_wait(tile, blocks - 1);
    outputs_issue(blocks > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(o_);
    warp_release(shared_.value_empty[value_.slot]);
    value_.next();
  }

  __device__ __forceinline__ void write(const QueryTile& tile) {
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = __fdividef(1.0f, sum);
      const int row = row_ + 8 * r;
      const bool real = row < tile.rows;
      const std::int64_t at = (tile.query_row + row) * p_.heads.all + tile.head;
      if (real && quad == 0 && p_.lse != nullptr) {
        p_.lse[at] = (top_[r] + __log2f(sum)) * kLn2;
      }
      bf16* out = p_.out + at * C::kValue;
#pragma unroll
      for (int i = 0; i < kOutputs; i += 16) {  // four column chunks of 8
        std::uint32_t chunk[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          chunk[c] =
              pack_bf16(o_[i + 4 * c + 2 * r] * inverse, o_[i + 4 * c + 2 * r + 1] * inverse);
        }
        quad_transpose(chunk, quad);
        if (real) {
          *reinterpret_cast<uint4*>(out + 2 * i + 8 * quad) =
              uint4{chunk[0], chunk[1], chunk[2], chunk[3]};
        }
      }
    }
  }

  const Params& p_;
  Shared<C>& shared_;
  int group_, lane_, row_;
  std::uint32_t query_, keys_, values_;  // shared memory, in units of 16 bytes
  Phase<C::kStages> key_, value_;
  Row rows_[2];
  float top_[2], sum_[2], rescale_[2];
  float s_[kScores];
  float o_[kOutputs];
  std::uint32_t probabilities_[kScores / 2];
};

}  // namespace lca::cuda::prefilling
