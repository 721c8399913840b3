#pragma once
/// The pieces of the decode kernel for any shape: one block's view of its session, entry by entry,
/// and condensation in plain loops.

#include "attention/cuda/decode/decode_common.cuh"

namespace lca::cuda::decoding::generic {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;

/// Widths, and shared memory as the block uses it.
struct Widths {
  bool mla;
  int semantic, positional;
  int score;   ///< of a query
  int scales;  ///< of a quantised latent (MLA)
  int group;
  int far;  ///< of a query's other form, with entry positions

  __host__ __device__ explicit Widths(const Args& args)
      : mla(args.step.shape.form == Form::mla),
        semantic(static_cast<int>(mla ? args.step.shape.d_latent : args.step.shape.d_value)),
        positional(static_cast<int>(args.step.shape.d_rope)),
        score(mla ? semantic + positional : positional),
        scales((semantic + kScaleBlock - 1) / kScaleBlock),
        group(args.layout.method == MethodKind::lca ? static_cast<int>(args.layout.group) : 0),
        far(args.step.rotation.steps != nullptr ? score : 0) {}

  __host__ __device__ std::int64_t floats() const {
    return std::int64_t{2} * score + far + 2 * semantic + positional + 2 * std::int64_t{group} +
           2 * kTile + 2 * kTile + kTile + kWarps + 4;
  }
};

struct Shared {
  std::int64_t* rows;    ///< [kTile]: where each entry of the tile lies
  float* query;          ///< [score]
  float* far;            ///< [far]: the query as representatives and sink see it
  float* mean;           ///< [score]
  float* made;           ///< [semantic + positional]: this step's representative as readers see it
  float* result;         ///< [semantic]
  float* scores;         ///< [group]
  float* weights;        ///< [group]
  float* logits;         ///< [kTile]
  float* probabilities;  ///< [kTile]
  float* sums;           ///< [kWarps]

  __device__ Shared(float* base, const Widths& w) {
    rows = reinterpret_cast<std::int64_t*>(base);
    query = base + 2 * kTile;
    far = query + w.score;
    mean = far + w.far;
    made = mean + w.score;
    result = made + w.semantic + w.positional;
    scores = result + w.semantic;
    weights = scores + w.group;
    logits = weights + w.group;
    probabilities = logits + kTile;
    sums = probabilities + kTile;
  }
};

__device__ inline float block_sum(float value, float* sums) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float all = 0;
  for (int w = 0; w < kWarps; ++w) all += sums[w];
  return all;
}

__device__ inline unsigned block_max(unsigned value, float* sums) {
  value = __reduce_max_sync(~0u, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = __uint_as_float(value);
  __syncthreads();
  unsigned all = 0;
  for (int w = 0; w < kWarps; ++w) all = max(all, __float_as_uint(sums[w]));
  return all;
}

/// One block's view of everything.
struct Job {
  const Args& args;
  const Widths& w;
  const SessionView& view;
  const Place& at;
  const Shared& shared;
  int session, kv, head;

  __device__ float query_of(int h, int d) const {
    const std::int64_t row = static_cast<std::int64_t>(session) * args.heads + h;
    return __bfloat162float(args.step.queries[row * w.score + d]);
  }
  /// The query rotated to its entry position.
  __device__ void far_make(int difference) const {
    const int first = w.mla ? w.semantic : 0;
    const RotationView& rotation = args.step.rotation;
    for (int d = threadIdx.x; d < w.score; d += kThreads) {
      if (d < first || d >= first + 2 * rotation.pairs) shared.far[d] = shared.query[d];
    }
    for (int pair = threadIdx.x; pair < rotation.pairs; pair += kThreads) {
      const int2 channel = pair_channels(rotation, pair);
      const float2 value = turn_of(rotation.steps[pair], difference)(
          shared.query[first + channel.x], shared.query[first + channel.y]);
      shared.far[first + channel.x] = value.x;
      shared.far[first + channel.y] = value.y;
    }
  }
  __device__ bool heads_apart() const { return args.step.settings.head_reduce == HeadReduce::max; }
  /// The new token's query as the summary keeps it, column d of (with heads apart) head `h` of
  /// those that share the KV head.
  __device__ float summary_value(int h, int d) const {
    if (w.mla) {
      const std::int64_t heads = heads_apart() ? args.sharing : 1;
      return args.step.summary[(session * heads + h) * w.score + d];
    }
    if (heads_apart()) return query_of(kv * args.sharing + h, d);
    float sum = 0;
    for (int i = 0; i < args.sharing; ++i) sum += query_of(kv * args.sharing + i, d);
    return sum;
  }
  __device__ std::int64_t summary_at(int row, int h) const {
    const std::int64_t heads = heads_apart() ? args.sharing : 1;
    return ((static_cast<std::int64_t>(row) * args.kv_heads + kv) * heads + h) * w.score;
  }
  __device__ std::int64_t ring_row(int position) const {
    return static_cast<std::int64_t>(at.position_row(position)) * args.kv_heads + kv;
  }
  __device__ std::int64_t pool_row(int j) const {
    return (static_cast<std::int64_t>(view.pages[j / kPageRows]) * kPageRows + j % kPageRows) *
               args.kv_heads +
           kv;
  }
  __device__ float semantic_of_ring(std::int64_t row, int d) const {
    return __bfloat162float(view.semantic[row * w.semantic + d]);
  }
  __device__ float positional_of_ring(std::int64_t row, int d) const {
    return __bfloat162float(view.positional[row * w.positional + d]);
  }
  /// Column d of a key in a row of the ring.
  __device__ float key_of_ring(std::int64_t row, int d) const {
    if (!w.mla) return positional_of_ring(row, d);
    return d < w.semantic ? semantic_of_ring(row, d) : positional_of_ring(row, d - w.semantic);
  }

  // --- an entry of the list: its number gives its kind ---
  /// Its row in pool, ring or new tokens.
  __device__ std::int64_t entry_row(int entry) const {
    if (entry < at.groups) return at.leaves && entry == at.groups - 1 ? 0 : pool_row(entry);
    if (entry == at.entries - 1) return static_cast<std::int64_t>(session) * args.kv_heads + kv;
    return static_cast<std::int64_t>(at.exact_row(entry - at.groups)) * args.kv_heads + kv;
  }
  __device__ float semantic_of(int entry, std::int64_t row, int d) const {
    if (entry >= at.groups) {
      const bf16* from = entry == at.entries - 1 ? args.step.semantic : view.semantic;
      return __bfloat162float(from[row * w.semantic + d]);
    }
    if (at.leaves && entry == at.groups - 1) return shared.made[d];
    const GroupPool& pool = args.step.pool;
    if (pool.type == GroupType::bf16) {
      return __bfloat162float(static_cast<const bf16*>(pool.semantic)[row * w.semantic + d]);
    }
    const float scale =
        w.mla ? pool.semantic_scale[row * w.scales + d / kScaleBlock] : pool.semantic_scale[row];
    return dequantised(static_cast<const std::uint8_t*>(pool.semantic)[row * w.semantic + d],
                       scale);
  }
  __device__ float positional_of(int entry, std::int64_t row, int d) const {
    if (entry >= at.groups) {
      const bf16* from = entry == at.entries - 1 ? args.step.positional : view.positional;
      return __bfloat162float(from[row * w.positional + d]);
    }
    if (at.leaves && entry == at.groups - 1) return shared.made[w.semantic + d];
    const GroupPool& pool = args.step.pool;
    if (pool.type == GroupType::bf16 || w.mla) {
      return __bfloat162float(static_cast<const bf16*>(pool.positional)[row * w.positional + d]);
    }
    return dequantised(static_cast<const std::uint8_t*>(pool.positional)[row * w.positional + d],
                       pool.positional_scale[row]);
  }
  __device__ float dequantised(std::uint8_t bits, float scale) const {
    return __bfloat162float(__float2bfloat16(quantised_value(args.step.pool.type, bits) * scale));
  }
  __device__ float key_of(int entry, std::int64_t row, int d) const {
    if (!w.mla) return positional_of(entry, row, d);
    return d < w.semantic ? semantic_of(entry, row, d) : positional_of(entry, row, d - w.semantic);
  }

  // --- condensation ---
  /// q̄ of one head (or of the sum of heads) into shared.mean.
  __device__ void mean_make(int h) const {
    const BasicRange<std::int32_t> range = args.layout.summary_range(at.groups - 1, 0);
    const int queries = static_cast<int>(args.layout.summary_queries);
    __syncthreads();
    for (int d = threadIdx.x; d < w.score; d += kThreads) {
      float sum = summary_value(h, d);
      for (std::int64_t t = range.begin; t < range.end - 1; ++t) {
        sum += view.summary[summary_at(static_cast<int>(t % queries), h) + d];
      }
      shared.mean[d] = sum / static_cast<float>(range.size());
    }
    __syncthreads();
  }

  __device__ float pooled(Pool how, bool semantic, int begin, int best, int d) const {
    const auto value = [&](int i) {
      const std::int64_t row = ring_row(begin + i);
      return semantic ? semantic_of_ring(row, d) : positional_of_ring(row, d);
    };
    if (how == Pool::select) return value(best);
    float sum = how == Pool::max ? -INFINITY : 0.f;
    for (int i = 0; i < w.group; ++i) {
      if (how == Pool::max) {
        sum = fmaxf(sum, value(i));
      } else {
        sum += (how == Pool::mean ? 1.f : shared.weights[i]) * value(i);
      }
    }
    return how == Pool::mean ? sum / static_cast<float>(w.group) : sum;
  }

  /// A pair of positional channels, its members rotated from their positions to representative j's.
  __device__ float2 pooled_pair(int j, int begin, int best, int pair) const {
    const Pool how = args.step.settings.positional_pool;
    const int2 channel = pair_channels(args.step.rotation, pair);
    const std::uint64_t step = args.step.rotation.steps[pair];
    const int difference = -j * (w.group - 1);  // of the first member
    const auto value = [&](const Turn& turn, int i) {
      const std::int64_t row = ring_row(begin + i);
      return turn(positional_of_ring(row, channel.x), positional_of_ring(row, channel.y));
    };
    if (how == Pool::select) return value(turn_of(step, difference - best), best);
    MemberTurns turns(step, difference);
    float2 all{0.f, 0.f};
    if (how == Pool::max) all = {-INFINITY, -INFINITY};
    for (int i = 0; i < w.group; ++i) {
      const float2 one = value(turns.next(), i);
      if (how == Pool::max) {
        all = {fmaxf(all.x, one.x), fmaxf(all.y, one.y)};
      } else {
        const float weight =
            how == Pool::mean ? 1.f / static_cast<float>(w.group) : shared.weights[i];
        all = {all.x + weight * one.x, all.y + weight * one.y};
      }
    }
    return all;
  }

  /// Makes representative at.groups − 1 (shared.made) and returns its bias.
  __device__ float condense(bool write) const {
    const Settings& settings = args.step.settings;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int rounds = heads_apart() ? args.sharing : 1;
    const int j = at.groups - 1;
    const int begin = static_cast<int>(args.layout.group_range(j).begin);
    const float factor = args.step.scale * args.reduce;
    for (int h = 0; h < rounds; ++h) {
      mean_make(h);
      for (int i = warp; i < w.group; i += kWarps) {
        const std::int64_t row = ring_row(begin + i);
        float dot = 0;
        for (int d = lane; d < w.score; d += 32) dot += shared.mean[d] * key_of_ring(row, d);
        dot = score_bounded(warp_sum(dot) * factor);
        if (lane == 0) shared.scores[i] = h == 0 ? dot : fmaxf(shared.scores[i], dot);
      }
    }
    __syncthreads();
    const GroupWeights softmax = group_weights(shared.scores, w.group);
    for (int i = threadIdx.x; i < w.group; i += kThreads) {
      shared.weights[i] = expf(shared.scores[i] - softmax.top) / softmax.sum;
    }
    __syncthreads();
    const int width = w.semantic + w.positional;
    for (int c = threadIdx.x; c < width; c += kThreads) {
      const bool semantic = c < w.semantic;
      shared.made[c] = pooled(semantic ? settings.semantic_pool : settings.positional_pool,
                              semantic, begin, softmax.best, semantic ? c : c - w.semantic);
    }
    __syncthreads();

    float own = -INFINITY;
    if (settings.mass == Mass::score) {
      for (int h = 0; h < rounds; ++h) {
        if (rounds > 1) mean_make(h);
        float dot = 0;
        for (int d = threadIdx.x; d < w.score; d += kThreads) {
          dot += shared.mean[d] * shared.made[w.mla ? d : w.semantic + d];
        }
        own = fmaxf(own, score_bounded(block_sum(dot, shared.sums) * factor));
      }
    }
    const float bias = settings.mass == Mass::score
                           ? mass_bias(settings.mass, w.group, softmax.sum, softmax.top, own)
                           : args.bias_all;
    __syncthreads();
    if (args.step.rotation.steps != nullptr) {  // scores and mass stay at token positions
      for (int pair = threadIdx.x; pair < args.step.rotation.pairs; pair += kThreads) {
        const int2 channel = pair_channels(args.step.rotation, pair);
        const float2 kept = pooled_pair(j, begin, softmax.best, pair);
        shared.made[w.semantic + channel.x] = kept.x;
        shared.made[w.semantic + channel.y] = kept.y;
      }
      __syncthreads();
    }
    for (int c = threadIdx.x; c < width; c += kThreads) {
      shared.made[c] = __bfloat162float(__float2bfloat16(shared.made[c]));
    }
    __syncthreads();

    const std::int64_t row = pool_row(j);
    const GroupPool& pool = args.step.pool;
    const bool quantised = pool.type != GroupType::bf16;
    if (w.mla) {
      for (int s = 0; s < w.scales; ++s) {
        const int first = s * kScaleBlock;
        const int last = min(first + kScaleBlock, w.semantic);
        part_store(quantised, first, last, pool.semantic, row * w.semantic + first,
                   pool.semantic_scale + row * w.scales + s, write);
      }
      part_store(false, w.semantic, width, pool.positional, row * w.positional, nullptr, write);
    } else {
      part_store(quantised, 0, w.semantic, pool.semantic, row * w.semantic,
                 pool.semantic_scale + row, write);
      part_store(quantised, w.semantic, width, pool.positional, row * w.positional,
                 pool.positional_scale + row, write);
    }
    if (write && pool.bias != nullptr && threadIdx.x == 0) pool.bias[row] = bias;
    __syncthreads();
    return bias;
  }

  /// Columns [first, last) of the representative to element `to` on of `data`, which share a scale.
  __device__ void part_store(bool quantised, int first, int last, void* data, std::int64_t to,
                             float* scale_to, bool write) const {
    float scale = 0;
    float factor = 0;
    if (quantised) {
      unsigned bits = 0;
      for (int c = first + static_cast<int>(threadIdx.x); c < last; c += kThreads) {
        bits = max(bits, magnitude_bits(shared.made[c]));
      }
      const float largest = __uint_as_float(block_max(bits, shared.sums));
      scale = largest / quantised_largest(args.step.pool.type);
      factor = quantising_factor(quantised_largest(args.step.pool.type), largest);
      if (write && threadIdx.x == 0) *scale_to = scale;
    }
    for (int c = first + static_cast<int>(threadIdx.x); c < last; c += kThreads) {
      const std::int64_t element = to + (c - first);
      if (!quantised) {
        if (write) static_cast<bf16*>(data)[element] = __float2bfloat16(shared.made[c]);
        continue;
      }
      const std::uint8_t bits = quantise(args.step.pool.type, shared.made[c], factor);
      if (write) static_cast<std::uint8_t*>(data)[element] = bits;
      shared.made[c] = dequantised(bits, scale);
    }
  }

  /// The new token into its row of the ring, its query into the ring of summaries.
  __device__ void token_store() const {
    const std::int64_t from = static_cast<std::int64_t>(session) * args.kv_heads + kv;
    const std::int64_t to = ring_row(at.n - 1);
    for (int d = threadIdx.x; d < w.semantic; d += kThreads) {
      view.semantic[to * w.semantic + d] = args.step.semantic[from * w.semantic + d];
    }
    for (int d = threadIdx.x; d < w.positional; d += kThreads) {
      view.positional[to * w.positional + d] = args.step.positional[from * w.positional + d];
    }
    if (args.layout.method != MethodKind::lca) return;
    const int row = (at.n - 1) % static_cast<int>(args.layout.summary_queries);
    for (int h = 0; h < (heads_apart() ? args.sharing : 1); ++h) {
      for (int d = threadIdx.x; d < w.score; d += kThreads) {
        view.summary[summary_at(row, h) + d] = summary_value(h, d);
      }
    }
  }
};

}  // namespace lca::cuda::decoding::generic
