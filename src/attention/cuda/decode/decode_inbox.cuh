#pragma once
/// From the results of a job's blocks to its output on Hopper, where what counts is the number of
/// trips between the last product and the last store:
///   1. each block of a cluster owns an equal part of the output's columns; the others send it
///      theirs as messages into its inbox (st.async), which signal its barrier. No block waits
///      for another to finish, none fetches.
///   2. the owner adds them up. With one cluster a job that is the output; else
///   3. it leaves a partial result in memory and signals a counter, and the last of the blocks with
///      the same columns adds those up, all loads at once.
///
/// An inbox holds, for every sender, columns × 16 heads of floats, heads together. Two columns are
/// 128 bytes, whose 16-byte chunks are permuted by column, so that readers of neighbouring columns
/// never share a bank.

#include "attention/cuda/decode/decode_reduce.cuh"

namespace lca::cuda::decoding {

inline constexpr int kInboxHeads = 16;

template <int kColumns>
struct Inbox {
  alignas(128) float values[kColumns * kInboxHeads];  // [sender][columns of this block][heads]
  float2 stats[kMostClusterBlocks][kInboxHeads];      // [sender]: maximum and sum
  float4 weights[kMostClusterBlocks][kInboxHeads / 4];
  float factors[kInboxHeads];
  int last;
};

/// __syncthreads for warps whose lanes may have diverged: the instruction needs them together.
__device__ inline void block_sync() {
  __syncwarp();
  __syncthreads();
}

/// Bytes that one sender's values and stats are.
__device__ inline int message_bytes(int columns) {
  return columns * kInboxHeads * 4 + kInboxHeads * 8;
}

/// Where head `head` of column `column` lies, in floats.
__device__ inline int inbox_offset(int column, int head) {
  const int chunk = ((column & 1) * 4 + head / 4) ^ (column / 2 & 7);
  return column / 2 * 32 + chunk * 4 + (head & 3);
}

/// A place in the shared memory of block `rank` of the cluster: where `local` is in this block.
/// `barrier` counts there what is sent. A block without a cluster writes its own.
class Mailbox {
 public:
  __device__ Mailbox(void* local, const void* barrier, int rank, int cluster)
      : place_(shared_address(local)), barrier_(shared_address(barrier)), remote_(cluster > 1) {
    if (!remote_) return;
    place_ = peer_address(place_, rank);
    barrier_ = peer_address(barrier_, rank);
  }

  /// Two floats to places `at` and `at` + 1.
  __device__ void send(int at, float x, float y) const {
    const std::uint32_t to = place_ + 4 * at;
    if (remote_) {
      peer_send(to, barrier_, x, y);
    } else {
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(x), "f"(y) : "memory");
    }
  }

 private:
  std::uint32_t place_, barrier_;
  bool remote_;
};

/// Waits until all messages are there, once.
__device__ inline void messages_wait(const void* barrier, int cluster) {
  if (cluster == 1) {
    block_sync();
    return;
  }
  peer_wait(shared_address(barrier));
}

/// What `count` softmaxes weigh in their sum, for all heads: load(k, head) gives maximum and sum of
/// the k-th (and may be asked twice), store(k, head, w) takes its weight. Threads 0 … 255 do it, 16
/// a head. Thread 16·head returns the sum's maximum and sum.
template <typename Load, typename Store>
__device__ float2 weights_make(int count, const Load& load, const Store& store) {
  const int head = static_cast<int>(threadIdx.x) / 16;
  if (head >= kInboxHeads) return {};
  const int first = threadIdx.x & 15;
  float2 stat{-INFINITY, 0.f};
  if (first < count) stat = load(first, head);
  float top = stat.x;
#pragma unroll 1
  for (int k = first + 16; k < count; k += 16) top = fmaxf(top, load(k, head).x);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  float sum = 0;
#pragma unroll 1
  for (int k = first; k < count; k += 16) {
    if (k > first) stat = load(k, head);
    const float weight = stat.x == -INFINITY ? 0.f : exp2_fast(stat.x - top);
    store(k, head, weight);
    sum += weight * stat.y;
  }
  __syncwarp();
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return {top, sum};
}

/// What all columns of the output need of the last weights_make: one over each head's sum. The
/// block with the first columns writes the log-sum-exp.
__device__ inline void heads_end(const Args& args, int session, const Heads& heads, bool first,
                                 const float2& stat, float* factors) {
  const int head = static_cast<int>(threadIdx.x) / 16;
  if (head >= heads.count || threadIdx.x % 16 != 0) return;
  factors[head] = 1 / stat.y;
  if (first && args.step.lse != nullptr) {
    args.step.lse[static_cast<std::int64_t>(session) * args.heads + heads.first + head] =
        (stat.x + log2f(stat.y)) * kLn2;
  }
}

__device__ inline void add_weighted(float4& sum, const float4& weight, const float4& value) {
  sum.x = fmaf(weight.x, value.x, sum.x);
  sum.y = fmaf(weight.y, value.y, sum.y);
  sum.z = fmaf(weight.z, value.z, sum.z);
  sum.w = fmaf(weight.w, value.w, sum.w);
}

/// Four heads of one column of the output.
template <typename R>
__device__ void column_store(const Args& args, int session, const Heads& heads, int quad,
                             int column, const float4& value, const float* factors) {
  const float values[4] = {value.x, value.y, value.z, value.w};
  bf16* to =
      args.step.out +
      (static_cast<std::int64_t>(session) * args.heads + heads.first + quad * 4) * R::kValue +
      column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = quad * 4 + i;
    if (row < heads.count) to[i * R::kValue] = __float2bfloat16(values[i] * factors[row]);
  }
}

/// The last step: partials of all clusters, kItems × kBatch loads of a thread under way at a time.
/// `scratch` is shared memory for 16 floats a cluster.
template <typename R, int kItems, int kBatch>
__device__ void partials_add(const Args& args, int session, const Heads& heads, int partials,
                             const float* mine, std::int64_t step, int width, int first_column,
                             float* factors, float* scratch) {
  const int tid = static_cast<int>(threadIdx.x);
  const int quads = width * (kInboxHeads / 4);
  const int shift = __ffs(width) - 1;
  const auto* const weights = reinterpret_cast<const float4*>(scratch);
#pragma unroll 1
  for (int begin = 0; begin < quads; begin += kItems * R::kThreads) {
    float4 sum[kItems] = {};
    const auto* from = reinterpret_cast<const float4*>(mine) + begin + tid;
#pragma unroll 1
    for (int k = 0; k < partials; k += kBatch) {
      float4 value[kItems][kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          value[i][b] = {0.f, 0.f, 0.f, 0.f};
          if (k + b < partials && begin + tid + i * R::kThreads < quads) {
            value[i][b] = __ldcg(from + i * R::kThreads);
          }
        }
        from += step / 4;
      }
      if (begin == 0 && k == 0) {  // under the first loads
        const float2 stat = weights_make(
            partials,
            [&](int n, int head) {
              return __ldcg(reinterpret_cast<const float2*>(mine + n * step + width * kInboxHeads) +
                            head);
            },
            [&](int n, int head, float weight) { scratch[n * kInboxHeads + head] = weight; });
        heads_end(args, session, heads, first_column == 0, stat, factors);
        block_sync();
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int which = min(k + b, partials - 1);  // beyond them values are zeros
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int quad = begin + tid + i * R::kThreads >> shift & kInboxHeads / 4 - 1;
          add_weighted(sum[i], weights[which * (kInboxHeads / 4) + quad], value[i][b]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = begin + tid + i * R::kThreads;
      if (item >= quads) break;
      column_store<R>(args, session, heads, item >> shift, first_column + (item & width - 1),
                      sum[i], factors);
    }
  }
}

/// All threads of the block, after messages_wait. `active` blocks of the job have results;
/// `scratch` is free shared memory.
template <typename R>
__device__ void inbox_reduce(const Args& args, int active, int session, const Heads& heads,
                             Inbox<R::kValue>& inbox, float* scratch) {
  const int tid = static_cast<int>(threadIdx.x);
  const int cluster = args.cluster;
  const int rank = static_cast<int>(blockIdx.x);
  const int block = static_cast<int>(blockIdx.z);  // of clusters
  const int senders = min(cluster, active - block * cluster);
  const int partials = (active + cluster - 1) / cluster;
  const int width = R::kValue / cluster;  // columns of this block, a power of two
  const int shift = __ffs(width) - 1;
  const std::int64_t partial_floats = kInboxHeads * (width + 2);
  float* const mine =
      args.partials +
      (static_cast<std::int64_t>(heads.job) * (args.blocks / cluster) * cluster + rank) *
          partial_floats;
  const std::int64_t step = cluster * partial_floats;
  float* const to = mine + block * step;

  const float2 stat = weights_make(
      senders, [&](int k, int head) { return inbox.stats[k][head]; },
      [&](int k, int head, float weight) {
        reinterpret_cast<float*>(inbox.weights[k])[head] = weight;
      });
  if (partials == 1) {
    heads_end(args, session, heads, rank == 0, stat, inbox.factors);
  } else if (tid % 16 == 0 && tid / 16 < kInboxHeads) {
    __stcg(reinterpret_cast<float2*>(to + width * kInboxHeads) + tid / 16, stat);
  }
  block_sync();
#pragma unroll 1
  for (int item = tid; item < width * (kInboxHeads / 4); item += R::kThreads) {
    const int quad = item >> shift;
    const int column = item & width - 1;
    float4 sum{0.f, 0.f, 0.f, 0.f};
    const float* from = inbox.values + inbox_offset(column, quad * 4);
#pragma unroll
    for (int k = 0; k < kMostClusterBlocks; ++k) {
      if (k >= senders) break;
      add_weighted(sum, inbox.weights[k][quad],
                   *reinterpret_cast<const float4*>(from + k * width * kInboxHeads));
    }
    if (partials == 1) {
      column_store<R>(args, session, heads, quad, rank * width + column, sum, inbox.factors);
    } else {
      __stcg(reinterpret_cast<float4*>(to) + item, sum);
    }
  }
  if (partials == 1) return;
  block_sync();
  if (tid == 0) {
    int* const count = args.job_counts + static_cast<std::int64_t>(heads.job) * cluster + rank;
    const bool last = arrival_count(count) == partials - 1;
    if (last) *count = 0;
    inbox.last = last ? 1 : 0;
  }
  block_sync();
  if (inbox.last == 0) return;
  if (width * (kInboxHeads / 4) <= R::kThreads) {
    partials_add<R, 1, 12>(args, session, heads, partials, mine, step, width, rank * width,
                           inbox.factors, scratch);
  } else {
    partials_add<R, 3, 4>(args, session, heads, partials, mine, step, width, rank * width,
                          inbox.factors, scratch);
  }
}

}  // namespace lca::cuda::decoding
