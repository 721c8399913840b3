#pragma once
/// The group that leaves the window in a decode step: condensed by the one block that reads its
/// representative next (mechanism §3–§5, §7).

#include "attention/cuda/decode/decode_token.cuh"

namespace lca::cuda::decoding {

/// Longest group the tensor-core kernels take: its scores lie in shared memory.
inline constexpr int kMostGroup = 512;
/// A representative as readers see it, spread over the threads of a team: thread t has the bf16
/// pairs t, t + kThreads, … of the row.
template <typename R, typename Team = WholeBlock<R>>
struct NewGroup {
  static constexpr int kPairs = (R::kWidth / 2 + Team::kThreads - 1) / Team::kThreads;
  std::uint32_t pairs[kPairs];
  float bias = 0;

  __device__ void put(unsigned char* rows, int row) const {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int pair = Team::thread() + k * Team::kThreads;
      if (pair >= R::kWidth / 2) break;
      *reinterpret_cast<std::uint32_t*>(rows + R::offset(row, pair / 4) + 4 * (pair % 4)) =
          pairs[k];
    }
  }
};

/// Shared memory that group_condense works in.
template <typename R, typename Team = WholeBlock<R>>
struct CondenseScratch {
  static constexpr int kRows = R::kGroupRows;
  alignas(16) std::uint32_t rows[kRows][R::kWidth / 2];
  float mean[R::kScore];
  float scores[kMostGroup];
  float weights[kRows];
  float sums[Team::kWarps];
  unsigned largest[8];  // one per scale
};

/// The stages of condensing group at.groups − 1 for one KV head, each by all threads of the team.
/// It runs once in g steps, often beside a busy memory: trips are few, and the code is short,
/// because it comes from memory too. Rows pass through shared memory, R::kGroupRows at a time; most
/// groups are loaded once.
template <typename R, bool kQuant, bool kEntry, typename Team>
struct Condenser {
  using New = NewGroup<R, Team>;
  using Scratch = CondenseScratch<R, Team>;
  const Args& args;
  const SessionView& view;
  const Place& at;
  int session, kv;
  Scratch& scratch;
  Team& team;
  const int tid = Team::thread();
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int group = static_cast<int>(args.step.settings.group);
  const int kv_heads = R::kMla ? 1 : args.kv_heads;
  const int j = at.groups - 1;
  const int first_row = at.position_row(args.layout.group_range(j).begin);
  const float score_factor = args.step.scale * args.reduce;

  /// Rows [first, first + Scratch::kRows) of the group, asked for.
  __device__ __forceinline__ void rows_load(int first) const {
    const int count = min(Scratch::kRows, group - first);
#pragma unroll 1
    for (int i = tid; i < count * R::kChunks; i += Team::kThreads) {
      const int row = i / R::kChunks;
      const int chunk = i % R::kChunks;
      const std::int64_t from = std::int64_t{at.row_after(first_row, first + row)} * kv_heads + kv;
      const bool head = chunk < R::kFirst / 8;
      const bf16* const rows = head == R::kMla ? view.semantic : view.positional;
      copy_chunk(shared_address(scratch.rows[row] + chunk * 4),
                 rows + from * (head ? R::kFirst : R::kSecond) +
                     (head ? chunk : chunk - R::kFirst / 8) * 8);
    }
    copy_commit();
  }

  /// q̄: the queries before this step's from the ring of summaries, this step's as it was given.
  __device__ __forceinline__ void mean_make() const {
    const BasicRange<std::int32_t> range = args.layout.summary_range(j, 0);
    const int queries = args.layout.summary_queries;
    const int before = range.size() - 1;
#pragma unroll 1
    for (int pair = tid; pair < R::kScore / 2; pair += Team::kThreads) {
      const auto* const column =
          reinterpret_cast<const float2*>(view.summary + kv * R::kScore) + pair;
      float2 sum = query_sum<R>(args, session, kv, pair);
      int row = range.begin % queries;
#pragma unroll 1
      for (int first = 0; first < before; first += kAtOnce) {
        float2 value[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          value[i] = {0.f, 0.f};
          if (first + i < before) value[i] = column[std::int64_t{row} * (kv_heads * R::kScore / 2)];
          row = row + 1 == queries ? 0 : row + 1;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sum = {sum.x + value[i].x, sum.y + value[i].y};
      }
      const float count = static_cast<float>(before + 1);
      *reinterpret_cast<float2*>(scratch.mean + 2 * pair) = {sum.x / count, sum.y / count};
    }
    if (kQuant && tid < R::kScales) scratch.largest[tid] = 0;
  }

  /// Scores of all rows; the first are on their way already.
  __device__ __forceinline__ void scores_make() const {
#pragma unroll 1
    for (int first = 0; first < group; first += Scratch::kRows) {
      if (first > 0) rows_load(first);
      copy_wait_all();
      team.sync();
#pragma unroll 1
      for (int i = warp; i < min(Scratch::kRows, group - first); i += Team::kWarps) {
        float dot = 0;
#pragma unroll 3
        for (int pair = lane; pair < R::kScore / 2; pair += 32) {
          const float2 value = unpack_bf16(scratch.rows[i][pair]);
          const float2 q = *reinterpret_cast<const float2*>(scratch.mean + 2 * pair);
          dot += q.x * value.x + q.y * value.y;
        }
        dot = warp_sum(dot);
        if (lane == 0) scratch.scores[first + i] = score_bounded(dot * score_factor);
      }
      team.sync();
    }
  }

  __device__ __forceinline__ Pool pool_of(int pair) const {
    return (2 * pair < R::kFirst) == R::kMla ? args.step.settings.semantic_pool
                                             : args.step.settings.positional_pool;
  }

  /// Channel `channel` of the positional part of a row that is in shared memory.
  __device__ __forceinline__ float positional_of(int row, int channel) const {
    const auto* const values = reinterpret_cast<const bf16*>(scratch.rows[row]);
    return __bfloat162float(values[(R::kMla ? R::kFirst : 0) + channel]);
  }

  /// A pair of positional channels as it is kept: its members rotated to the representative's
  /// position, then pooled. A thread has one pair at most.
  struct KeptPair {
    int2 channel{0, 0};
    std::uint64_t step = 0;
    float2 value{0.f, 0.f};
  };
  __device__ __forceinline__ bool keeps_pair() const {
    static_assert(R::kPositional / 2 <= Team::kThreads);
    return kEntry && tid < args.step.rotation.pairs;
  }
  __device__ __forceinline__ KeptPair kept_begin() const {
    KeptPair kept;
    if (!keeps_pair()) return kept;
    kept.channel = pair_channels(args.step.rotation, tid);
    kept.step = __ldg(args.step.rotation.steps + tid);  // in the L1 cache since the queries
    if (args.step.settings.positional_pool == Pool::max) kept.value = {-INFINITY, -INFINITY};
    return kept;
  }
  /// Rows [first, first + count), which are in shared memory.
  __device__ __forceinline__ void kept_add(int first, int count, const GroupWeights& softmax,
                                           KeptPair& kept) const {
    if (!keeps_pair()) return;
    const Pool how = args.step.settings.positional_pool;
    const int difference = -(j * (group - 1) + first);  // of row `first`
    const auto row = [&](const Turn& turn, int i) {
      return turn(positional_of(i, kept.channel.x), positional_of(i, kept.channel.y));
    };
    if (how == Pool::select) {
      const int i = softmax.best - first;
      if (0 <= i && i < count) kept.value = row(turn_of(kept.step, difference - i), i);
      return;
    }
    MemberTurns turns(kept.step, difference);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const float2 value = row(turns.next(), i);
      const float weight =
          how == Pool::weighted ? scratch.weights[i] : 1.f / static_cast<float>(group);
      const float2 sum = {kept.value.x + weight * value.x, kept.value.y + weight * value.y};
      const float2 most = {fmaxf(kept.value.x, value.x), fmaxf(kept.value.y, value.y)};
      kept.value = how == Pool::max ? most : sum;
    }
  }
  /// Where kept channels lie: over the scores, which have been read when the last rows are pooled.
  __device__ __forceinline__ bf16* kept_row() const {
    static_assert(R::kPositional * sizeof(bf16) <= sizeof(scratch.scores));
    return reinterpret_cast<bf16*>(scratch.scores);
  }
  __device__ __forceinline__ void kept_write(const KeptPair& kept) const {
    if (!keeps_pair()) return;
    kept_row()[kept.channel.x] = __float2bfloat16_rn(kept.value.x);
    kept_row()[kept.channel.y] = __float2bfloat16_rn(kept.value.y);
  }
  /// Columns 2·pair and 2·pair + 1 of the representative, of which `made` has the pooled values.
  __device__ __forceinline__ std::uint32_t kept_read(int pair, std::uint32_t made) const {
    const int channel = 2 * pair - (R::kMla ? R::kFirst : 0);
    const int rotated = 2 * args.step.rotation.pairs;
    if (channel < 0 || channel >= R::kPositional) return made;
    const auto bits = [&](int c) {
      return std::uint32_t{*reinterpret_cast<const std::uint16_t*>(kept_row() + c)};
    };
    const std::uint32_t low = channel < rotated ? bits(channel) : made & 0xffffu;
    const std::uint32_t high = channel + 1 < rotated ? bits(channel + 1) : made >> 16;
    return low | high << 16;
  }

  /// This thread's pairs of columns over all rows. `mean` is still a sum.
  __device__ __forceinline__ void rows_pool(const GroupWeights& softmax,
                                            float2 (&pooled)[New::kPairs]) const {
    KeptPair kept;
    if constexpr (kEntry) kept = kept_begin();
#pragma unroll
    for (int k = 0; k < New::kPairs; ++k) {
      pooled[k].x = pooled[k].y = pool_of(tid + k * Team::kThreads) == Pool::max ? -INFINITY : 0.f;
    }
#pragma unroll 1
    for (int first = 0; first < group; first += Scratch::kRows) {
      if (group > Scratch::kRows) {
        rows_load(first);
        copy_wait_all();
      }
      const int count = min(Scratch::kRows, group - first);
      // Probabilities, which only `weighted` reads.
      if (tid < count) {
        scratch.weights[tid] = expf(scratch.scores[first + tid] - softmax.top) / softmax.sum;
      }
      team.sync();
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int k = 0; k < New::kPairs; ++k) {
          const int pair = min(tid + k * Team::kThreads, R::kWidth / 2 - 1);
          const Pool how = pool_of(pair);
          const float2 value = unpack_bf16(scratch.rows[i][pair]);
          const float weight = how == Pool::weighted ? scratch.weights[i] : 1.f;
          const float2 sum = {pooled[k].x + weight * value.x, pooled[k].y + weight * value.y};
          const float2 most = {fmaxf(pooled[k].x, value.x), fmaxf(pooled[k].y, value.y)};
          if (how == Pool::select) {  // copied, not summed: ∞ and −0 stay what they are
            if (first + i == softmax.best) pooled[k] = value;
          } else {
            pooled[k] = how == Pool::max ? most : sum;
          }
        }
      }
      if constexpr (kEntry) {
        kept_add(first, count, softmax, kept);
        if (first + Scratch::kRows >= group) kept_write(kept);
      }
      team.sync();
    }
  }

  /// The representative as bf16 and its bias; in scratch.largest the magnitude of each scale.
  __device__ __forceinline__ New finish(const GroupWeights& softmax,
                                        const float2 (&pooled)[New::kPairs]) const {
    New made;
    float own = 0;
#pragma unroll
    for (int k = 0; k < New::kPairs; ++k) {
      const int pair = tid + k * Team::kThreads;
      made.pairs[k] = 0;
      if (pair >= R::kWidth / 2) break;
      const bool semantic = (2 * pair < R::kFirst) == R::kMla;
      float2 value = pooled[k];
      if (pool_of(pair) == Pool::mean) {
        value = {value.x / static_cast<float>(group), value.y / static_cast<float>(group)};
      }
      if (pair < R::kScore / 2) {
        own += scratch.mean[2 * pair] * value.x + scratch.mean[2 * pair + 1] * value.y;
      }
      made.pairs[k] = pack_bf16(value.x, value.y);
      if constexpr (kEntry) made.pairs[k] = kept_read(pair, made.pairs[k]);
      if (kQuant && (semantic || !R::kMla)) {
        const float2 stored = unpack_bf16(made.pairs[k]);
        atomicMax(scratch.largest + R::scale_of(2 * pair),
                  max(magnitude_bits(stored.x), magnitude_bits(stored.y)));
      }
    }
    made.bias = args.bias_all;
    const Mass mass = args.step.settings.mass;
    if (kQuant || mass == Mass::score) {
      own = warp_sum(own);
      if (lane == 0) scratch.sums[warp] = own;
      team.sync();
      own = 0;
      for (int w = 0; w < Team::kWarps; ++w) own += scratch.sums[w];
      if (mass == Mass::score) {
        made.bias =
            mass_bias(mass, group, softmax.sum, softmax.top, score_bounded(own * score_factor));
      }
    }
    return made;
  }

  /// Into its page where `write`; quantised pages round what readers of this step see too.
  __device__ __forceinline__ void store(std::int64_t page, bool write, New& made) const {
    const GroupPool& pool = args.step.pool;
    const std::int64_t at_row = (page * kPageRows + j % kPageRows) * kv_heads + kv;
    const float most = quantised_largest(pool.type);
#pragma unroll
    for (int k = 0; k < New::kPairs; ++k) {
      const int pair = tid + k * Team::kThreads;
      if (pair >= R::kWidth / 2) break;
      const bool first = 2 * pair < R::kFirst;
      const bool semantic = first == R::kMla;
      const std::int64_t element =
          at_row * (first ? R::kFirst : R::kSecond) + (first ? 2 * pair : 2 * pair - R::kFirst);
      void* part = semantic ? pool.semantic : pool.positional;
      if (!kQuant || (R::kMla && !semantic)) {
        if (write) {
          *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(part) + element) = made.pairs[k];
        }
        continue;
      }
      const float magnitude = __uint_as_float(scratch.largest[R::scale_of(2 * pair)]);
      const float scale = magnitude / most;
      const float factor = quantising_factor(most, magnitude);
      const float2 value = unpack_bf16(made.pairs[k]);
      const std::uint8_t low = quantise(pool.type, value.x, factor);
      const std::uint8_t high = quantise(pool.type, value.y, factor);
      if (write) {
        *reinterpret_cast<std::uint16_t*>(static_cast<std::uint8_t*>(part) + element) =
            static_cast<std::uint16_t>(low | high << 8);
      }
      made.pairs[k] = pack_bf16(quantised_value(pool.type, low) * scale,
                                quantised_value(pool.type, high) * scale);
    }
    if (kQuant && write && tid < R::kScales) {
      const float scale = __uint_as_float(scratch.largest[tid]) / most;
      if constexpr (R::kMla) {
        pool.semantic_scale[at_row * R::kScales + tid] = scale;
      } else {
        (tid == 0 ? pool.positional_scale : pool.semantic_scale)[at_row] = scale;
      }
    }
    if (write && pool.bias != nullptr && tid == 0) pool.bias[at_row] = made.bias;
  }
};

/// Condenses group at.groups − 1 for one KV head with all threads of the team, and puts it into its
/// page where `write`. `scratch` is free shared memory.
template <typename R, bool kQuant, bool kEntry, typename Team = WholeBlock<R>>
__device__ NewGroup<R, Team> group_condense(const Args& args, const SessionView& view,
                                            const Place& at, int session, int kv, bool write,
                                            CondenseScratch<R, Team>& scratch, Team team = {}) {
  const Condenser<R, kQuant, kEntry, Team> condenser{args, view, at, session, kv, scratch, team};
  // Loaded early, needed last.
  const std::int64_t page = view.pages[condenser.j / kPageRows];
  condenser.rows_load(0);
  condenser.mean_make();
  condenser.scores_make();
  const GroupWeights softmax = group_weights(scratch.scores, condenser.group);
  float2 pooled[NewGroup<R, Team>::kPairs];
  condenser.rows_pool(softmax, pooled);
  NewGroup<R, Team> made = condenser.finish(softmax, pooled);
  condenser.store(page, write, made);
  return made;
}

}  // namespace lca::cuda::decoding
