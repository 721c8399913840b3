#include "attention/cuda/cache/store.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "attention/cuda/cache/rows.h"
#include "attention/cuda/condense/condense.h"
#include "attention/rotate.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

bool condenses(const LayerSpec& spec) { return spec.settings.method == MethodKind::lca; }

std::int64_t pages_in_all(const LayerSpec& spec, const StoreLimits& limits) {
  return limits.pages > 0 ? limits.pages
                          : pages_needed(spec.settings, limits.longest) * limits.slots;
}

/// The store's memory, carved. With a null carver it counts.
struct Carved {
  std::vector<LayerCache> layers;
  SessionView* views = nullptr;
  std::int32_t* tables = nullptr;
  std::uint64_t* steps = nullptr;  // of the rotation
  StoreBytes bytes;

  Carved(const LayerSpec& spec, GroupType type, const StoreLimits& limits, DeviceCarver& carver) {
    const AttentionShape& shape = spec.shape;
    const std::int64_t slots = limits.slots;
    LayerCache common;
    common.slots = limits.slots;
    common.pages_each = static_cast<int>(pages_needed(spec.settings, limits.longest));
    common.exact_each = exact_rows(spec.settings, limits.longest);
    common.ring = ring_rows(spec.settings, limits.longest);
    if (condenses(spec)) {
      common.recent = std::min(spec.settings.summary_queries - 1, limits.longest);
      common.summary_rows = std::min(spec.settings.summary_queries, limits.longest);
      common.summary_values = shape.kv_heads * summary_width(shape, spec.settings.head_reduce);
    }
    std::size_t before = 0;
    const auto grown = [&] {
      const std::size_t more = carver.used() - before;
      before = carver.used();
      return more;
    };
    tables = carver.take<std::int32_t>(slots * common.pages_each);
    views = carver.take<SessionView>(limits.layers * slots);
    if (spec.settings.positions == Positions::entry) {
      const auto pairs = static_cast<int>(spec.rotation.frequencies.size());
      steps = carver.take<std::uint64_t>(pairs);
      common.rotation = {steps, pairs, spec.rotation.layout};
    }
    bytes.tables = grown();
    common.pages = tables;
    const Mass mass = condenses(spec) ? spec.settings.mass : Mass::none;
    for (int i = 0; i < limits.layers; ++i) {
      LayerCache layer = common;
      layer.sessions = views + i * slots;
      layer.pool = pool_carve(carver, shape, type, mass, pages_in_all(spec, limits) * kPageRows);
      bytes.groups += grown();
      layer.exact.rows = slots * layer.exact_each;
      layer.exact.semantic =
          carver.take<bf16>(layer.exact.rows * shape.kv_heads * shape.d_semantic());
      layer.exact.positional =
          carver.take<bf16>(layer.exact.rows * shape.kv_heads * shape.d_positional());
      bytes.exact += grown();
      layer.summary = carver.take<float>(slots * layer.summary_rows * layer.summary_values);
      layer.recent_nope = carver.take<bf16>(slots * layer.recent * shape.heads * shape.d_nope);
      layer.recent_rope = carver.take<bf16>(slots * layer.recent * shape.heads * shape.d_rope);
      bytes.queries += grown();
      layers.push_back(layer);
    }
  }
};

void limits_check(const LayerSpec& spec, const StoreLimits& limits) {
  spec.validate();
  if (limits.layers < 1 || limits.slots < 1) {
    fail_input("a store of {} layers for {} sequences; both must be at least 1", limits.layers,
               limits.slots);
  }
  if (limits.longest < 1 || limits.longest > kLongestLayout32) {
    fail_input("a sequence of {} tokens does not fit the GPU's cache; it takes 1 to {}",
               limits.longest, kLongestLayout32);
  }
  if (pages_in_all(spec, limits) > std::numeric_limits<std::int32_t>::max() / kPageRows) {
    fail_input("{} pages of representatives are too many; use a smaller batch",
               pages_in_all(spec, limits));
  }
}

}  // namespace

StoreBytes CacheStore::bytes(const LayerSpec& spec, GroupType type, const StoreLimits& limits) {
  limits_check(spec, limits);
  DeviceCarver carver;
  return Carved(spec, type, limits, carver).bytes;
}

CacheStore::CacheStore(const Device& device, const LayerSpec& spec, GroupType type,
                       const StoreLimits& limits, cudaStream_t stream, bool poison)
    : device_(device), spec_(spec), limits_(limits), queue_{&device, stream} {
  const std::size_t total = bytes(spec, type, limits).total();
  const DeviceScope scope(device);
  memory_require(static_cast<double>(total),
                 fmt::format("a cache of {} sequences of {} tokens", limits.slots, limits.longest));
  memory_ = Buffer(total);
  const Transfer transfer(stream);
  if (poison) transfer.fill(memory_.as<void>(), total, 0xff);
  DeviceCarver carver(memory_.as<void>());
  Carved carved(spec, type, limits, carver);
  layers_ = std::move(carved.layers);
  views_ = carved.views;
  tables_ = carved.tables;
  slots_.resize(static_cast<std::size_t>(limits.slots));

  // Unused entries of a table are page 0: a kernel may prefetch one too many.
  transfer.fill(tables_, static_cast<std::size_t>(limits.slots * layers_[0].pages_each) * 4, 0);
  std::vector<SessionView> views;
  for (const LayerCache& layer : layers_) {
    for (int slot = 0; slot < limits.slots; ++slot) {
      SessionView view;
      view.semantic = layer.semantic_of(spec.shape, slot);
      view.positional = layer.positional_of(spec.shape, slot);
      view.pages = layer.pages_of(slot);
      if (layer.summary_rows > 0) view.summary = layer.summary_of(slot);
      view.length = -1;
      view.ring = static_cast<int>(layer.ring);
      views.push_back(view);
    }
  }
  transfer.upload(std::span<const SessionView>(views), views_);
  if (carved.steps != nullptr) {
    const std::vector<std::uint64_t> steps = rotation_steps(spec.rotation);
    transfer.upload(std::span<const std::uint64_t>(steps), carved.steps);
  }

  free_pages_.resize(static_cast<std::size_t>(pages_in_all(spec, limits)));
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);
  if (poison) {  // no sequence may rely on neighbouring pages: a fixed shuffle
    std::uint64_t state = 1;
    for (std::size_t i = free_pages_.size(); i > 1; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(free_pages_[i - 1], free_pages_[(state >> 33) % i]);
    }
  }
}

CacheStore::Slot& CacheStore::slot_at(int slot) {
  return const_cast<Slot&>(std::as_const(*this).slot_at(slot));
}

const CacheStore::Slot& CacheStore::slot_at(int slot) const {
  if (slot < 0 || slot >= limits_.slots || !slots_[static_cast<std::size_t>(slot)].open) {
    fail_input("there is no sequence {} in this store of {}", slot, limits_.slots);
  }
  return slots_[static_cast<std::size_t>(slot)];
}

bool CacheStore::is_open(int slot) const {
  return slot >= 0 && slot < limits_.slots && slots_[static_cast<std::size_t>(slot)].open;
}

void CacheStore::lengths_write(int slot, std::int64_t length) {
  const DeviceScope scope(device_);
  lengths_set(views_, limits_.layers, limits_.slots, slot, static_cast<std::int32_t>(length),
              queue_);
}

int CacheStore::open() {
  const auto free = std::ranges::find(slots_, false, &Slot::open);
  if (free == slots_.end()) {
    fail_memory("all {} sequences of the GPU's cache are in use; close one", limits_.slots);
  }
  const auto slot = static_cast<int>(free - slots_.begin());
  lengths_write(slot, 0);
  free->open = true;
  free->length = 0;
  return slot;
}

void CacheStore::close(int slot) {
  Slot& closed = slot_at(slot);
  lengths_write(slot, -1);
  // In reverse, so that the next to ask gets them in the same order.
  free_pages_.insert(free_pages_.end(), closed.pages.rbegin(), closed.pages.rend());
  closed = {};
}

std::int64_t CacheStore::length(int slot) const { return slot_at(slot).length; }

void CacheStore::advance(int slot, std::int64_t tokens) { slot_at(slot).length += tokens; }

void CacheStore::set_length(int slot, std::int64_t length) {
  slot_at(slot).length = length;
  lengths_write(slot, length);
}

std::int64_t CacheStore::pages_missing(int slot, std::int64_t length) const {
  const Slot& of = slot_at(slot);
  if (length > limits_.longest) {
    fail_input("{} tokens do not fit a cache of {}", length, limits_.longest);
  }
  const std::int64_t needed = condenses(spec_)
                                  ? std::min(pages_needed(spec_.settings, length),
                                             pages_needed(spec_.settings, limits_.longest))
                                  : 0;
  return std::max<std::int64_t>(needed - static_cast<std::int64_t>(of.pages.size()), 0);
}

void CacheStore::reserve(std::span<const int> slots, std::span<const std::int64_t> lengths) {
  std::int64_t missing = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) missing += pages_missing(slots[i], lengths[i]);
  if (missing > pages_free()) {
    fail_memory("{} more pages of representatives are needed and {} are free; close a sequence",
                missing, pages_free());
  }
  const DeviceScope scope(device_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t more = pages_missing(slots[i], lengths[i]);
    if (more == 0) continue;
    std::vector<std::int32_t>& pages = slot_at(slots[i]).pages;
    const std::size_t first = pages.size();
    for (std::int64_t k = 0; k < more; ++k) {
      pages.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    Transfer(queue_.stream)
        .upload(std::span<const std::int32_t>(pages).subspan(first),
                tables_ + std::int64_t{slots[i]} * layers_[0].pages_each + first);
  }
}

}  // namespace lca::cuda
