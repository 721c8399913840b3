// Rebuilds MLA's keys and values with the products of the tile kernel, straight into its panels: a
// library's product would write rows, and laying those out again costs more than it wins.
//
// Shapes: 192 latents of d_c = 512 (384 KiB packed) against 8 panels of 32 weight rows (64 KiB
// each), from the second-level cache. Operations: 2·192·512·256 a task.

#include "attention/cpu/tile.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rebuild.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/panel-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

static_assert(kRebuildRows % kPanel == 0 && kRebuildRows % kRows == 0 &&
              kRebuildRows % kBf16Rows == 0);

/// out[row][0 … 31] = rows · panel.
void Products(const Rebuild& b, const std::uint32_t* rows, const std::uint32_t* panel, float* out) {
  const int unit = RowsPerCall(b.bf16);
  const std::int64_t depth = b.latents.shape[2];
  const std::int64_t words = b.bf16 ? ceil_div(depth, 2) : depth;
  for (std::int64_t r = 0; r < b.latents.shape[0]; r += unit) {
    const std::uint32_t* left = rows + r * round_up(words, kDepth);
    PanelScores({left, panel, words, left, panel, 0}, b.bf16, 0, kPanel, out + r * kPanel, kPanel);
  }
}

void RebuildKeysValues(const Rebuild& b) {
  const std::int64_t count = b.latents.shape[0];
  const std::int64_t depth = b.latents.shape[2];
  auto* rows = reinterpret_cast<std::uint32_t*>(b.scratch);
  float* out = b.scratch + kRebuildRows * round_up(depth, kDepth);
  PackRows(b.latents, count, depth, b.bf16, rows);
  for (std::int64_t column = 0; column < b.d_nope; column += kPanel) {
    Products(b, rows, b.w_uk + packed_key_words(column, depth, b.bf16), out);
    const std::int64_t width = std::min(kPanel, b.d_nope - column);
    // Panel by panel of keys: this column is a stretch of each one's depth.
    for (std::int64_t key = 0; key < count; key += kPanel) {
      std::uint32_t* panel = b.keys + packed_key_words(key, b.d_nope, b.bf16);
      pack_keys(out + key * kPanel, DType::f32, kPanel, std::min(kPanel, count - key), width,
                b.bf16, panel + packed_key_words(kPanel, column, b.bf16));
    }
  }
  for (std::int64_t column = 0; column < b.d_value; column += kPanel) {
    Products(b, rows, b.w_uv + packed_key_words(column, depth, b.bf16), out);
    const std::int64_t panel = column * b.capacity;
    pack_values(out, DType::f32, kPanel, count, std::min(kPanel, b.d_value - column), b.bf16,
                b.first, b.capacity, b.values + (b.bf16 ? panel / 2 : panel));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(RebuildKeysValues);

void rebuild_keys_values(const Rebuild& rebuild) {
  HWY_DYNAMIC_DISPATCH(RebuildKeysValues)(rebuild);
}

}  // namespace lca::cpu
#endif
