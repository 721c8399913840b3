#pragma once
/// The stages of the tensor-core decode kernel (decode_fast.cuh): queries, and for each tile of
/// entries scores, softmax and values.

#include "attention/cuda/decode/decode_group.cuh"
#include "attention/cuda/decode/decode_reduce.cuh"

namespace lca::cuda::decoding {

/// What one warp has of a tile's products.
template <typename R>
struct WarpShare {
  static constexpr int kSteps = R::kScore / 32;  ///< k-steps of 16 columns in one half of the key
  static constexpr int kEntries = 2 * kTile / R::kWarps;      ///< whose scores one warp makes
  static constexpr int kColumns = R::kValue / R::kWarps;      ///< of the value
  static constexpr int kChains = R::kHeadTiles == 1 ? 2 : 1;  ///< products that hide latency
  static_assert((R::kWarps == 8 || R::kWarps == 16) && R::kValue / R::kWarps % 8 == 0);

  using Queries = std::uint32_t[R::kHeadTiles][kSteps][4];
  using Results = float[R::kHeadTiles][kColumns / 8][4];
};

/// A block's shared memory, in the order in which Memory counts it.
template <typename R, bool kQuant, bool kEntry>
struct Parts {
  using Space = Memory<R, kQuant, kEntry>;
  unsigned char* work;
  unsigned char* stages;
  float* metas;
  float* scores_apart;
  unsigned char* weights;
  unsigned char* near;  ///< entry positions: positional parts of queries as the window sees them
  float* rescale;
  float2* stats;  ///< maximum and sum of each row
  Place* kept;

  __device__ __forceinline__ Parts(unsigned char* shared, int stage_count) {
    work = shared;
    stages = shared + Space::kWorkBytes;
    metas = reinterpret_cast<float*>(stages + stage_count * Space::kStageBytes);
    scores_apart = metas + stage_count * Space::kMetaFloats;
    weights = reinterpret_cast<unsigned char*>(scores_apart) +
              (Space::kScoresApart ? Space::kScoreBytes : 0);
    near = weights + Space::kWeightBytes;
    rescale = reinterpret_cast<float*>(near + Space::kNearBytes);
    stats = reinterpret_cast<float2*>(rescale + R::kRows);
    kept = reinterpret_cast<Place*>(stats + R::kRows);
  }
};

/// Columns of the queries that positions rotate.
template <typename R>
struct PositionalColumns {
  static constexpr int kFirst = R::kMla ? R::kFirst : 0;
  static constexpr int kMostPairs = R::kPositional / 2;
  static_assert(kFirst % 16 == 0 && R::kThreads % kMostPairs == 0);
};

/// The job's queries to shared memory, asked for; rows that no head has are zeros.
template <typename R>
__device__ __forceinline__ void queries_load(const Args& args, int session, const Heads& heads,
                                             int tid, unsigned char* to) {
  for (int i = tid; i < R::kRows * (R::kScore / 8); i += R::kThreads) {
    const int row = i / (R::kScore / 8);
    const int chunk = i % (R::kScore / 8);
    const bool real = row < heads.count;
    const bf16* source = args.step.queries;
    if (real) {
      source += (static_cast<std::int64_t>(session) * args.heads + heads.first + row) * R::kScore +
                chunk * 8;
    }
    copy_chunk(shared_address(to + R::offset(row, chunk)), source, real);
  }
  copy_commit();
}

/// With entry positions: their positional columns once more, for the window; the next commit takes
/// them in.
template <typename R, bool kQuant>
__device__ __forceinline__ void queries_near_load(const Args& args, int session, const Heads& heads,
                                                  int tid, unsigned char* near) {
  constexpr int kChunks = R::kPositional / 8;
  static_assert(R::kRows * kChunks <= R::kThreads);
  if (tid >= R::kRows * kChunks) return;
  const int row = tid / kChunks;
  const int chunk = tid % kChunks;
  const bool real = row < heads.count;
  const bf16* source = args.step.queries;
  if (real) {
    source += (static_cast<std::int64_t>(session) * args.heads + heads.first + row) * R::kScore +
              PositionalColumns<R>::kFirst + chunk * 8;
  }
  copy_chunk(shared_address(near + row * Memory<R, kQuant, true>::kNearStride + chunk * 16), source,
             real);
}

/// With entry positions: rotates queries in shared memory, in place. A thread has one pair of
/// channels of some rows; warps whose rows no head has do nothing, for blocks begin bound by
/// instructions.
template <typename R>
class QueryRotation {
 public:
  /// Asks for the step of the thread's pair.
  __device__ __forceinline__ void load(const Args& args, int count, int tid) {
    pair_ = tid % kMostPairs;
    rotates_ = tid / kMostPairs < count && pair_ < args.step.rotation.pairs;
    if (rotates_) step_ = __ldg(args.step.rotation.steps + pair_);
  }
  __device__ __forceinline__ void turn(int difference) {
    if (rotates_) turn_ = turn_of(step_, difference);
  }
  /// Of the first `count` rows, which are there.
  __device__ __forceinline__ void apply(const Args& args, int count, int tid,
                                        unsigned char* queries) const {
    if (!rotates_) return;
    const int2 channel = pair_channels(args.step.rotation, pair_);
#pragma unroll
    for (int first = 0; first < R::kRows; first += R::kThreads / kMostPairs) {
      const int row = first + tid / kMostPairs;
      if (row >= count) break;
      const auto place = [&](int c) {
        const int column = PositionalColumns<R>::kFirst + c;
        return reinterpret_cast<bf16*>(queries + R::offset(row, column / 8) + column % 8 * 2);
      };
      bf16* const x = place(channel.x);
      bf16* const y = place(channel.y);
      const float2 value = turn_(__bfloat162float(*x), __bfloat162float(*y));
      *x = __float2bfloat16_rn(value.x);
      *y = __float2bfloat16_rn(value.y);
    }
  }

 private:
  static constexpr int kMostPairs = PositionalColumns<R>::kMostPairs;
  bool rotates_;
  int pair_;
  std::uint64_t step_;
  Turn turn_;
};

/// The positional parts of the fragments as the window sees them.
template <typename R, bool kQuant>
__device__ __forceinline__ void queries_near(const unsigned char* near, int half, int lane,
                                             typename WarpShare<R>::Queries& query) {
  constexpr int kSteps = WarpShare<R>::kSteps;
  constexpr int kFrom = PositionalColumns<R>::kFirst / 16;  // of the steps of the whole key
  static_assert(kFrom == 0 || kFrom >= kSteps, "the first half has all columns or none");
  const unsigned char* const row =
      near + lane % 16 * Memory<R, kQuant, true>::kNearStride + lane / 16 * 16;
#pragma unroll
  for (int k = kFrom > kSteps ? kFrom - kSteps : 0; k < kSteps; ++k) {
#pragma unroll
    for (int h = 0; h < R::kHeadTiles; ++h) {
      matrix_load(query[h][k], shared_address(row + h * 16 * Memory<R, kQuant, true>::kNearStride +
                                              (half * kSteps + k - kFrom) * 32));
    }
  }
}

/// Queries as fragments: heads are rows, this warp's half of the key's columns.
template <typename R>
__device__ __forceinline__ void queries_read(const unsigned char* from, int half, int lane,
                                             typename WarpShare<R>::Queries& query) {
  constexpr int kSteps = WarpShare<R>::kSteps;
#pragma unroll
  for (int h = 0; h < R::kHeadTiles; ++h) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      matrix_load(query[h][k],
                  shared_address(
                      from + R::offset(h * 16 + lane % 16, (half * kSteps + k) * 2 + lane / 16)));
    }
  }
}

/// Scores of some entries with this warp's half of the key, to shared memory. kPart: of the warp's
/// entries only those from `from` on are written.
template <typename R, bool kPart = false>
__device__ __forceinline__ void tile_scores(const EntryTile& tile, const unsigned char* rows,
                                            const typename WarpShare<R>::Queries& query, int warp,
                                            int lane, int half, float* scores, int from = 0) {
  using Share = WarpShare<R>;
  constexpr int kHeadTiles = R::kHeadTiles;
  constexpr int kSteps = Share::kSteps;
  constexpr int kEntries = Share::kEntries;
  constexpr int kChains = Share::kChains;
  const int entries = warp % (R::kWarps / 2) * kEntries;
  if (entries >= tile.count) return;
  float score[kHeadTiles][kChains][kEntries / 8][4] = {};
  if constexpr (kEntries == 16) {
    const int row = entries + lane / 16 * 8 + lane % 8;
    const int odd = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t key[4];  // entries 0–7: columns 0–7, 8–15; entries 8–15: the same
      matrix_load(key, shared_address(rows + R::offset(row, (half * kSteps + k) * 2 + odd)));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        multiply(score[h][k % kChains][0], query[h][k], key[0], key[1]);
        multiply(score[h][k % kChains][1], query[h][k], key[2], key[3]);
      }
    }
  } else {
    static_assert(kSteps % 2 == 0);
    const int row = entries + lane % 8;
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
      std::uint32_t key[4];  // columns 0–7, 8–15, 16–23, 24–31
      matrix_load(key, shared_address(rows + R::offset(row, (half * kSteps + k) * 2 + lane / 8)));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        multiply(score[h][0][0], query[h][k], key[0], key[1]);
        multiply(score[h][kChains - 1][0], query[h][k + 1], key[2], key[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int e = 0; e < kEntries / 8; ++e) {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        float2 value{score[h][0][e][2 * low], score[h][0][e][2 * low + 1]};
        if constexpr (kChains == 2) {
          value.x += score[h][1][e][2 * low];
          value.y += score[h][1][e][2 * low + 1];
        }
        const int head = h * 16 + lane / 4 + 8 * low;
        const int pair = entries / 2 + e * 4 + lane % 4;
        // Pairs are permuted by row, so that eight rows are written without conflicts.
        if constexpr (kPart) {
          float2* const to = reinterpret_cast<float2*>(scores + (half * R::kRows + head) * kTile) +
                             (pair ^ (head & 3) * 4);
          const int entry = e * 8 + lane % 4 * 2;
          if (entry >= from) *to = value;
          if (entry + 1 == from) to->y = value.y;
        } else {
          reinterpret_cast<float2*>(scores + (half * R::kRows + head) *
                                                 kTile)[pair ^ (head & 3) * 4] = value;
        }
      }
    }
  }
}

/// The same with entry positions: queries begin as representatives and sink see them and become
/// what the window sees at the first of this warp's entries that is in it. `far_end` is where that
/// is in the list, 0 when it is done. A warp that has entries of both multiplies them twice.
template <typename R, bool kQuant>
__device__ __forceinline__ void tile_scores_entry(const EntryTile& tile, const unsigned char* rows,
                                                  const unsigned char* near, int warp, int lane,
                                                  int half, float* scores, int& far_end,
                                                  typename WarpShare<R>::Queries& query) {
  constexpr int kEntries = WarpShare<R>::kEntries;
  int far = kEntries;  // of this warp's entries
  const auto near_begin = [&] {
    queries_near<R, kQuant>(near, half, lane, query);
    far_end = 0;
  };
  if (!tile.groups && far_end != 0) {
    far = far_end - (tile.first + warp % (R::kWarps / 2) * kEntries);
    if (far <= 0) {
      near_begin();
      far = kEntries;
    }
  }
  // Where registers are short, a warp with both has a way of its own.
  constexpr bool kApart = R::kHeadTiles > 1;
  if (kApart && far < kEntries) {
#pragma unroll 1
    for (int from = 0; from <= far; from += far) {
      if (from > 0) near_begin();
      tile_scores<R, true>(tile, rows, query, warp, lane, half, scores, from);
    }
    return;
  }
  tile_scores<R>(tile, rows, query, warp, lane, half, scores);
  if (!kApart && far < kEntries) {
    near_begin();
    tile_scores<R, true>(tile, rows, query, warp, lane, half, scores, far);
  }
}

/// Scores to weights: this warp's one or two heads of every 16; a lane has entries 2·lane and
/// 2·lane + 1.
template <typename R, bool kQuant, bool kEntry>
__device__ __forceinline__ void tile_softmax(const Args& args, const EntryTile& tile,
                                             const float* meta, const float* scores, int warp,
                                             int lane, const Parts<R, kQuant, kEntry>& parts) {
  const float factor = args.step.scale * kLog2e;
  float bias[2] = {0.f, 0.f};
  if (tile.groups) {
    const bool stored = args.step.pool.bias != nullptr;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      bias[e] = (stored ? meta[2 * lane + e] : args.bias_all) * kLog2e;
    }
  }
#pragma unroll
  for (int h = 0; h < R::kHeadTiles; ++h) {
#pragma unroll
    for (int i = 0; i < 16 / R::kWarps; ++i) {
      const int head = h * 16 + warp * (16 / R::kWarps) + i;
      const int pair = lane ^ (head & 3) * 4;
      const float2 low = reinterpret_cast<const float2*>(scores + head * kTile)[pair];
      const float2 high = reinterpret_cast<const float2*>(scores + (R::kRows + head) * kTile)[pair];
      float x = (low.x + high.x) * factor + bias[0];
      float y = (low.y + high.y) * factor + bias[1];
      x = 2 * lane < tile.count ? x : -INFINITY;
      y = 2 * lane + 1 < tile.count ? y : -INFINITY;
      const float2 before = parts.stats[head];
      const float best = fmaxf(before.x, warp_max(fmaxf(x, y)));
      const float keep = exp2f(before.x - best);
      x = exp2f(x - best);
      y = exp2f(y - best);
      const float after = before.y * keep + warp_sum(x + y);
      *reinterpret_cast<std::uint32_t*>(parts.weights + head * (kTile * 2) +
                                        (lane / 4 ^ (head & 7)) * 16 + lane % 4 * 4) =
          pack_bf16(x, y);
      __syncwarp();  // every lane has read the old maximum
      if (lane == 0) {
        parts.rescale[head] = keep;
        parts.stats[head] = {best, after};
      }
    }
  }
}

/// Adds the tile's values to this warp's columns of the result.
template <typename R, bool kQuant, bool kEntry>
__device__ __forceinline__ void tile_values(const EntryTile& tile, const unsigned char* rows,
                                            int warp, int lane,
                                            const Parts<R, kQuant, kEntry>& parts,
                                            typename WarpShare<R>::Results& result) {
  constexpr int kHeadTiles = R::kHeadTiles;
  constexpr int kColumns = WarpShare<R>::kColumns;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    const float upper = parts.rescale[h * 16 + lane / 4];
    const float lower = parts.rescale[h * 16 + lane / 4 + 8];
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      result[h][c][0] *= upper;
      result[h][c][1] *= upper;
      result[h][c][2] *= lower;
      result[h][c][3] *= lower;
    }
  }
  const int first_chunk = (R::kValueAt + warp * kColumns) / 8;
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    if (k * 16 >= tile.count) break;  // rows beyond are not even zeros
    std::uint32_t weight[kHeadTiles][4];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int head = h * 16 + lane % 16;
      matrix_load(weight[h], shared_address(parts.weights + head * (kTile * 2) +
                                            ((k * 2 + lane / 16) ^ (head & 7)) * 16));
    }
    const int row = k * 16 + lane % 16;
    if constexpr (kColumns == 8) {
      std::uint32_t value[2];
      matrix_load_transposed(value, shared_address(rows + R::offset(row, first_chunk)));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        multiply(result[h][0], weight[h], value[0], value[1]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < kColumns / 16; ++c) {
        std::uint32_t value[4];  // columns 0–7: entries 0–7, 8–15; columns 8–15: the same
        matrix_load_transposed(
            value, shared_address(rows + R::offset(row, first_chunk + 2 * c + lane / 16)));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          multiply(result[h][2 * c], weight[h], value[0], value[1]);
          multiply(result[h][2 * c + 1], weight[h], value[2], value[3]);
        }
      }
    }
  }
}

/// The block's result to shared memory, over the tiles.
template <typename R>
__device__ __forceinline__ void results_write(const typename WarpShare<R>::Results& result,
                                              int warp, int lane, int stride, float* results) {
  constexpr int kColumns = WarpShare<R>::kColumns;
#pragma unroll
  for (int h = 0; h < R::kHeadTiles; ++h) {
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      const int column = warp * kColumns + c * 8 + lane % 4 * 2;
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int head = h * 16 + lane / 4 + 8 * low;
        *reinterpret_cast<float2*>(results + head * stride + column) = {result[h][c][2 * low],
                                                                        result[h][c][2 * low + 1]};
      }
    }
  }
}

}  // namespace lca::cuda::decoding
