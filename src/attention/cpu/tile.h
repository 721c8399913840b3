#pragma once
/// One tile of prefill attention on the CPU: up to 96 queries of one head against everything they
/// see, in one pass of online softmax. `docs/cpu-kernels.md` tells the story.
///
/// Packed operands (float32; in brackets the bfloat16 form, which pairs two neighbours of the
/// contracted dimension in one 32-bit word):
///   keys    [key / 32][depth]     [32]            [depth / 2 instead of depth]
///   values  [column / 32][key]    [32]            [key / 2 instead of key]
///   queries [row / rows of a call][depth / 16][row][16], filled up with zeros
/// Keys past the last one are zero up to the next multiple of 32.
///
/// Budget of a tile at d_n + d_r = 192, d_v = 128, float32: queries 72 KiB, scores 96 KiB, outputs
/// 48 KiB, one block of keys 192 KiB and of values 128 KiB: 536 KiB, inside a 1 MiB second-level
/// cache. The inner products read one 24 KiB panel of keys, or 32 KiB of values, from the first
/// level. Operations per pair: 2·(d_n + d_r + d_v) = 640; bytes from memory per pair and tile row:
/// 4·320/96 = 13, so 48 operations a byte.

#include <lca/tensor.h>

#include <cstdint>

#include "attention/cpu/vector.h"
#include "attention/layout.h"

namespace lca::cpu {

constexpr std::int64_t kTileRows = 96;    ///< queries in a tile
constexpr std::int64_t kBlockKeys = 256;  ///< keys in one step of the online softmax
constexpr std::int64_t kPanel = 32;       ///< keys in a key panel, columns in a value panel
constexpr std::int64_t kDepth = 16;       ///< words of a packed query that lie together

constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}
constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit; }

/// 32-bit words of packed keys or values for `keys` keys of `depth`.
constexpr std::int64_t packed_key_words(std::int64_t keys, std::int64_t depth, bool bf16) {
  return round_up(keys, kPanel) * (bf16 ? ceil_div(depth, 2) : depth);
}
constexpr std::int64_t packed_value_words(std::int64_t keys, std::int64_t columns, bool bf16) {
  return round_up(columns, kPanel) * (bf16 ? round_up(keys, kPanel) / 2 : round_up(keys, kPanel));
}

/// Packed keys and values of one head: of the representatives, or of the exact tokens.
struct PackedKeys {
  const std::uint32_t* nope = nullptr;  ///< depth d_n; null where d_n = 0
  const std::uint32_t* rope = nullptr;  ///< depth d_r (GQA: the whole key)
  const std::uint32_t* values = nullptr;
  std::int64_t count = 0;
};

/// Rows that the same worker will probably touch next, to be fetched meanwhile.
struct RowsAhead {
  const char* first = nullptr;
  std::int64_t stride = 0, bytes = 0, rows = 0;
};

/// Everything a tile needs.
struct Tile {
  Layout layout;
  float scale = 1;
  bool bf16 = false;  ///< operands are packed as bfloat16 pairs
  std::int64_t d_nope = 0, d_rope = 0, d_value = 0;

  // Queries of one head: row r is token `first + r` of the sequence.
  std::int64_t rows = 0, first = 0;
  ConstTensor q_nope, q_rope;  ///< [rows,1,d], tokens a stride apart
  /// With entry positions: how queries are rotated on for representatives and sink.
  RowRotation rotation;

  PackedKeys groups;
  const float* bias = nullptr;  ///< of each representative, padded to whole panels; null: none
  PackedKeys tokens;
  std::int64_t dropped = 0;  ///< tokens after the sink that the cache no longer holds

  float* out = nullptr;  ///< row r at out + r·out_stride
  std::int64_t out_stride = 0;
  float* lse = nullptr;  ///< may be null
  std::int64_t lse_stride = 0;

  RowsAhead ahead[3];        ///< queries and outputs of a tile to come
  float* scratch = nullptr;  ///< tile_scratch_floats(...) floats of this worker
};

/// Floats of scratch memory that a tile needs; with `rotates` a second form of its queries, one
/// row, and angles.
constexpr std::int64_t tile_scratch_floats(std::int64_t d_nope, std::int64_t d_rope,
                                           std::int64_t d_value, bool rotates) {
  const std::int64_t far =
      rotates ? kTileRows * round_up(d_rope, kDepth) + 2 * round_up(d_rope, 2 * kDepth) : 0;
  return kTileRows * (round_up(d_nope, kDepth) + round_up(d_rope, kDepth) + kBlockKeys +
                      round_up(d_value, kPanel) + 3) +
         far;
}

/// Computes the tile with the best instructions of this CPU.
void tile_attend(const Tile& tile);

/// Copies rows of keys [count,depth] into key panels from panel boundary `to` on; the last panel is
/// filled up with zeros. `source` rows are contiguous, `stride` elements apart.
void pack_keys(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
               std::int64_t depth, bool bf16, std::uint32_t* to);

/// Copies rows of values [count,columns] to keys first … (a multiple of 32) of value panels laid
/// out for `capacity` keys (another); keys up to the next multiple of 32 become zero.
void pack_values(const void* source, DType dtype, std::int64_t stride, std::int64_t count,
                 std::int64_t columns, bool bf16, std::int64_t first, std::int64_t capacity,
                 std::uint32_t* to);

/// Rows of latents that are turned into keys and values of one head in one task: whole panels, and
/// whole calls of the products.
constexpr std::int64_t kRebuildRows = 192;

/// MLA: keys W_uk·c and values W_uv·c of one head for a run of latents.
struct Rebuild {
  ConstTensor latents;  ///< [count ≤ kRebuildRows, 1, d_c]
  bool bf16 = false;
  std::int64_t d_nope = 0, d_value = 0;
  const std::uint32_t* w_uk = nullptr;  ///< rows of the head's weights, packed like keys
  const std::uint32_t* w_uv = nullptr;
  std::uint32_t* keys = nullptr;    ///< panels of the run's first row
  std::uint32_t* values = nullptr;  ///< panels of the whole segment
  std::int64_t first = 0, capacity = 0;
  float* scratch = nullptr;  ///< rebuild_scratch_floats(d_c) floats
};

constexpr std::int64_t rebuild_scratch_floats(std::int64_t d_latent) {
  return kRebuildRows * (round_up(d_latent, kDepth) + kPanel);
}

void rebuild_keys_values(const Rebuild& rebuild);

/// A few packed queries and one panel of 32 keys, the part without position and the part with it;
/// T is float, or a word of two bfloat16.
template <typename T>
struct PanelPair {
  const T *q_nope, *k_nope;
  std::int64_t depth_nope;
  const T *q_rope, *k_rope;
  std::int64_t depth_rope;
};

/// The inner products on AVX-512 BF16.
struct Bf16Kernels {
  /// scores[r·stride + key] of 12 queries and keys [from, to) of the panel, and a few around them.
  void (*scores)(const PanelPair<std::uint32_t>& pair, std::int64_t from, std::int64_t to,
                 float* scores, std::int64_t stride);
  /// out[r][0 … 31] = out·factor[r] + Σ over word pairs of weights (rows kBlockKeys/2 words apart)
  /// and values[words][32].
  void (*outputs)(const std::uint32_t* weights, const std::uint32_t* values, std::int64_t words,
                  const float* factor, float* out, std::int64_t out_stride);
  /// Rounds `words`·2 floats to bfloat16 pairs.
  void (*round_pairs)(const float* from, std::int64_t words, std::uint32_t* to);
  /// For decoding. scores[h·stride + k] = factor · q[h] · rows[k], of 4 rows `row_stride` apart and
  /// `width` (a multiple of 32) values each.
  void (*row_scores)(const std::uint16_t* q, std::int64_t heads, std::int64_t width,
                     const std::uint16_t* rows, std::int64_t row_stride, float factor,
                     float* scores, std::int64_t stride);
  /// out[h] = out[h]·factor[h] + Σ_k weights[h][k] · rows[k] of `count` rows; weights rounded to
  /// pairs, those of heads `weight_stride` pairs apart; where `count` is odd the last pair ends in
  /// 0.
  void (*row_outputs)(const std::uint32_t* weights, std::int64_t weight_stride, const float* factor,
                      std::int64_t heads, std::int64_t width, const std::uint16_t* rows,
                      std::int64_t row_stride, std::int64_t count, float* out);
};
constexpr int kBf16Rows = 12;  ///< rows of queries per call of the AVX-512 BF16 products
/// As compiled; null pointers where this build has none.
extern const Bf16Kernels kAvx512Bf16;
/// The same where the CPU has the instructions, else null.
const Bf16Kernels* bf16_kernels();

}  // namespace lca::cpu
