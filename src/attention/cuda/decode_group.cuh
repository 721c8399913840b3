#pragma once
/// The group that leaves the window in a decode step, made into a representative by the one block
/// that reads it next (mechanism §3–§5, §7).

#include "attention/cuda/decode_tiles.cuh"

namespace lca::cuda::decoding {

/// Longest group the tensor-core kernels take: its scores and weights lie in a stage.
inline constexpr int kMostGroup = 1024;

/// A representative as readers see it, spread over the block's threads: thread t has the bf16
/// pairs t, t + kThreads, … of the row.
template <typename R>
struct NewGroup {
  static constexpr int kPairs = (R::kWidth / 2 + R::kThreads - 1) / R::kThreads;
  static_assert((R::kScore + 2 * kMostGroup + 32) * 4 <= (kTile - R::kRows) * R::kStride,
                "scratch of group_condense lies behind the queries");
  std::uint32_t pairs[kPairs];
  float bias = 0;

  __device__ void put(unsigned char* rows, int row) const {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int pair = static_cast<int>(threadIdx.x) + k * R::kThreads;
      if (pair >= R::kWidth / 2) break;
      *reinterpret_cast<std::uint32_t*>(rows + R::offset(row, pair / 4) + 4 * (pair % 4)) =
          pairs[k];
    }
  }
};

/// Where the pieces of a session's entries begin for one KV head, in the order of `Row`.
template <typename R>
struct RingRows {
  const bf16* first;
  const bf16* second;
  int kv_heads;
  int kv;
  /// Pair of columns (2·pair, 2·pair + 1) of a row of the ring.
  __device__ std::uint32_t pair(int row, int pair) const {
    const std::int64_t at = static_cast<std::int64_t>(row) * kv_heads + kv;
    const bf16* source = 2 * pair < R::kFirst ? first + at * R::kFirst + 2 * pair
                                              : second + at * R::kSecond + (2 * pair - R::kFirst);
    return *reinterpret_cast<const std::uint32_t*>(source);
  }
};

/// The new token's query, summed over the heads that share the KV head: columns 2·pair, 2·pair + 1.
template <typename R>
__device__ float2 query_sum(const Args& args, int session, int kv, int pair) {
  const int sharing = args.sharing;
  const bf16* query = args.step.queries +
                      (static_cast<std::int64_t>(session) * args.heads + kv * sharing) * R::kScore +
                      2 * pair;
  float2 sum{0.f, 0.f};
#pragma unroll 16
  for (int h = 0; h < sharing; ++h) {
    const float2 value =
        unpack_bf16(*reinterpret_cast<const std::uint32_t*>(query + h * R::kScore));
    sum.x += value.x;
    sum.y += value.y;
  }
  return sum;
}

template <typename R>
__device__ float2 pooled_pair(Pool how, const RingRows<R>& rows, const Place& at, int begin,
                              int group, const float* weights, int best, int pair) {
  if (how == Pool::select) return unpack_bf16(rows.pair(at.position_row(begin + best), pair));
  float2 sum{0.f, 0.f};
  if (how == Pool::max) sum = {-INFINITY, -INFINITY};
  int row = at.position_row(begin);
#pragma unroll 16
  for (int i = 0; i < group; ++i) {
    const float2 value = unpack_bf16(rows.pair(row, pair));
    row = row + 1 == at.sink + at.ring ? at.sink : row + 1;
    if (how == Pool::max) {
      sum = {fmaxf(sum.x, value.x), fmaxf(sum.y, value.y)};
    } else {
      const float weight = how == Pool::mean ? 1.f : weights[i];
      sum = {sum.x + weight * value.x, sum.y + weight * value.y};
    }
  }
  if (how == Pool::mean)
    sum = {sum.x / static_cast<float>(group), sum.y / static_cast<float>(group)};
  return sum;
}

/// Condenses group at.groups − 1 for one KV head with all threads of the block; puts it into its
/// page where `write`. `scratch` is free shared memory: kScore + 2·g + 32 floats.
template <typename R>
__device__ NewGroup<R> group_condense(const Args& args, const SessionView& view, const Place& at,
                                      int session, int kv, bool write, float* scratch) {
  const Settings& settings = args.step.settings;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int group = static_cast<int>(settings.group);
  const int kv_heads = R::kMla ? 1 : args.kv_heads;
  float* mean = scratch;
  float* scores = mean + R::kScore;
  float* weights = scores + group;
  float* sums = weights + group;                                  // one per warp
  auto* largest = reinterpret_cast<unsigned*>(sums + R::kWarps);  // one per scale
  const RingRows<R> rows{R::kMla ? view.semantic : view.positional,
                         R::kMla ? view.positional : view.semantic, kv_heads, kv};

  // q̄: the queries before this step's from the ring of summaries, this step's as it was given.
  const int j = at.groups - 1;
  const std::int64_t page = view.pages[j / kPageRows];  // asked for early, wanted last
  const Range range = args.layout.summary_range(j, 0);
  const int queries = static_cast<int>(args.layout.summary_queries);
  const int before = static_cast<int>(range.size()) - 1;
  for (int pair = tid; pair < R::kScore / 2; pair += R::kThreads) {
    float2 sum = query_sum<R>(args, session, kv, pair);
    int row = static_cast<int>(range.begin % queries);
#pragma unroll 16
    for (int i = 0; i < before; ++i) {
      const auto* source = reinterpret_cast<const float2*>(
          view.summary + (static_cast<std::int64_t>(row) * kv_heads + kv) * R::kScore);
      const float2 value = source[pair];
      sum = {sum.x + value.x, sum.y + value.y};
      row = row + 1 == queries ? 0 : row + 1;
    }
    const float count = static_cast<float>(before + 1);
    *reinterpret_cast<float2*>(mean + 2 * pair) = {sum.x / count, sum.y / count};
  }
  if (tid < R::kScales) largest[tid] = 0;
  __syncthreads();

  const int begin = static_cast<int>(args.layout.group_range(j).begin);
  const float score_factor = args.step.scale * args.reduce;
  for (int i = warp; i < group; i += 2 * R::kWarps) {  // two rows at once: their loads overlap
    const int count = min(2, (group - i + R::kWarps - 1) / R::kWarps);
    const int row = at.position_row(begin + i);
    const int next = count == 2 ? at.position_row(begin + i + R::kWarps) : row;
    float dot[2] = {0.f, 0.f};
#pragma unroll 9
    for (int pair = lane; pair < R::kScore / 2; pair += 32) {
      const float2 value = unpack_bf16(rows.pair(row, pair));
      const float2 other = unpack_bf16(rows.pair(next, pair));
      dot[0] += mean[2 * pair] * value.x + mean[2 * pair + 1] * value.y;
      dot[1] += mean[2 * pair] * other.x + mean[2 * pair + 1] * other.y;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float sum = warp_sum(dot[k]);
      if (lane == 0 && k < count) scores[i + k * R::kWarps] = sum * score_factor;
    }
  }
  __syncthreads();
  const GroupWeights softmax = group_weights(scores, group);
  for (int i = tid; i < group; i += R::kThreads)
    weights[i] = expf(scores[i] - softmax.top) / softmax.sum;
  __syncthreads();

  NewGroup<R> made;
  float own = 0;
#pragma unroll
  for (int k = 0; k < NewGroup<R>::kPairs; ++k) {
    const int pair = tid + k * R::kThreads;
    made.pairs[k] = 0;
    if (pair >= R::kWidth / 2) break;
    const bool semantic = (2 * pair < R::kFirst) == R::kMla;
    const Pool how = semantic ? settings.semantic_pool : settings.positional_pool;
    const float2 value = pooled_pair<R>(how, rows, at, begin, group, weights, softmax.best, pair);
    if (2 * pair < R::kScore) own += mean[2 * pair] * value.x + mean[2 * pair + 1] * value.y;
    made.pairs[k] = pack_bf16(value.x, value.y);
    if (args.step.pool.type != GroupType::bf16 && (semantic || !R::kMla)) {
      const float2 stored = unpack_bf16(made.pairs[k]);
      atomicMax(largest + R::scale_of(2 * pair),
                __float_as_uint(fmaxf(fabsf(stored.x), fabsf(stored.y))));
    }
  }
  own = warp_sum(own);
  if (lane == 0) sums[warp] = own;
  __syncthreads();
  own = 0;
#pragma unroll
  for (int w = 0; w < R::kWarps; ++w) own += sums[w];
  made.bias = settings.mass == Mass::score ? logf(softmax.sum) + softmax.top - own * score_factor
                                           : args.bias_all;

  const GroupPool& pool = args.step.pool;
  const std::int64_t at_row = (page * kPageRows + j % kPageRows) * kv_heads + kv;
  const float most = quantised_largest(pool.type);
#pragma unroll
  for (int k = 0; k < NewGroup<R>::kPairs; ++k) {
    const int pair = tid + k * R::kThreads;
    if (pair >= R::kWidth / 2) break;
    const bool first = 2 * pair < R::kFirst;
    const bool semantic = first == R::kMla;
    const std::int64_t element =
        at_row * (first ? R::kFirst : R::kSecond) + (first ? 2 * pair : 2 * pair - R::kFirst);
    void* part = semantic ? pool.semantic : pool.positional;
    if (pool.type == GroupType::bf16 || (R::kMla && !semantic)) {
      if (write) {
        *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(part) + element) = made.pairs[k];
      }
      continue;
    }
    const float magnitude = __uint_as_float(largest[R::scale_of(2 * pair)]);
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
  if (write && pool.type != GroupType::bf16 && tid < R::kScales) {
    const float scale = __uint_as_float(largest[tid]) / most;
    if constexpr (R::kMla) {
      pool.semantic_scale[at_row * R::kScales + tid] = scale;
    } else {
      (tid == 0 ? pool.positional_scale : pool.semantic_scale)[at_row] = scale;
    }
  }
  if (write && pool.bias != nullptr && tid == 0) pool.bias[at_row] = made.bias;
  return made;
}

/// The new token into its row of the ring, its summed query into the ring of summaries.
template <typename R>
__device__ void token_store(const Args& args, const SessionView& view, const Place& at, int session,
                            int kv) {
  const int tid = static_cast<int>(threadIdx.x);
  const int kv_heads = R::kMla ? 1 : args.kv_heads;
  const std::int64_t from = static_cast<std::int64_t>(session) * kv_heads + kv;
  const std::int64_t to = static_cast<std::int64_t>(at.position_row(at.n - 1)) * kv_heads + kv;
  if (tid < R::kSemantic / 8) {
    reinterpret_cast<uint4*>(view.semantic + to * R::kSemantic)[tid] =
        reinterpret_cast<const uint4*>(args.step.semantic + from * R::kSemantic)[tid];
  } else if (tid < R::kChunks) {
    const int chunk = tid - R::kSemantic / 8;
    reinterpret_cast<uint4*>(view.positional + to * R::kPositional)[chunk] =
        reinterpret_cast<const uint4*>(args.step.positional + from * R::kPositional)[chunk];
  }
  if (args.layout.method != MethodKind::lca) return;
  const int row = (at.n - 1) % static_cast<int>(args.layout.summary_queries);
  auto* summary = reinterpret_cast<float2*>(
      view.summary + (static_cast<std::int64_t>(row) * kv_heads + kv) * R::kScore);
  for (int pair = tid; pair < R::kScore / 2; pair += R::kThreads) {
    summary[pair] = query_sum<R>(args, session, kv, pair);
  }
}

}  // namespace lca::cuda::decoding
