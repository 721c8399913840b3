// Representatives into a session's pages and back, quantised or not (mechanism §7).
//
// Shapes (DeepSeek-V2-Lite, 128K): 8128 representatives of 512 + 64 bf16: 9.4 MB read and as much
// written (fp8: 5.2 MB), 4.4 µs at 4.27 TB/s; no arithmetic to speak of. No shared memory.
//
// How data moves: a warp takes one piece: one row of a part that is stored as it is, or the values
// that share one scale (128 of a latent; a whole row of one KV head in GQA). It reads a piece once
// for its largest magnitude and, out of L1, once more to write it.
#include <lca/error.h>

#include <cstdint>

#include "attention/cuda/cache/quantised.cuh"
#include "attention/cuda/condense/condense.h"
#include "attention/cuda/condense/condense_vectors.h"

namespace lca::cuda {
namespace {

constexpr int kThreads = 128;

// The semantic or the positional part of representatives.
struct Part {
  bf16* rows;    // [count][KV][width]: read by append, written by gather
  void* pool;    // [pool rows][KV][width]
  float* scale;  // [pool rows][KV][pieces]; null where stored as it is
  GroupType type;
  int width;
  int piece;   // values in a piece
  int pieces;  // of a row of one KV head
  bool wide;   // 16 bytes at a time (bf16), or four values (quantised)
};

struct GroupsJob {
  Part semantic;
  Part positional;
  float* bias;       // [count][KV]
  float* pool_bias;  // [pool rows][KV]
  const std::int32_t* pages;
  std::int64_t first;
  std::int64_t count;
  int kv_heads;
};

// Four consecutive values, as bf16 (8 bytes) and stored (4 bytes).
__device__ void load_four(const bf16* from, float (&value)[4]) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  const float2 low = unpack_bf16(raw.x), high = unpack_bf16(raw.y);
  value[0] = low.x;
  value[1] = low.y;
  value[2] = high.x;
  value[3] = high.y;
}

// A piece of `count` values; a scale of 0 stands for a piece of zeros.
template <typename Type>
__device__ void piece_quantise(const bf16* from, void* pool, float* scale, int count, bool wide,
                               int lane) {
  auto* to = static_cast<typename Type::Stored*>(pool);
  unsigned bits = 0;
  if (wide) {
    for (int i = lane * 4; i < count; i += 128) {
      float value[4];
      load_four(from + i, value);
#pragma unroll
      for (int k = 0; k < 4; ++k) bits = max(bits, magnitude_bits(value[k]));
    }
  } else {
    for (int i = lane; i < count; i += 32) {
      bits = max(bits, magnitude_bits(__bfloat162float(from[i])));
    }
  }
  const float largest = __uint_as_float(__reduce_max_sync(~0u, bits));
  const float unit = largest / Type::kLargest;
  const float factor = quantising_factor(Type::kLargest, largest);
  const auto encode = [factor](float value) -> std::uint32_t {
    return Type::encode(value * factor);
  };
  if (wide) {
    for (int i = lane * 4; i < count; i += 128) {
      float value[4];
      load_four(from + i, value);
      *reinterpret_cast<std::uint32_t*>(to + i) = encode(value[0]) | encode(value[1]) << 8 |
                                                  encode(value[2]) << 16 | encode(value[3]) << 24;
    }
  } else {
    for (int i = lane; i < count; i += 32) {
      to[i] = static_cast<typename Type::Stored>(encode(__bfloat162float(from[i])));
    }
  }
  if (lane == 0) *scale = unit;
}

template <typename Type>
__device__ void piece_dequantise(const void* pool, float unit, bf16* to, int count, bool wide,
                                 int lane) {
  const auto* from = static_cast<const typename Type::Stored*>(pool);
  const auto decode = [unit](std::uint32_t stored) {
    return unit * Type::decode(static_cast<typename Type::Stored>(stored));
  };
  if (wide) {
    for (int i = lane * 4; i < count; i += 128) {
      const std::uint32_t four = *reinterpret_cast<const std::uint32_t*>(from + i);
      uint2 raw;
      raw.x = pack_bf16(decode(four & 255), decode(four >> 8 & 255));
      raw.y = pack_bf16(decode(four >> 16 & 255), decode(four >> 24));
      *reinterpret_cast<uint2*>(to + i) = raw;
    }
  } else {
    for (int i = lane; i < count; i += 32) to[i] = __float2bfloat16_rn(decode(from[i]));
  }
}

__device__ void piece_copy(const bf16* from, bf16* to, int count, bool wide, int lane) {
  if (wide) {
    for (int i = lane * 8; i < count; i += 256) {
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
  } else {
    for (int i = lane; i < count; i += 32) to[i] = from[i];
  }
}

template <bool kAppend>
__device__ void piece_move(const Part& part, std::int64_t row, std::int64_t pool_row, int piece,
                           int lane) {
  const int begin = piece * part.piece;
  const int count = min(part.piece, part.width - begin);
  bf16* rows = part.rows + row * part.width + begin;
  const std::int64_t at = pool_row * part.width + begin;
  if (part.type == GroupType::bf16) {
    bf16* pool = static_cast<bf16*>(part.pool) + at;
    piece_copy(kAppend ? rows : pool, kAppend ? pool : rows, count, part.wide, lane);
    return;
  }
  std::uint8_t* pool = static_cast<std::uint8_t*>(part.pool) + at;
  float* scale = part.scale + pool_row * part.pieces + piece;
  if (part.type == GroupType::fp8) {
    if constexpr (kAppend) {
      piece_quantise<Fp8>(rows, pool, scale, count, part.wide, lane);
    } else {
      piece_dequantise<Fp8>(pool, *scale, rows, count, part.wide, lane);
    }
  } else {
    if constexpr (kAppend) {
      piece_quantise<Int8>(rows, pool, scale, count, part.wide, lane);
    } else {
      piece_dequantise<Int8>(pool, *scale, rows, count, part.wide, lane);
    }
  }
}

template <bool kAppend>
__global__ __launch_bounds__(kThreads) void groups_kernel(const GroupsJob job) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int pieces = job.semantic.pieces + job.positional.pieces;
  const std::int64_t row = warp / pieces;  // representative · KV + head
  if (row >= job.count * job.kv_heads) return;
  const int piece = static_cast<int>(warp - row * pieces);
  const std::int64_t index = row / job.kv_heads;
  const int head = static_cast<int>(row - index * job.kv_heads);
  const std::int64_t j = job.first + index;
  const std::int64_t pool_row =
      (static_cast<std::int64_t>(job.pages[j / kPageRows]) * kPageRows + j % kPageRows) *
          job.kv_heads +
      head;

  if (piece < job.semantic.pieces) {
    piece_move<kAppend>(job.semantic, row, pool_row, piece, lane);
    return;
  }
  piece_move<kAppend>(job.positional, row, pool_row, piece - job.semantic.pieces, lane);
  if (piece == job.semantic.pieces && lane == 0) {
    if constexpr (kAppend) {
      if (job.pool_bias != nullptr)
        job.pool_bias[pool_row] = job.bias != nullptr ? job.bias[row] : 0;
    } else {
      if (job.bias != nullptr) {
        job.bias[row] = job.pool_bias != nullptr ? job.pool_bias[pool_row] : 0;
      }
    }
  }
}

Part part_of(GroupType type, bf16* rows, void* pool, float* scale, std::int64_t width, int piece) {
  Part part{};
  part.rows = rows;
  part.pool = pool;
  part.scale = scale;
  part.type = type;
  part.width = static_cast<int>(width);
  part.piece = piece > 0 ? piece : part.width;
  part.pieces = (part.width + part.piece - 1) / part.piece;
  part.wide =
      aligned_16(rows) && aligned_16(pool) && part.width % (type == GroupType::bf16 ? 8 : 4) == 0;
  return part;
}

GroupsJob job_of(const AttentionShape& shape, const GroupPool& pool, const std::int32_t* pages,
                 std::int64_t first, std::int64_t count, bf16* semantic, bf16* positional,
                 float* bias) {
  const bool mla = shape.form == Form::mla;
  const bool quantised = pool.type != GroupType::bf16;
  GroupsJob job{};
  job.semantic = part_of(pool.type, semantic, pool.semantic, pool.semantic_scale,
                         shape.d_semantic(), mla && quantised ? kScaleBlock : 0);
  job.positional = part_of(mla ? GroupType::bf16 : pool.type, positional, pool.positional,
                           pool.positional_scale, shape.d_positional(), 0);
  job.bias = bias;
  job.pool_bias = pool.bias;
  job.pages = pages;
  job.first = first;
  job.count = count;
  job.kv_heads = static_cast<int>(shape.kv_heads);
  return job;
}

template <bool kAppend>
void groups_launch(const GroupsJob& job, const Queue& queue) {
  constexpr int kWarps = kThreads / 32;
  const std::int64_t warps =
      job.count * job.kv_heads * (job.semantic.pieces + job.positional.pieces);
  const std::int64_t blocks = (warps + kWarps - 1) / kWarps;
  if (blocks > INT32_MAX) {
    throw Error(ErrorKind::bad_input, "moving representatives on the GPU: too many at once");
  }
  groups_kernel<kAppend><<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream>>>(job);
  check(cudaGetLastError(), kAppend ? "storing representatives" : "reading representatives");
}

}  // namespace

void groups_append(const AttentionShape& shape, const GroupPool& pool, const std::int32_t* pages,
                   std::int64_t first, std::int64_t count, const bf16* semantic,
                   const bf16* positional, const float* bias, const Queue& queue) {
  if (count <= 0) return;
  // The job serves both directions; append only reads these.
  const GroupsJob job = job_of(shape, pool, pages, first, count, const_cast<bf16*>(semantic),
                               const_cast<bf16*>(positional), const_cast<float*>(bias));
  groups_launch<true>(job, queue);
}

void groups_gather(const AttentionShape& shape, const GroupPool& pool, const std::int32_t* pages,
                   std::int64_t first, std::int64_t count, bf16* semantic, bf16* positional,
                   float* bias, const Queue& queue) {
  if (count <= 0) return;
  groups_launch<false>(job_of(shape, pool, pages, first, count, semantic, positional, bias), queue);
}

}  // namespace lca::cuda
