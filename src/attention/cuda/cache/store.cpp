#include "attention/cuda/cache/store.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"

namespace lca::cuda {
namespace {

/// Closed windows whose memory stays, so that chunk after chunk finds its spare one.
constexpr std::size_t kWarmWindows = 2;

std::uint64_t store_number() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

}  // namespace

// --- numbers -----------------------------------------------------------------------------------

int CacheStore::Numbers::take(const char* what) {
  if (!free_.empty()) {
    const int number = *free_.begin();
    free_.erase(free_.begin());
    return number;
  }
  if (next_ == most_)
    fail_memory("all {} {} of the GPU's cache are in use; close one", most_, what);
  return next_++;
}

void CacheStore::Numbers::give(int number) { free_.insert(number); }

// --- layout ------------------------------------------------------------------------------------

CacheStore::CacheStore(const Device& device, std::span<const LayerSpec> layers, GroupType type,
                       const StoreLimits& limits, cudaStream_t stream)
    : device_(device),
      specs_(layers.begin(), layers.end()),
      type_(type),
      limits_(limits),
      queue_{&device, stream},
      id_(store_number()) {
  store_specs_check(layers, limits);
  sizes_ = store_sizes(layers, type, limits);
  const DeviceScope scope(device);
  layers_lay();
  pages_lay();
  windows_lay();
  slots_lay();
  layers_on_device_ = Buffer(layers_.size() * sizeof(LayerCache));
  Transfer(stream).upload(std::span<const LayerCache>(layers_), layers_on_device_.as<LayerCache>());
}

CacheStore::~CacheStore() { rest(); }

// --- memory ------------------------------------------------------------------------------------

void CacheStore::rest() const noexcept { cudaStreamSynchronize(queue_.stream); }

/// Throws where fewer bytes are free, with what is kept for later given back first.
void CacheStore::room_check(std::size_t needed) {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for the GPU's free memory");
  if (needed <= free) return;
  trim();
  memory_require(static_cast<double>(needed), "a cache");
}

/// Calls `hold`; where memory runs out, once more without what is kept for later.
template <typename Hold>
void CacheStore::with_room(std::size_t needed, const Hold& hold) {
  const DeviceScope scope(device_);
  // Asking takes longer than a few granules do.
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  if (needed > kLarge) room_check(needed);
  try {
    hold();
    return;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
  }
  trim();
  try {
    hold();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    room_check(needed);
    throw;
  }
}

std::size_t CacheStore::blocks_missing(std::span<Blocks* const> all, int number) const {
  std::size_t bytes = 0;
  for (const Blocks* blocks : all)
    bytes += blocks->memory.missing(blocks->begin(number), blocks->each);
  return bytes;
}

void CacheStore::blocks_hold(std::span<Blocks* const> all, int number) {
  std::size_t done = 0;
  try {
    for (; done < all.size(); ++done) {
      all[done]->memory.hold(all[done]->begin(number), all[done]->each, poison());
    }
  } catch (...) {
    blocks_drop(all.first(done), number);
    throw;
  }
}

void CacheStore::blocks_drop(std::span<Blocks* const> all, int number) noexcept {
  for (Blocks* blocks : all) {
    if (blocks->memory.last_holder(blocks->begin(number), blocks->each)) rest();
    blocks->memory.drop(blocks->begin(number), blocks->each);
  }
}

void CacheStore::blocks_copy(std::span<Blocks* const> all, int from, int to) {
  const DeviceScope scope(device_);
  for (const Blocks* blocks : all) {
    const char* const memory = blocks->memory.as<char>();
    Transfer::device_copy(memory + blocks->begin(from), blocks->each,
                          blocks->memory.as<char>() + blocks->begin(to), queue_);
  }
}

StoreBytes CacheStore::backed() const {
  StoreBytes bytes;
  for (const Blocks* blocks : page_blocks_) bytes.groups += blocks->memory.backed();
  for (const Blocks* blocks : query_blocks_) bytes.queries += blocks->memory.backed();
  bytes.exact = window_rows_.backed() + dense_rows_.backed();
  bytes.tables = tables_.memory.backed();
  return bytes;
}

void CacheStore::trim() noexcept {
  for (const int window : warm_windows_) window_release(window);
  warm_windows_.clear();
}

// --- windows -----------------------------------------------------------------------------------

int CacheStore::window_open(std::int64_t tokens) {
  int window = 0;
  const bool warm = !warm_windows_.empty();
  if (warm) {
    window = warm_windows_.back();
    warm_windows_.pop_back();
  } else {
    window = windows_.take("windows");
  }
  try {
    if (!warm) {
      const std::size_t needed =
          blocks_missing(query_blocks_, window) + window_rows_.missing(window, tokens);
      with_room(needed, [&] { blocks_hold(query_blocks_, window); });
    }
    try {
      window_require(window, tokens);
    } catch (...) {
      blocks_drop(query_blocks_, window);
      throw;
    }
  } catch (...) {
    window_rows_.release(window);
    windows_.give(window);
    throw;
  }
  return window;
}

void CacheStore::window_require(int window, std::int64_t tokens) {
  const std::size_t needed = window_rows_.missing(window, tokens);
  if (needed == 0) {
    window_rows_.require(window, tokens, nullptr);
    return;
  }
  with_room(needed, [&] { window_rows_.require(window, tokens, poison()); });
}

void CacheStore::window_release(int window) noexcept {
  rest();
  blocks_drop(query_blocks_, window);
  window_rows_.release(window);
  windows_.give(window);
}

void CacheStore::window_close(int window) noexcept {
  if (warm_windows_.size() < kWarmWindows) {
    warm_windows_.push_back(window);
  } else {
    window_release(window);
  }
}

void CacheStore::window_copy(int from, int to, std::int64_t tokens) {
  blocks_copy(query_blocks_, from, to);
  const DeviceScope scope(device_);
  window_rows_.copy(from, to, tokens, queue_);
}

// --- slots -------------------------------------------------------------------------------------

int CacheStore::slot_open() {
  const int slot = slots_.take("sequences");
  try {
    with_room(blocks_missing(table_blocks_, slot), [&] { blocks_hold(table_blocks_, slot); });
    // Unused entries are page 0: a kernel may fetch one too many.
    const DeviceScope scope(device_);
    Transfer(queue_.stream).fill(tables_.memory.as<char>() + tables_.begin(slot), tables_.each, 0);
  } catch (...) {
    slots_.give(slot);
    throw;
  }
  return slot;
}

void CacheStore::slot_close(int slot) noexcept {
  rest();
  dense_rows_.release(slot);
  blocks_drop(table_blocks_, slot);
  slots_.give(slot);
}

void CacheStore::dense_require(int slot, std::int64_t tokens) {
  tokens = dense_tokens_held(tokens);
  const std::size_t needed = dense_rows_.missing(slot, tokens);
  if (needed == 0) {
    dense_rows_.require(slot, tokens, nullptr);
    return;
  }
  with_room(needed, [&] { dense_rows_.require(slot, tokens, poison()); });
}

void CacheStore::dense_copy(int from, int to, std::int64_t tokens) {
  const DeviceScope scope(device_);
  dense_rows_.copy(from, to, tokens, queue_);
}

void CacheStore::table_write(int slot, std::int64_t first, std::span<const std::int32_t> pages) {
  if (pages.empty()) return;
  const DeviceScope scope(device_);
  auto* const table =
      reinterpret_cast<std::int32_t*>(tables_.memory.as<char>() + tables_.begin(slot));
  Transfer(queue_.stream).upload(pages, table + first);
}

// --- pages -------------------------------------------------------------------------------------

void CacheStore::pages_expect(std::int64_t count) {
  constexpr std::int64_t kMany = 16;
  if (count < kMany) return;
  std::size_t each = 0;
  for (const Blocks* blocks : page_blocks_) each += blocks->each;
  const DeviceScope scope(device_);
  room_check(static_cast<std::size_t>(count) * each);
}

std::int32_t CacheStore::page_take() {
  // With poison neighbours in a sequence are none in memory: nothing may rely on that.
  const int number = pages_.take("pages");
  const int page = limits_.poison ? number ^ 5 : number;
  try {
    with_room(blocks_missing(page_blocks_, page), [&] { blocks_hold(page_blocks_, page); });
    if (static_cast<std::size_t>(page) >= page_holders_.size()) {
      page_holders_.resize(static_cast<std::size_t>(page) + 1);
    }
  } catch (...) {
    pages_.give(number);
    throw;
  }
  page_holders_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void CacheStore::page_drop(std::int32_t page) noexcept {
  if (--page_holders_[static_cast<std::size_t>(page)] > 0) return;
  blocks_drop(page_blocks_, page);
  pages_.give(limits_.poison ? page ^ 5 : page);
}

void CacheStore::page_copy(std::int32_t from, std::int32_t to) {
  blocks_copy(page_blocks_, from, to);
}

std::int32_t CacheStore::table_entry(std::int32_t page) const {
  return page * static_cast<std::int32_t>(condensing_.size());
}

// --- sizes -------------------------------------------------------------------------------------

std::int64_t CacheStore::groups_fewest(std::int64_t length) const {
  if (layouts_.empty()) return 0;
  std::int64_t fewest = length;
  for (const Layout& layout : layouts_) fewest = std::min(fewest, layout.groups(length));
  return fewest;
}

bool CacheStore::groups_grow(std::int64_t before, std::int64_t after) const {
  return std::ranges::any_of(
      layouts_, [&](const Layout& layout) { return layout.groups(after) > layout.groups(before); });
}

std::int64_t CacheStore::pages_for(std::int64_t length) const {
  std::int64_t most = 0;
  for (const Layout& layout : layouts_) most = std::max(most, layout.groups(length));
  return (most + kPageRows - 1) / kPageRows;
}

}  // namespace lca::cuda
