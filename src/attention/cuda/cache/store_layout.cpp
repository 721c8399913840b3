// How a store lays out its addresses: what is in use at the same time lies together, so that whole
// granules of memory are full.

#include <algorithm>
#include <limits>
#include <numeric>

#include "attention/cuda/cache/rows.h"
#include "attention/cuda/cache/store.h"
#include "attention/cuda/condense/condense.h"
#include "attention/rotate.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// The most rows that kernels can number in 32 bits.
constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
constexpr int kMostPages = 1 << 24;

}  // namespace

void CacheStore::layers_lay() {
  layers_.resize(specs_.size());
  std::vector<std::uint64_t> steps;
  std::vector<std::size_t> steps_first(specs_.size());
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const LayerSpec& spec = specs_[i];
    const auto same = std::ranges::find(specs_, spec);
    kinds_.push_back(static_cast<int>(same - specs_.begin()));
    if (layer_condenses(spec)) {
      condensing_.push_back(static_cast<int>(i));
      if (same == specs_.begin() + static_cast<std::ptrdiff_t>(i)) {
        layouts_.emplace_back(spec.settings);
      }
    }
    LayerCache& layer = layers_[i];
    layer.dense = spec.settings.method == MethodKind::dense;
    layer.ring = ring_rows(spec.settings, limits_.longest);
    layer.exact_each = exact_rows(spec.settings, limits_.longest);
    steps_first[i] = steps.size();
    if (spec.settings.positions == Positions::entry) {
      const std::vector<std::uint64_t> own = rotation_steps(spec.rotation);
      steps.insert(steps.end(), own.begin(), own.end());
    }
  }
  if (steps.empty()) return;
  rotation_steps_ = Buffer(steps.size() * sizeof(std::uint64_t));
  Transfer(queue_.stream)
      .upload(std::span<const std::uint64_t>(steps), rotation_steps_.as<std::uint64_t>());
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].settings.positions != Positions::entry) continue;
    const Rotation& rotation = specs_[i].rotation;
    layers_[i].rotation = {rotation_steps_.as<std::uint64_t>() + steps_first[i],
                           static_cast<int>(rotation.frequencies.size()), rotation.layout};
  }
}

/// A page of all layers is one block of each array, layer after layer: tables number pages of one
/// layer, so that entry = page · layers, and layer i begins i pages later.
void CacheStore::pages_lay() {
  if (condensing_.empty()) return;
  const auto layers = static_cast<std::int64_t>(condensing_.size());
  std::int64_t page_bytes = 0;
  for (const std::size_t each : sizes_.pages()) page_bytes += static_cast<std::int64_t>(each);
  const std::int64_t fit = static_cast<std::int64_t>(device_.memory) / page_bytes + 8;
  // As many as could ever have memory; in eights, which page_take shuffles.
  const std::int64_t most =
      std::min<std::int64_t>({fit, kMostPages, kMostRows / (kPageRows * layers)}) / 8 * 8;
  pages_ = Numbers(static_cast<int>(most));

  const auto lay = [&](Blocks& blocks, std::size_t each) {
    if (each == 0) return;
    blocks.each = each;
    blocks.memory = BackedMemory(device_, static_cast<std::size_t>(most) * each);
    page_blocks_.push_back(&blocks);
  };
  lay(group_semantic_, sizes_.group_semantic);
  lay(group_positional_, sizes_.group_positional);
  lay(semantic_scale_, sizes_.semantic_scale);
  lay(positional_scale_, sizes_.positional_scale);
  lay(bias_, sizes_.bias);
  for (std::size_t k = 0; k < condensing_.size(); ++k) {
    const auto part = [&](const Blocks& blocks) {
      return blocks.each == 0 ? nullptr
                              : blocks.memory.as<char>() + k * (blocks.each / condensing_.size());
    };
    GroupPool& pool = layers_[static_cast<std::size_t>(condensing_[k])].pool;
    pool.semantic = part(group_semantic_);
    pool.positional = part(group_positional_);
    pool.semantic_scale = reinterpret_cast<float*>(part(semantic_scale_));
    pool.positional_scale = reinterpret_cast<float*>(part(positional_scale_));
    if (spec(condensing_[k]).settings.mass == Mass::score) {
      pool.bias = reinterpret_cast<float*>(part(bias_));
    }
  }
  for (LayerCache& layer : layers_) layer.pool.type = type_;
}

void CacheStore::windows_lay() {
  const AttentionShape& shape = specs_.front().shape;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].dense) which.push_back(i);
  }
  const std::vector<std::int64_t>& rows = sizes_.window_rows;
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  // Spare windows and marks beside those of open sequences.
  std::int64_t most = std::int64_t{4} * limits_.sequences + 8;
  if (all > 0) most = std::max<std::int64_t>(1, std::min(most, kMostRows / all));
  windows_ = Numbers(static_cast<int>(most));
  window_rows_ = ExactBlocks(device_, shape, rows, most);
  for (std::size_t k = 0; k < which.size(); ++k) {
    LayerCache& layer = layers_[which[k]];
    layer.semantic = window_rows_.semantic(k);
    layer.positional = window_rows_.positional(k);
    layer.semantic_stride = window_rows_.semantic_stride();
    layer.positional_stride = window_rows_.positional_stride();
    layer.exact = window_rows_.pool();
  }

  for (const int i : condensing_) {
    LayerCache& layer = layers_[static_cast<std::size_t>(i)];
    const Settings& settings = spec(i).settings;
    layer.recent = layer.summary_rows = std::min(settings.summary_queries, limits_.longest);
    layer.summary_values = shape.kv_heads * summary_width(shape, settings.head_reduce);
  }
  const auto lay = [&](Blocks& blocks, std::size_t each) {
    if (each == 0) return;
    blocks.each = each;
    blocks.memory = BackedMemory(device_, static_cast<std::size_t>(most) * each);
    query_blocks_.push_back(&blocks);
  };
  lay(summary_, sizes_.summary);
  lay(recent_nope_, sizes_.recent_nope);
  lay(recent_rope_, sizes_.recent_rope);
  for (std::size_t k = 0; k < condensing_.size(); ++k) {
    LayerCache& layer = layers_[static_cast<std::size_t>(condensing_[k])];
    layer.summary =
        reinterpret_cast<float*>(summary_.memory.as<char>() + sizes_.query_begins[k][0]);
    layer.summary_stride = static_cast<std::int64_t>(summary_.each / sizeof(float));
    if (recent_nope_.each > 0) {
      layer.recent_nope =
          reinterpret_cast<bf16*>(recent_nope_.memory.as<char>() + sizes_.query_begins[k][1]);
    }
    layer.nope_stride = static_cast<std::int64_t>(recent_nope_.each / sizeof(bf16));
    layer.recent_rope =
        reinterpret_cast<bf16*>(recent_rope_.memory.as<char>() + sizes_.query_begins[k][2]);
    layer.rope_stride = static_cast<std::int64_t>(recent_rope_.each / sizeof(bf16));
  }
}

void CacheStore::slots_lay() {
  // Dense layers reserve addresses for the longest sequence in every slot: 16 TiB at most.
  constexpr std::int64_t kMostDenseBytes = std::int64_t{1} << 44;
  const AttentionShape& shape = specs_.front().shape;
  const std::vector<std::int64_t>& rows = sizes_.dense_rows;
  const std::int64_t bytes =
      std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) * shape.entry_values() * 2;
  std::int64_t most = bytes == 0
                          ? limits_.sequences
                          : std::clamp<std::int64_t>(kMostDenseBytes / bytes, 1, limits_.sequences);
  while (!rows.empty()) {
    try {
      dense_rows_ = ExactBlocks(device_, shape, rows, most);
      break;
    } catch (const Error&) {  // fewer addresses than that
      if (most == 1) throw;
      most /= 2;
    }
  }
  slots_ = Numbers(static_cast<int>(most));
  pages_each_ = static_cast<int>(sizes_.pages_each);
  tables_.each = sizes_.table;
  tables_.memory = BackedMemory(device_, static_cast<std::size_t>(most) * tables_.each);
  table_blocks_.push_back(&tables_);
  std::size_t k = 0;
  for (LayerCache& layer : layers_) {
    layer.pages = tables_.memory.as<std::int32_t>();
    layer.pages_each = static_cast<int>(tables_.each / 4);
    if (!layer.dense) continue;
    layer.semantic = dense_rows_.semantic(k);
    layer.positional = dense_rows_.positional(k);
    layer.semantic_stride = dense_rows_.semantic_stride();
    layer.positional_stride = dense_rows_.positional_stride();
    ++k;
  }
}

StoreBytes CacheStore::sequence_bytes(std::span<const LayerSpec> layers, GroupType type,
                                      std::int64_t length) {
  const StoreLimits limits{.longest = std::max<std::int64_t>(length, 1)};
  store_specs_check(layers, limits);
  StoreBytes bytes;
  std::int64_t groups = 0, condensing = 0;
  Mass mass = Mass::none;
  const AttentionShape& shape = layers.front().shape;
  for (const LayerSpec& layer : layers) {
    const std::int64_t rows = std::min(exact_rows(layer.settings, limits.longest), length);
    bytes.exact += static_cast<std::size_t>(rows * shape.entry_values() * 2);
    if (!layer_condenses(layer)) continue;
    ++condensing;
    groups = std::max(groups, Layout(layer.settings).groups(length));
    if (layer.settings.mass == Mass::score) mass = Mass::score;
    const std::int64_t d_nope = shape.form == Form::mla ? shape.d_nope : 0;
    const std::int64_t query =
        shape.kv_heads * summary_width(shape, layer.settings.head_reduce) * 4 +
        shape.heads * (d_nope + shape.d_rope) * 2;
    bytes.queries += static_cast<std::size_t>(layer.settings.summary_queries * query);
  }
  const std::int64_t pages = (groups + kPageRows - 1) / kPageRows;
  bytes.groups =
      static_cast<std::size_t>(condensing * pages * kPageRows * group_bytes(shape, type, mass));
  bytes.tables = static_cast<std::size_t>(pages) * 4;
  return bytes;
}

}  // namespace lca::cuda
