#include "attention/cuda/cache/store_sizes.h"

#include <algorithm>

#include "attention/cuda/cache/exact_blocks.h"
#include "attention/cuda/cache/rows.h"
#include "attention/cuda/condense/condense.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

bool layer_dense(const LayerSpec& spec) { return spec.settings.method == MethodKind::dense; }

/// `count` equal pieces, one behind the other.
std::size_t pieces_backed(std::size_t each, std::int64_t count) {
  return (each * static_cast<std::size_t>(count) + kGranuleBytes - 1) / kGranuleBytes *
         kGranuleBytes;
}

void queries_size(std::span<const LayerSpec> layers, const StoreLimits& limits, StoreSizes& sizes) {
  const AttentionShape& shape = layers.front().shape;
  DeviceCarver summaries, nopes, ropes;  // at multiples of 256 bytes
  for (const LayerSpec& layer : layers) {
    if (!layer_condenses(layer)) continue;
    const Settings& settings = layer.settings;
    const std::int64_t rows = std::min(settings.summary_queries, limits.longest);
    sizes.query_begins.push_back({summaries.used(), nopes.used(), ropes.used()});
    summaries.take<float>(rows * shape.kv_heads * summary_width(shape, settings.head_reduce));
    if (shape.form == Form::mla) nopes.take<bf16>(rows * shape.heads * shape.d_nope);
    ropes.take<bf16>(rows * shape.heads * shape.d_rope);
  }
  sizes.summary = summaries.used();
  sizes.recent_nope = nopes.used();
  sizes.recent_rope = ropes.used();
}

void pages_size(std::span<const LayerSpec> layers, GroupType type, StoreSizes& sizes) {
  const AttentionShape& shape = layers.front().shape;
  const auto condensing = static_cast<std::int64_t>(std::ranges::count_if(layers, layer_condenses));
  const bool scored = std::ranges::any_of(layers, [](const LayerSpec& layer) {
    return layer_condenses(layer) && layer.settings.mass == Mass::score;
  });
  const std::int64_t kv = shape.kv_heads;
  const bool mla = shape.form == Form::mla;
  const std::int64_t wide = value_bytes(type);
  const std::int64_t scales = mla ? (shape.d_latent + kScaleBlock - 1) / kScaleBlock : kv;
  const auto page = [&](std::int64_t row_bytes) {
    return static_cast<std::size_t>(condensing * kPageRows * row_bytes);
  };
  sizes.group_semantic = page(kv * shape.d_semantic() * wide);
  sizes.group_positional = page(kv * shape.d_positional() * (mla ? 2 : wide));
  if (type != GroupType::bf16) {
    sizes.semantic_scale = page(scales * 4);
    if (!mla) sizes.positional_scale = page(kv * 4);
  }
  if (scored) sizes.bias = page(kv * 4);
}

}  // namespace

void store_specs_check(std::span<const LayerSpec> layers, const StoreLimits& limits) {
  if (layers.empty()) fail_input("a cache needs at least one layer");
  for (const LayerSpec& layer : layers) {
    layer.validate();
    if (!(layer.shape == layers.front().shape)) {
      fail_input("the layers of a cache on the GPU must have one shape");
    }
  }
  if (limits.sequences < 1) fail_input("a store of {} sequences", limits.sequences);
  if (limits.longest < 1 || limits.longest > kLongestLayout32) {
    fail_input("a sequence of {} tokens does not fit the GPU's cache; it takes 1 to {}",
               limits.longest, kLongestLayout32);
  }
}

std::int64_t store_pages(std::span<const LayerSpec> layers, std::int64_t length) {
  std::int64_t groups = 0;
  for (const LayerSpec& layer : layers) {
    if (layer_condenses(layer)) groups = std::max(groups, Layout(layer.settings).groups(length));
  }
  return (groups + kPageRows - 1) / kPageRows;
}

StoreSizes store_sizes(std::span<const LayerSpec> layers, GroupType type,
                       const StoreLimits& limits) {
  StoreSizes sizes;
  for (const LayerSpec& layer : layers) {
    (layer_dense(layer) ? sizes.dense_rows : sizes.window_rows)
        .push_back(exact_rows(layer.settings, limits.longest));
  }
  queries_size(layers, limits, sizes);
  if (std::ranges::any_of(layers, layer_condenses)) pages_size(layers, type, sizes);
  sizes.pages_each = store_pages(layers, limits.longest);
  // Whole lines, and one more: a kernel may fetch the entry behind the last.
  sizes.table = (static_cast<std::size_t>(sizes.pages_each) * 4 + 4 + 127) / 128 * 128;
  return sizes;
}

StoreBytes store_backed(std::span<const LayerSpec> layers, GroupType type,
                        const StoreLimits& limits, const StoreUse& use) {
  const StoreSizes sizes = store_sizes(layers, type, limits);
  const AttentionShape& shape = layers.front().shape;
  StoreBytes bytes;
  const std::int64_t pages = use.sequences * store_pages(layers, use.length);
  for (const std::size_t each : sizes.pages()) bytes.groups += pieces_backed(each, pages);
  const std::int64_t windows = use.sequences + use.spare_windows;
  for (const std::size_t each : sizes.queries()) bytes.queries += pieces_backed(each, windows);
  bytes.tables = pieces_backed(sizes.table, use.sequences);
  const auto sequences = static_cast<std::size_t>(use.sequences);
  bytes.exact = exact_backed(shape, sizes.dense_rows,
                             std::vector<std::int64_t>(sequences, dense_tokens_held(use.length)));
  std::vector<std::int64_t> tokens(sequences, use.length);
  tokens.resize(static_cast<std::size_t>(windows), use.spare_tokens);
  bytes.exact += exact_backed(shape, sizes.window_rows, tokens);
  return bytes;
}

}  // namespace lca::cuda
