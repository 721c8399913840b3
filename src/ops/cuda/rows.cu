// The operators between products. All are bound by memory: a row is read and written once.
//
// DeepSeek-V2-Lite, a chunk of 16,384 rows: norm 134 MB read, 67 MB written (48 µs at 4.2 TB/s);
// placing queries and entries 239 MB read, 120 MB written (85 µs); SwiGLU of the dense layer
// 717 MB + 359 MB (256 µs). One block takes one row, or a part of it; sums of a row are added in
// shared memory. In a decode step of few rows each launch takes about 2 µs whatever it does.
#include <lca/error.h>

#include <algorithm>
#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"
#include "ops/cuda/rows.h"

namespace lca::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kPlaceThreads = 128;
constexpr int kPlaceChannels = 1024;  // of a block of rows_place

/// Launches may begin while the kernel ahead ends: every kernel here starts with grid_wait.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, const Queue& queue, Args... args) {
  cudaLaunchAttribute attribute;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = queue;
  config.attrs = &attribute;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "starting a kernel on rows");
}

unsigned grid_of(std::int64_t blocks) {
  if (blocks > 0x7fffffff) throw Error(ErrorKind::bad_input, "too many rows for one call");
  return static_cast<unsigned>(blocks);
}

bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// The sum over all threads of a block, in every thread.
template <int kThreads>
__device__ float block_sum(float x) {
  __shared__ float parts[kThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += parts[i];
  return sum;
}

__device__ __forceinline__ std::int64_t row_of(const std::int32_t* map, std::int64_t row,
                                               std::int64_t first = 0) {
  return map == nullptr ? first + row : map[row];
}

// --- embedding and norm ------------------------------------------------------------------------

__global__ void __launch_bounds__(kRowThreads)
    embed_kernel(const bf16* table, const std::int32_t* tokens, std::int64_t width, float factor,
                 float* out) {
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const bf16* const from = table + std::int64_t{tokens[row]} * width;
  for (std::int64_t i = threadIdx.x; i < width; i += kRowThreads) {
    out[row * width + i] = factor * __bfloat162float(from[i]);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kRowThreads) norm_kernel(RowsNorm job) {
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const float* const x = job.x + row_of(job.from, row) * job.x_stride;
  bf16* const out = job.out + row * job.width;
  float sum = 0;
  if constexpr (kWide) {
    const auto* const x4 = reinterpret_cast<const float4*>(x);
    for (int i = threadIdx.x; i < job.width / 4; i += kRowThreads) {
      const float4 v = x4[i];
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < job.width; i += kRowThreads) {
      const float v = x[i] + (job.bias == nullptr ? 0.0f : job.bias[i]);
      sum += v * v;
    }
  }
  const float mean = block_sum<kRowThreads>(sum) / static_cast<float>(job.width);
  const float scale = job.factor / sqrtf(mean + static_cast<float>(job.eps));
  if constexpr (kWide) {
    const auto* const x4 = reinterpret_cast<const float4*>(x);
    const auto* const w4 = reinterpret_cast<const float4*>(job.weight);
    auto* const out4 = reinterpret_cast<uint2*>(out);
    for (int i = threadIdx.x; i < job.width / 4; i += kRowThreads) {
      const float4 v = x4[i];
      const float4 w = w4[i];
      out4[i] = {pack_bf16(v.x * scale * w.x, v.y * scale * w.y),
                 pack_bf16(v.z * scale * w.z, v.w * scale * w.w)};
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < job.width; i += kRowThreads) {
      const float v = x[i] + (job.bias == nullptr ? 0.0f : job.bias[i]);
      out[i] = __float2bfloat16_rn(v * scale * job.weight[i]);
    }
  }
}

// --- RoPE and placing --------------------------------------------------------------------------

__global__ void turns_kernel(RopeTurns job) {
  grid_wait();
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= job.rows * job.pairs) return;
  const std::int64_t row = index / job.pairs;
  const std::int64_t pair = index % job.pairs;
  const std::int64_t table = job.tables == nullptr ? 0 : job.tables[row];
  const std::uint64_t part =
      job.steps[table * job.pairs + pair] * static_cast<std::uint64_t>(job.positions[row]);
  float sine, cosine;
  sincospif(__int2float_rn(static_cast<int>(part >> 32)) * 0x1p-31f, &sine, &cosine);
  job.turns[index] = {cosine * job.factor, sine * job.factor};
}

struct PlaceJob {
  RowsPlace rows;
  PlacedPart parts[kPlacedParts];
  int heads_each[kPlacedParts];       // heads of one block
  int block_begin[kPlacedParts + 1];  // of blockIdx.y
};

/// One row of a part that is normalised.
__device__ void place_norm(const PlacedPart& part, std::int64_t source, std::int64_t row) {
  const float* const x = part.from + source * part.stride;
  const auto value = [&](int i) { return x[i] + (part.bias == nullptr ? 0.0f : part.bias[i]); };
  float sum = 0;
  for (int i = threadIdx.x; i < part.width; i += kPlaceThreads) sum += value(i) * value(i);
  const float mean = block_sum<kPlaceThreads>(sum) / static_cast<float>(part.width);
  const float scale = 1 / sqrtf(mean + static_cast<float>(part.eps));
  bf16* const out = part.out + row_of(part.to, row, part.first_to) * part.width;
  for (int i = threadIdx.x; i < part.width; i += kPlaceThreads) {
    out[i] = __float2bfloat16_rn(value(i) * scale * part.norm[i]);
  }
}

/// `kAtOnce` neighbouring channels or pairs a thread.
template <int kAtOnce>
__device__ void place_heads(const RowsPlace& rows, const PlacedPart& part, std::int64_t source,
                            std::int64_t row, int first_head, int end_head) {
  const std::int64_t target = row_of(part.to, row, part.first_to);
  const int turned = part.width - part.plain;
  const int pairs = part.rotated ? rows.pairs : 0;
  const int rest = turned - 2 * pairs;
  const RopeTurn* const turns = rows.turns + source * rows.pairs;
  // Of each head: channels without rotation, pairs, channels beyond them.
  const int units = (part.plain + pairs + rest) / kAtOnce;
  for (int index = threadIdx.x; index < units * (end_head - first_head); index += kPlaceThreads) {
    const int head = first_head + index / units;
    int unit = index % units * kAtOnce;
    const std::int64_t at = std::int64_t{head} * part.width;
    const float* const from = part.from + source * part.stride + at;
    const float* const bias = part.bias == nullptr ? nullptr : part.bias + at;
    bf16* const out = part.out + (target * part.heads + head) * turned;
    const auto value = [&](int channel) {
      return from[channel] + (bias == nullptr ? 0.0f : bias[channel]);
    };
    if (unit < part.plain) {
      bf16* const to = part.plain_out + (target * part.heads + head) * part.plain + unit;
      if constexpr (kAtOnce == 2) {
        *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(value(unit), value(unit + 1));
      } else {
        *to = __float2bfloat16_rn(value(unit));
      }
      continue;
    }
    unit -= part.plain;
    if (unit >= pairs) {
      const int channel = unit - pairs + 2 * pairs;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        out[channel + i] = __float2bfloat16_rn(value(part.plain + channel + i));
      }
      continue;
    }
    float first[kAtOnce], second[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool halves = rows.layout == RopeLayout::halves;
      const float x = value(part.plain + (halves ? unit + i : 2 * (unit + i)));
      const float y = value(part.plain + (halves ? unit + i + pairs : 2 * (unit + i) + 1));
      const RopeTurn turn = turns[unit + i];
      first[i] = x * turn.cosine - y * turn.sine;
      second[i] = y * turn.cosine + x * turn.sine;
    }
    if (rows.layout == RopeLayout::halves) {
      if constexpr (kAtOnce == 2) {
        *reinterpret_cast<std::uint32_t*>(out + unit) = pack_bf16(first[0], first[1]);
        *reinterpret_cast<std::uint32_t*>(out + unit + pairs) = pack_bf16(second[0], second[1]);
      } else {
        out[unit] = __float2bfloat16_rn(first[0]);
        out[unit + pairs] = __float2bfloat16_rn(second[0]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if constexpr (kAtOnce == 2) {
          *reinterpret_cast<std::uint32_t*>(out + 2 * (unit + i)) = pack_bf16(first[i], second[i]);
        } else {
          out[2 * (unit + i)] = __float2bfloat16_rn(first[i]);
          out[2 * (unit + i) + 1] = __float2bfloat16_rn(second[i]);
        }
      }
    }
  }
}

template <int kAtOnce>
__global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const __grid_constant__ PlaceJob job) {
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const int block = static_cast<int>(blockIdx.y);
  int index = 0;
  while (index + 1 < kPlacedParts && block >= job.block_begin[index + 1]) ++index;
  const PlacedPart& part = job.parts[index];
  const std::int64_t source = row_of(job.rows.source, row, job.rows.first);
  if (part.norm != nullptr) {
    place_norm(part, source, row);
    return;
  }
  const int first = (block - job.block_begin[index]) * job.heads_each[index];
  place_heads<kAtOnce>(job.rows, part, source, row, first,
                       min(first + job.heads_each[index], part.heads));
}

template <typename Word>
__global__ void __launch_bounds__(kRowThreads)
    move_kernel(const Word* x, const std::int32_t* from, std::int64_t width, Word* out,
                const std::int32_t* to) {
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const Word* const source = x + row_of(from, row) * width;
  Word* const target = out + row_of(to, row) * width;
  for (std::int64_t i = threadIdx.x; i < width; i += kRowThreads) target[i] = source[i];
}

constexpr int kTurnTile = 32;

__global__ void turn_kernel(const bf16* x, std::int64_t rows, std::int64_t columns, bf16* out) {
  __shared__ bf16 tile[kTurnTile][kTurnTile + 1];
  grid_wait();
  const std::int64_t matrix = blockIdx.z * rows * columns;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kTurnTile;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * kTurnTile;
  const int lane = threadIdx.x % kTurnTile;
  for (int i = threadIdx.x / kTurnTile; i < kTurnTile; i += kRowThreads / kTurnTile) {
    if (first_row + i < rows && first_column + lane < columns) {
      tile[i][lane] = x[matrix + (first_row + i) * columns + first_column + lane];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x / kTurnTile; i < kTurnTile; i += kRowThreads / kTurnTile) {
    if (first_column + i < columns && first_row + lane < rows) {
      out[matrix + (first_column + i) * rows + first_row + lane] = tile[lane][i];
    }
  }
}

// --- feed-forward ------------------------------------------------------------------------------

__device__ __forceinline__ float swiglu_of(float gate, float up) {
  return gate / (1 + __expf(fminf(-gate, 88.0f))) * up;
}

template <bool kWide>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_kernel(const float* x, const float* bias, std::int64_t rows, std::int64_t width,
                  bf16* out) {
  grid_wait();
  const std::int64_t index = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if constexpr (kWide) {
    const std::int64_t each = width / 4;
    if (index >= rows * each) return;
    const std::int64_t row = index / each;
    const std::int64_t at = index % each * 4;
    const float4 gate = *reinterpret_cast<const float4*>(x + row * 2 * width + at);
    const float4 up = *reinterpret_cast<const float4*>(x + row * 2 * width + width + at);
    *reinterpret_cast<uint2*>(out + row * width + at) = {
        pack_bf16(swiglu_of(gate.x, up.x), swiglu_of(gate.y, up.y)),
        pack_bf16(swiglu_of(gate.z, up.z), swiglu_of(gate.w, up.w))};
  } else {
    if (index >= rows * width) return;
    const std::int64_t row = index / width;
    const std::int64_t at = index % width;
    float gate = x[row * 2 * width + at];
    float up = x[row * 2 * width + width + at];
    if (bias != nullptr) {
      gate += bias[at];
      up += bias[width + at];
    }
    out[row * width + at] = __float2bfloat16_rn(swiglu_of(gate, up));
  }
}

__global__ void add_bias_kernel(const float* bias, float factor, std::int64_t rows,
                                std::int64_t width, float* x) {
  grid_wait();
  const std::int64_t index = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (index < rows * width) x[index] += factor * bias[index % width];
}

// --- the largest of a row ----------------------------------------------------------------------

/// Larger for larger values, and for lower indices of equal ones; NaN is above all.
constexpr std::uint64_t kNanKey = ~std::uint64_t{0};
__device__ __forceinline__ std::uint64_t argmax_key(float value, std::uint32_t index) {
  value += 0.0f;  // −0 equals 0
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (isnan(value)) return kNanKey;
  return std::uint64_t{order} << 32 | (0xffffffffu - index);
}

__device__ std::uint64_t block_most(std::uint64_t key) {
  __shared__ unsigned long long most[kRowThreads / 32];
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(0xffffffffu, key, mask);
    key = key > other ? key : other;
  }
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = key;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRowThreads / 32; ++i) {
    if (most[i] > key) key = most[i];
  }
  return key;
}

__global__ void __launch_bounds__(kRowThreads)
    argmax_parts_kernel(const float* x, std::int64_t width, std::uint64_t* space) {
  grid_wait();
  const float* const row = x + blockIdx.y * width;
  std::uint64_t key = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x; i < width;
       i += kArgmaxParts * kRowThreads) {
    const std::uint64_t other = argmax_key(row[i], static_cast<std::uint32_t>(i));
    key = key > other ? key : other;
  }
  key = block_most(key);
  if (threadIdx.x == 0) space[blockIdx.y * kArgmaxParts + blockIdx.x] = key;
}

__global__ void argmax_kernel(const std::uint64_t* space, std::int64_t rows, std::int32_t* out) {
  grid_wait();
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (row >= rows) return;
  std::uint64_t key = 0;
  for (int i = 0; i < kArgmaxParts; ++i) {
    const std::uint64_t other = space[row * kArgmaxParts + i];
    key = key > other ? key : other;
  }
  out[row] = key == kNanKey
                 ? -1
                 : static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(key));
}

}  // namespace

void rows_embed(const bf16* table, const std::int32_t* tokens, std::int64_t rows,
                std::int64_t width, float factor, float* out, const Queue& queue) {
  if (rows == 0) return;
  launch(embed_kernel, grid_of(rows), kRowThreads, queue, table, tokens, width, factor, out);
}

void rows_norm(const RowsNorm& job, const Queue& queue) {
  if (job.rows == 0) return;
  const bool wide = job.bias == nullptr && job.width % 4 == 0 && job.x_stride % 4 == 0 &&
                    aligned(job.x, 16) && aligned(job.weight, 16) && aligned(job.out, 8);
  launch(wide ? norm_kernel<true> : norm_kernel<false>, grid_of(job.rows), kRowThreads, queue, job);
}

void rope_turns(const RopeTurns& job, const Queue& queue) {
  const std::int64_t count = job.rows * job.pairs;
  if (count == 0) return;
  launch(turns_kernel, grid_of((count + 127) / 128), 128, queue, job);
}

void rows_place(const RowsPlace& job, std::span<const PlacedPart> parts, const Queue& queue) {
  if (job.rows == 0 || parts.empty()) return;
  if (parts.size() > kPlacedParts) throw Error(ErrorKind::internal, "too many parts of a row");
  PlaceJob call;
  call.rows = job;
  int blocks = 0;
  bool wide = true;
  for (std::size_t i = 0; i < kPlacedParts; ++i) {
    call.block_begin[i] = blocks;
    call.heads_each[i] = 1;
    if (i >= parts.size()) continue;
    const PlacedPart& part = parts[i];
    call.parts[i] = part;
    if (part.norm != nullptr) {
      ++blocks;
      continue;
    }
    const int pairs = part.rotated ? job.pairs : 0;
    call.heads_each[i] = std::max(1, kPlaceChannels / part.width);
    blocks += (part.heads + call.heads_each[i] - 1) / call.heads_each[i];
    const int turned = part.width - part.plain;
    wide = wide && part.plain % 2 == 0 && pairs % 2 == 0 && turned % 2 == 0 &&
           aligned(part.out, 4) && aligned(part.plain_out, 4);
  }
  call.block_begin[kPlacedParts] = blocks;
  // Parts that are not there begin where nothing is left.
  for (std::size_t i = parts.size(); i < kPlacedParts; ++i) call.block_begin[i] = blocks;
  const dim3 grid(grid_of(job.rows), static_cast<unsigned>(blocks));
  launch(wide ? place_kernel<2> : place_kernel<1>, grid, kPlaceThreads, queue, call);
}

void rows_move(const bf16* x, const std::int32_t* from, std::int64_t rows, std::int64_t width,
               bf16* out, const std::int32_t* to, const Queue& queue) {
  if (rows == 0) return;
  if (width % 8 == 0 && aligned(x, 16) && aligned(out, 16)) {
    launch(move_kernel<uint4>, grid_of(rows), kRowThreads, queue, reinterpret_cast<const uint4*>(x),
           from, width / 8, reinterpret_cast<uint4*>(out), to);
  } else {
    launch(move_kernel<bf16>, grid_of(rows), kRowThreads, queue, x, from, width, out, to);
  }
}

void matrices_turn(const bf16* x, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                   bf16* out, const Queue& queue) {
  if (batch == 0 || rows == 0 || columns == 0) return;
  const auto tiles = [](std::int64_t count) {
    return grid_of((count + kTurnTile - 1) / kTurnTile);
  };
  launch(turn_kernel, dim3(tiles(columns), tiles(rows), grid_of(batch)), kRowThreads, queue, x,
         rows, columns, out);
}

void rows_swiglu(const float* x, const float* bias, std::int64_t rows, std::int64_t width,
                 bf16* out, const Queue& queue) {
  if (rows == 0) return;
  const bool wide = bias == nullptr && width % 4 == 0 && aligned(x, 16) && aligned(out, 8);
  const std::int64_t threads = rows * width / (wide ? 4 : 1);
  const unsigned grid = grid_of((threads + kRowThreads - 1) / kRowThreads);
  launch(wide ? swiglu_kernel<true> : swiglu_kernel<false>, grid, kRowThreads, queue, x, bias, rows,
         width, out);
}

void rows_add_bias(const float* bias, float factor, std::int64_t rows, std::int64_t width, float* x,
                   const Queue& queue) {
  if (rows == 0) return;
  launch(add_bias_kernel, grid_of((rows * width + kRowThreads - 1) / kRowThreads), kRowThreads,
         queue, bias, factor, rows, width, x);
}

void rows_argmax(const float* x, std::int64_t rows, std::int64_t width, std::uint64_t* space,
                 std::int32_t* out, const Queue& queue) {
  if (rows == 0) return;
  if (rows > 65535) throw Error(ErrorKind::bad_input, "the largest of more than 65535 rows");
  const dim3 grid(kArgmaxParts, static_cast<unsigned>(rows));
  launch(argmax_parts_kernel, grid, kRowThreads, queue, x, width, space);
  launch(argmax_kernel, grid_of((rows + kRowThreads - 1) / kRowThreads), kRowThreads, queue, space,
         rows, out);
}

}  // namespace lca::cuda
