#pragma once
/// A group's rows in the registers of one warp: dot products and pooling without a second read.

#include <cstdint>

#include "attention/cuda/condense/condense_vectors.h"
#include "attention/cuda/views.h"
#include "attention/layout.h"

namespace lca::cuda {

/// The larger of each pair of values.
__device__ inline uint4 max_each(const uint4& a, const uint4& b) {
  const auto larger = [](std::uint32_t x, std::uint32_t y) {
    const __nv_bfloat162 z = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&x),
                                     *reinterpret_cast<const __nv_bfloat162*>(&y));
    return *reinterpret_cast<const std::uint32_t*>(&z);
  };
  return {larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w)};
}

/// A load that stays where it is written: left alone, the compiler puts loads off until registers
/// are free, and a warp waits for memory three times instead of once. Plain loads may not pass the
/// barrier that follows them.
__device__ inline uint4 load_now(const bf16* from) {
  uint4 raw;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return raw;
}

/// G rows of W values in the registers of a warp. A row is W/8 vectors of 16 bytes; kLanes
/// consecutive lanes read kLanes consecutive vectors of one row, so one load of the whole warp
/// covers kRows rows (1 where a row is wider than a warp's 512 bytes). Lane l holds, of rows
/// l / kLanes + k·kRows (k < kLoads), vectors l % kLanes + a·kLanes (a < kAcross). Where a load
/// covers more rows than there are, lanes beyond the last begin again with the first: their scores
/// count for nothing, and their weights are 0.
template <int W, int G>
struct Tile {
  static constexpr int kLanes = W / 8 < 32 ? W / 8 : 32;
  static constexpr int kRows = 32 / kLanes;
  static constexpr int kLoads = G < kRows ? 1 : G / kRows;
  static constexpr int kAcross = W / 8 / kLanes;
  static_assert(kLanes * kAcross * 8 == W && (kLoads * kRows == G || kRows % G == 0));

  uint4 raw[kLoads][kAcross];

  __device__ void load(const bf16* first, std::int64_t stride, int lane) {
    const bf16* from = first + lane / kLanes % G * stride + lane % kLanes * 8;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) raw[k][a] = load_now(from + a * kLanes * 8);
      from += kRows * stride;
    }
  }

  // The columns of a summary that belong to a lane's vectors.
  struct Query {
    float value[kAcross][8];
    __device__ void load(const float* summary, int lane) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        load_floats<8>(summary + (lane % kLanes + a * kLanes) * 8, value[a]);
      }
    }
  };

  // Products of the lane's rows with the summary, summed over the lanes of a row and written to
  // scores[G]. The sum transposes as it goes: in each step a lane gives half of its rows to its
  // partner and takes the partner's part of the other half, 1 + 2 + 4 + … shuffles in all.
  __device__ void dots(const Query& query, float* scores, int lane) const {
    float sum[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      sum[k] = 0;
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        float x[8];
        unpack(raw[k][a], x);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[k] += x[i] * query.value[a][i];
      }
    }
    int held = kLoads;  // sum[0 … held) are rows `first` … in units of kRows; compile-time
    int first = 0;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      if (held > 1) {
        held /= 2;
        const bool upper = (lane & mask) != 0;
        if (upper) first += held;
#pragma unroll
        for (int i = 0; i < kLoads / 2; ++i) {
          if (i < held) {
            const float keep = upper ? sum[i + held] : sum[i];
            const float give = upper ? sum[i] : sum[i + held];
            sum[i] = keep + __shfl_xor_sync(0xffffffffu, give, mask);
          }
        }
      } else {
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], mask);
      }
    }
    // Lanes that ended with the same row write the same value.
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i < held) scores[(first + i) * kRows + lane / kLanes] = sum[i];
    }
  }

  // The pooled row. Afterwards every lane has the columns of its vectors, as unrounded floats and
  // as they are stored.
  __device__ void pool(Pool how, const float* alpha, int best, int lane, float (&value)[kAcross][8],
                       uint4 (&stored)[kAcross]) const {
    if (how == Pool::select) {
      const int from = best % kRows * kLanes + lane % kLanes;
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        // By masks: choosing with ?: makes the compiler index memory, and rows leave registers.
        stored[a] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          const std::uint32_t mask = k == best / kRows ? 0xffffffffu : 0;
          stored[a].x |= raw[k][a].x & mask;
          stored[a].y |= raw[k][a].y & mask;
          stored[a].z |= raw[k][a].z & mask;
          stored[a].w |= raw[k][a].w & mask;
        }
        if constexpr (kRows > 1) {
          stored[a].x = __shfl_sync(0xffffffffu, stored[a].x, from);
          stored[a].y = __shfl_sync(0xffffffffu, stored[a].y, from);
          stored[a].z = __shfl_sync(0xffffffffu, stored[a].z, from);
          stored[a].w = __shfl_sync(0xffffffffu, stored[a].w, from);
        }
        unpack(stored[a], value[a]);
      }
    } else if (how == Pool::max) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
        stored[a] = raw[0][a];
#pragma unroll
        for (int k = 1; k < kLoads; ++k) stored[a] = max_each(stored[a], raw[k][a]);
#pragma unroll
        for (int mask = kLanes; mask < 32; mask *= 2) {
          uint4 other;
          other.x = __shfl_xor_sync(0xffffffffu, stored[a].x, mask);
          other.y = __shfl_xor_sync(0xffffffffu, stored[a].y, mask);
          other.z = __shfl_xor_sync(0xffffffffu, stored[a].z, mask);
          other.w = __shfl_xor_sync(0xffffffffu, stored[a].w, mask);
          stored[a] = max_each(stored[a], other);
        }
        unpack(stored[a], value[a]);
      }
    } else {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[a][i] = 0;
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int row = k * kRows + lane / kLanes;
        const float weight = how == Pool::mean ? (row < G ? 1.0f / G : 0.0f) : alpha[row];
#pragma unroll
        for (int a = 0; a < kAcross; ++a) {
          float x[8];
          unpack(raw[k][a], x);
#pragma unroll
          for (int i = 0; i < 8; ++i) value[a][i] += weight * x[i];
        }
      }
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int mask = kLanes; mask < 32; mask *= 2) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            value[a][i] += __shfl_xor_sync(0xffffffffu, value[a][i], mask);
        }
        stored[a] = pack(value[a]);
      }
    }
  }

  // The mean over the rows of `range`, added up over `heads` heads, of rows as wide as the tile's:
  // every lane gets its columns. Lanes read them as they read the tile's, 6 loads at a time.
  __device__ static Query mean(const bf16* first, const HeadRows& rows, const Range& range,
                               int heads, int lane) {
    constexpr int kBatch = 6;
    Query sum = {};
    const auto count = static_cast<int>(range.size());
    const bf16* from = first + (range.begin + lane / kLanes) * rows.row_stride + lane % kLanes * 8;
    int t = lane / kLanes;
    int h = 0;
    while (t < count) {
      uint4 batch[kBatch][kAcross];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int a = 0; a < kAcross; ++a) {
          batch[b][a] = {0, 0, 0, 0};
          if (t < count) {
            batch[b][a] =
                *reinterpret_cast<const uint4*>(from + h * rows.head_stride + a * kLanes * 8);
          }
        }
        if (++h == heads) {
          h = 0;
          t += kRows;
          from += kRows * rows.row_stride;
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int a = 0; a < kAcross; ++a) {
          float value[8];
          unpack(batch[b][a], value);
#pragma unroll
          for (int i = 0; i < 8; ++i) sum.value[a][i] += value[i];
        }
      }
    }
    __syncwarp();
    const float share = 1.0f / static_cast<float>(count);
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int mask = kLanes; mask < 32; mask *= 2) {
          sum.value[a][i] += __shfl_xor_sync(0xffffffffu, sum.value[a][i], mask);
        }
        sum.value[a][i] *= share;
      }
    }
    return sum;
  }

  // A lane's part of pooled · summary: each column counts once.
  __device__ static float own_dot(const float (&value)[kAcross][8], const float* summary,
                                  int lane) {
    Query query;
    query.load(summary, lane);
    return own_dot(value, query, lane);
  }
  __device__ static float own_dot(const float (&value)[kAcross][8], const Query& query, int lane) {
    float sum = 0;
    if (lane < kLanes) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += value[a][i] * query.value[a][i];
      }
    }
    return sum;
  }

  __device__ static void store(const uint4 (&stored)[kAcross], bf16* to, int lane) {
    if (lane >= kLanes) return;
#pragma unroll
    for (int a = 0; a < kAcross; ++a) {
      reinterpret_cast<uint4*>(to)[lane + a * kLanes] = stored[a];
    }
  }
};

}  // namespace lca::cuda
