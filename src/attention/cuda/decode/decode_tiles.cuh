#pragma once
/// Tiles of cache entries in shared memory: how a row lies there, how rows get there, and the
/// instructions that read them as fragments of m16n8k16 products.

#include "attention/cuda/decode/decode_common.cuh"

namespace lca::cuda::decoding {

inline constexpr int kMostStages = 6;

/// An entry as one row of bf16: first part, second part. MLA: latent, RoPE key; the score takes
/// both, the value is the latent. GQA: key, value.
template <Form kForm_, int kSemantic_, int kPositional_, int kHeadTiles_, int kWarps_>
struct Row {
  static constexpr int kWarps = kWarps_;  ///< of a block
  static constexpr int kThreads = 32 * kWarps;
  static constexpr bool kMla = kForm_ == Form::mla;
  static constexpr int kSemantic = kSemantic_;
  static constexpr int kPositional = kPositional_;
  static constexpr int kFirst = kMla ? kSemantic : kPositional;
  static constexpr int kSecond = kMla ? kPositional : kSemantic;
  static constexpr int kWidth = kFirst + kSecond;
  static constexpr int kScore = kMla ? kWidth : kFirst;  ///< columns [0, kScore) are the key
  static constexpr int kValue = kSemantic;
  static constexpr int kValueAt = kMla ? 0 : kFirst;  ///< first column of the value
  static constexpr int kHeadTiles = kHeadTiles_;      ///< tiles of 16 query heads in a block
  static constexpr int kRows = 16 * kHeadTiles;
  /// Rows of a leaving group that are condensed at a time; their scratch lies beside the queries.
  static constexpr int kGroupRows = kRows <= 16 ? 16 : 4;

  /// ldmatrix reads 16 bytes of 8 rows at once: they must lie in different banks. Rows of whole
  /// 128 bytes permute their 16-byte chunks by row; others have an odd number of chunks.
  static constexpr int kChunks = kWidth / 8;
  static constexpr bool kSwizzle = kChunks % 8 == 0;
  static constexpr int kStride = 16 * (kSwizzle ? kChunks : kChunks | 1);
  __device__ static int offset(int row, int chunk) {
    return row * kStride + 16 * (kSwizzle ? chunk ^ (row & 7) : chunk);
  }

  /// A quantised row as the pool has it: 8-bit values (MLA: second part bf16).
  static constexpr int kRawFirst = kFirst / 16;  ///< chunks
  static constexpr int kRawSecond = kMla ? kSecond / 8 : kSecond / 16;
  static constexpr int kRawChunks = kRawFirst + kRawSecond;
  static constexpr int kRawBytes = kRawChunks * 16;
  static constexpr int kScales = kMla ? kSemantic / kScaleBlock : 2;
  /// Which scale an even column has.
  __device__ static int scale_of(int column) {
    return kMla ? column / kScaleBlock : (column < kFirst ? 0 : 1);
  }

  static_assert(kWidth % 16 == 0 && kFirst % 16 == 0 && kSecond % 8 == 0 && kScore % 32 == 0);
  static_assert(kValue % 64 == 0, "8 blocks of a cluster share the columns");
  static_assert(!kMla || kSemantic % kScaleBlock == 0);
  static_assert(kScales <= 7, "eight threads load a row's scales and its bias");
};

/// Shared memory of a block: stages (raw rows, as they come), `work` (a quantised tile as bf16),
/// per-stage bias and scales, partial scores of both halves of the key, weights, with entry
/// positions the queries' positional parts as the window sees them, and per row of queries its
/// rescaling, maximum and sum.
template <typename R, bool kQuant, bool kEntry = false>
struct Memory {
  static constexpr int kExactTile = kQuant ? kTile / 2 : kTile;  ///< so that stages stay small
  static constexpr int kStageBytes =
      kQuant ? (kTile * R::kRawBytes > kExactTile * R::kStride ? kTile * R::kRawBytes
                                                               : kExactTile * R::kStride)
             : kTile * R::kStride;
  static constexpr int kWorkBytes = kQuant ? kTile * R::kStride : 0;
  static constexpr int kMetaFloats = kTile * (1 + (kQuant ? R::kScales : 0));
  static constexpr int kScoreBytes = 2 * R::kRows * kTile * 4;
  /// A tile whose stage (converted) or `work` (not converted) is free has its scores there.
  static constexpr bool kScoresApart = !kQuant || kStageBytes < kScoreBytes;
  static constexpr int kWeightBytes = R::kRows * kTile * 2;
  /// An odd number of chunks, so that ldmatrix finds eight rows in different banks.
  static constexpr int kNearStride = 16 * (R::kPositional / 8 | 1);
  static constexpr int kNearBytes = kEntry ? R::kRows * kNearStride : 0;

  /// Where registers are short, a block knows its place from shared memory.
  static constexpr bool kPlaceKept = R::kHeadTiles > 1 || R::kWarps > 8;
  static constexpr int kKeptBytes = kPlaceKept ? static_cast<int>(sizeof(Place)) : 0;

  static constexpr int bytes(int stages) {
    return kWorkBytes + stages * (kStageBytes + kMetaFloats * 4) +
           (kScoresApart ? kScoreBytes : 0) + kWeightBytes + kNearBytes + R::kRows * 12 +
           kKeptBytes;
  }
  /// As many stages as fit; below 2 the kernel cannot run.
  static int stages(std::size_t limit) {
    int count = 0;
    while (count < kMostStages && static_cast<std::size_t>(bytes(count + 1)) <= limit) ++count;
    return count;
  }

  /// After the last tile: result rows, then a flag.
  static constexpr int kResultStride = R::kValue + 8;
  static_assert((R::kRows * kResultStride + 4) * 4 <= kWorkBytes + 2 * kStageBytes);
};

/// Waits until at most `pending` of this thread's groups are under way.
__device__ inline void copy_wait_for(int pending) {
  switch (pending) {
    case 0:
      return copy_wait<0>();
    case 1:
      return copy_wait<1>();
    case 2:
      return copy_wait<2>();
    case 3:
      return copy_wait<3>();
    case 4:
      return copy_wait<4>();
    default:
      return copy_wait<5>();
  }
}
static_assert(kMostStages - 1 <= 5);

// --- tiles -------------------------------------------------------------------------------------

/// Consecutive entries of the list, all representatives or all exact tokens.
struct EntryTile {
  bool groups;
  int first;  ///< in the list
  int count;
  /// Rows that products read: the rest of them are zeros.
  __device__ int rows() const { return (count + 15) & ~15; }
};

/// What one block reads, cut into tiles.
template <typename R, bool kQuant>
struct Tiles {
  using Space = Memory<R, kQuant>;
  int group_end;    ///< first list index after this block's representatives
  int group_tiles;  ///< tiles of representatives
  int count;

  __device__ explicit Tiles(const Place& at) {
    group_end = max(at.first, min(at.last, at.groups));
    group_tiles = (group_end - at.first + kTile - 1) / kTile;
    count = group_tiles + (at.last - group_end + Space::kExactTile - 1) / Space::kExactTile;
  }
  __device__ EntryTile operator()(const Place& at, int index) const {
    if (index < group_tiles) {
      const int first = at.first + index * kTile;
      return {true, first, min(kTile, group_end - first)};
    }
    const int first = group_end + (index - group_tiles) * Space::kExactTile;
    return {false, first, min(Space::kExactTile, at.last - first)};
  }
};

/// Loads tiles into shared memory. Eight threads load a row, 128 bytes at a time; a thread has row
/// threadIdx.x / 8 and, with 8 warps, 32 more. Page numbers are fetched one tile ahead.
template <typename R, bool kQuant>
struct Loader {
  const Args& args;
  const SessionView& view;
  const Place& at;
  const Tiles<R, kQuant>& tiles;
  int session;
  int kv;
  const std::int32_t* pages;
  static constexpr int kRowStep = R::kThreads / 8;
  static constexpr int kPasses = kTile / kRowStep;
  int page[kPasses];

  __device__ void pages_fetch(int index) {
    if (index >= tiles.group_tiles) return;
    const int first = at.first + index * kTile + static_cast<int>(threadIdx.x) / 8;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int j = first + kRowStep * pass;
      page[pass] = j < tiles.group_end ? load_after_wait(pages + j / kPageRows) : 0;
    }
  }

  __device__ void load(int index, std::uint32_t stage, std::uint32_t meta) {
    const EntryTile tile = tiles(at, index);
    const int part = static_cast<int>(threadIdx.x) % 8;
    const int kv_heads = R::kMla ? 1 : args.kv_heads;
    const GroupPool& pool = args.step.pool;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = static_cast<int>(threadIdx.x) / 8 + kRowStep * pass;
      const int entry = tile.first + r;
      const bool real = r < tile.count;
      if (tile.groups) {
        const std::int64_t row =
            (static_cast<std::int64_t>(page[pass]) * kPageRows + entry % kPageRows) * kv_heads + kv;
        // The representative of this very step is not in its page yet.
        if (real && at.leaves && entry == at.groups - 1) continue;
        if (real && pool.bias != nullptr && part == 7) {
          copy_word(meta + 4 * r, pool.bias + row);
        }
        if constexpr (kQuant) {
          if (real) raw_row(row, r, part, stage, meta + 4 * kTile);
        } else if (r < tile.rows()) {
          const auto* semantic = static_cast<const bf16*>(pool.semantic) + row * R::kSemantic;
          const auto* positional = static_cast<const bf16*>(pool.positional) + row * R::kPositional;
          exact_row(semantic, positional, r, part, real, stage);
        }
      } else if (r < tile.rows()) {
        const bf16* semantic = args.step.semantic;
        const bf16* positional = args.step.positional;
        std::int64_t row = static_cast<std::int64_t>(session) * kv_heads + kv;
        // The newest token comes from where it was given: no load waits for the ring.
        if (real && entry != at.entries - 1) {
          semantic = view.semantic;
          positional = view.positional;
          row = static_cast<std::int64_t>(at.exact_row(entry - at.groups)) * kv_heads + kv;
        }
        exact_row(semantic + row * R::kSemantic, positional + row * R::kPositional, r, part, real,
                  stage);
      }
    }
  }

  __device__ static void exact_row(const bf16* semantic, const bf16* positional, int r, int part,
                                   bool real, std::uint32_t stage) {
    const bf16* first = R::kMla ? semantic : positional;
    const bf16* second = R::kMla ? positional : semantic;
#pragma unroll
    for (int i = 0; i < (R::kChunks + 7) / 8; ++i) {
      const int chunk = i * 8 + part;
      if (chunk >= R::kChunks) break;
      const bf16* source =
          chunk < R::kFirst / 8 ? first + chunk * 8 : second + (chunk - R::kFirst / 8) * 8;
      copy_chunk(stage + R::offset(r, chunk), source, real);
    }
  }

  __device__ void raw_row(std::int64_t row, int r, int part, std::uint32_t stage,
                          std::uint32_t scales) const {
    const GroupPool& pool = args.step.pool;
    const auto* semantic = static_cast<const std::uint8_t*>(pool.semantic) + row * R::kSemantic;
    const auto* positional = static_cast<const std::uint8_t*>(pool.positional) +
                             row * R::kPositional * (R::kMla ? 2 : 1);
    const std::uint8_t* first = R::kMla ? semantic : positional;
    const std::uint8_t* second = R::kMla ? positional : semantic;
#pragma unroll
    for (int i = 0; i < (R::kRawChunks + 7) / 8; ++i) {
      const int chunk = i * 8 + part;
      if (chunk >= R::kRawChunks) break;
      const std::uint8_t* source =
          chunk < R::kRawFirst ? first + chunk * 16 : second + (chunk - R::kRawFirst) * 16;
      copy_chunk(stage + r * R::kRawBytes + chunk * 16, source);
    }
    if (part < R::kScales) {
      const float* scale = R::kMla     ? pool.semantic_scale + row * R::kScales + part
                           : part == 0 ? pool.positional_scale + row
                                       : pool.semantic_scale + row;
      copy_word(scales + 4 * (r * R::kScales + part), scale);
    }
  }
};

/// Sixteen 8-bit values times a scale, as two chunks of bf16.
__device__ inline void chunk_dequantise(GroupType type, const uint4& raw, float scale,
                                        uint4 (&chunks)[2]) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  std::uint32_t pairs[8];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto bits = static_cast<std::uint16_t>(words[w] >> (16 * half));
      float2 value;
      if (type == GroupType::int8) {
        value = {static_cast<float>(static_cast<std::int8_t>(bits & 0xff)),
                 static_cast<float>(static_cast<std::int8_t>(bits >> 8))};
      } else {
        value = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bits, __NV_E4M3)));
      }
      pairs[2 * w + half] = pack_bf16(value.x * scale, value.y * scale);
    }
  }
  chunks[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  chunks[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
}

/// A quantised tile as bf16 rows, as every other tile lies. Row `skip` is left alone.
template <typename R>
__device__ void tile_dequantise(GroupType type, const unsigned char* stage, const float* scales,
                                const EntryTile& tile, int skip, unsigned char* work) {
  for (int i = threadIdx.x; i < tile.rows() * R::kRawChunks; i += R::kThreads) {
    const int row = i / R::kRawChunks;
    const int chunk = i % R::kRawChunks;
    if (row == skip) continue;
    const bool real = row < tile.count;
    uint4 raw = {0, 0, 0, 0};
    if (real) raw = *reinterpret_cast<const uint4*>(stage + row * R::kRawBytes + chunk * 16);
    const bool second = chunk >= R::kRawFirst;
    if (R::kMla && second) {
      const int to = R::kFirst / 8 + (chunk - R::kRawFirst);
      *reinterpret_cast<uint4*>(work + R::offset(row, to)) = raw;
      continue;
    }
    const int which = R::kMla ? chunk * 16 / kScaleBlock : (second ? 1 : 0);
    const float scale = real ? scales[row * R::kScales + which] : 0.f;
    uint4 chunks[2];
    chunk_dequantise(type, raw, scale, chunks);
    const int to = second ? R::kFirst / 8 + 2 * (chunk - R::kRawFirst) : 2 * chunk;
    *reinterpret_cast<uint4*>(work + R::offset(row, to)) = chunks[0];
    *reinterpret_cast<uint4*>(work + R::offset(row, to + 1)) = chunks[1];
  }
}

}  // namespace lca::cuda::decoding
