#include "models/cuda/device_caches.h"

#include <algorithm>

#include "attention/cuda/cache/exchange.h"
#include "attention/cuda/cache/random_fill.h"
#include "attention/cuda/cache/rows.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// Stores without caches that are kept, for the next session with their settings.
constexpr std::size_t kIdleStores = 4;

using Turn = std::lock_guard<std::recursive_mutex>;

std::vector<LayerSpec> specs_of(const std::vector<Cache>& caches) {
  std::vector<LayerSpec> specs;
  for (const Cache& cache : caches) specs.push_back(cache.spec());
  return specs;
}

const CacheMark& device_mark(const SequenceMark& mark) {
  return static_cast<const DeviceMark&>(mark).mark();
}

bool layer_is_dense(const LayerSpec& spec) { return spec.settings.method == MethodKind::dense; }

/// Bytes of a layer's representatives and exact tokens (mechanism §7), as the GPU stores them.
std::size_t layer_bytes(const LayerSpec& spec, GroupType type, std::int64_t length) {
  const Layout layout(spec.settings);
  const Mass mass = layer_condenses(spec) ? spec.settings.mass : Mass::none;
  const std::int64_t exact = length - layout.dropped(length);
  return static_cast<std::size_t>(layout.groups(length) * group_bytes(spec.shape, type, mass) +
                                  exact * spec.shape.entry_values() * 2);
}

}  // namespace

// --- stores ------------------------------------------------------------------------------------

DeviceStores::DeviceStores(const Queue& queue, std::vector<Weights> weights, GroupType type,
                           const StoreLimits& limits, const ProductSpace& products, Kernels kernels)
    : queue_(queue),
      weights_(std::move(weights)),
      type_(type),
      limits_(limits),
      products_(products),
      kernels_(kernels) {}

std::shared_ptr<CacheStore> DeviceStores::store(std::span<const LayerSpec> layers) {
  const Turn turn(turn_);
  if (layers.size() != weights_.size()) {
    fail_input("caches of {} layers for a model of {}", layers.size(), weights_.size());
  }
  const auto found = std::ranges::find_if(
      stores_, [&](const auto& store) { return std::ranges::equal(store->specs(), layers); });
  if (found != stores_.end()) {
    std::rotate(found, found + 1, stores_.end());
    return stores_.back();
  }
  auto store = std::make_shared<CacheStore>(*queue_.device, layers, type_, limits_, queue_.stream);
  // The oldest ones that nothing is in make room.
  auto idle = static_cast<std::size_t>(
      std::ranges::count_if(stores_, [](const auto& old) { return old.use_count() == 1; }));
  std::erase_if(stores_, [&](const auto& old) {
    if (old.use_count() > 1 || idle < kIdleStores) return false;
    --idle;
    return true;
  });
  stores_.push_back(store);
  return store;
}

LayerView DeviceStores::view(const CacheStore& store, int layer) const {
  const Weights& weights = weights_[static_cast<std::size_t>(layer)];
  return {store.spec(layer), kernels_, weights.w_uk, weights.w_uv, store.layer(layer)};
}

StoreBytes DeviceStores::backed() const {
  const Turn turn(turn_);
  StoreBytes all;
  for (const auto& store : stores_) {
    const StoreBytes bytes = store->backed();
    all.groups += bytes.groups;
    all.exact += bytes.exact;
    all.queries += bytes.queries;
    all.tables += bytes.tables;
  }
  return all;
}

void DeviceStores::trim() noexcept {
  const Turn turn(turn_);
  for (const auto& store : stores_) store->trim();
}

// --- marks -------------------------------------------------------------------------------------

DeviceMark::~DeviceMark() {
  const Turn turn(stores_.turn());
  mark_.reset();
  store_.reset();
}

std::int64_t DeviceMark::position() const { return mark_->length; }

std::size_t DeviceMark::bytes() const {
  std::vector<LayerSpec> kept;  // dense layers are cut back
  std::ranges::copy_if(store_->specs(), std::back_inserter(kept),
                       [](const LayerSpec& spec) { return !layer_is_dense(spec); });
  if (kept.empty()) return 0;
  const StoreBytes bytes = CacheStore::sequence_bytes(kept, store_->type(), mark_->length);
  return bytes.exact + bytes.queries;
}

// --- caches ------------------------------------------------------------------------------------

DeviceCaches::DeviceCaches(DeviceStores& stores, std::span<const LayerSpec> layers)
    : stores_(stores) {
  const Turn turn(stores_.turn());
  store_ = stores_.store(layers);
  sequence_ = std::make_unique<CacheSequence>(store_);
}

DeviceCaches::DeviceCaches(DeviceStores& stores, std::shared_ptr<CacheStore> store,
                           std::unique_ptr<CacheSequence> sequence)
    : stores_(stores), store_(std::move(store)), sequence_(std::move(sequence)) {}

DeviceCaches::DeviceCaches(DeviceStores& stores, const std::vector<Cache>& caches)
    : DeviceCaches(stores, specs_of(caches)) {
  const Turn turn(stores_.turn());
  const DeviceScope scope(*stores_.queue().device);
  for (const Cache& cache : caches) {
    cache_from_host_check(cache, cache.spec());
    if (cache.length() != caches.front().length()) {
      fail_incompatible("the layers of these caches have different lengths");
    }
  }
  sequence_->replace(caches.front().length(), host_queries_first(caches));
  for (int i = 0; i < store_->layers(); ++i) {
    cache_from_host(caches[static_cast<std::size_t>(i)], stores_.view(*store_, i),
                    sequence_->held(), HostPart::all, stores_.products(), stores_.queue());
  }
}

DeviceCaches::~DeviceCaches() {
  step_rollback();
  const Turn turn(stores_.turn());
  sequence_.reset();
  store_.reset();
}

std::int64_t DeviceCaches::length() const { return sequence_->length(); }

std::size_t DeviceCaches::bytes() const {
  std::size_t total = 0;
  for (const LayerSpec& spec : store_->specs()) {
    total += layer_bytes(spec, store_->type(), length());
  }
  return total;
}

std::size_t DeviceCaches::shared_bytes() const {
  const Turn turn(stores_.turn());
  std::int64_t shared = 0;
  const PageList& pages = *sequence_->held().pages;
  for (const LayerSpec& spec : store_->specs()) {
    if (!layer_condenses(spec)) continue;
    const std::int64_t groups = Layout(spec.settings).groups(length());
    for (std::int64_t i = 0; i * kPageRows < groups; ++i) {
      if (!store_->page_shared(pages[i])) continue;
      shared += std::min<std::int64_t>(kPageRows, groups - i * kPageRows) *
                group_bytes(spec.shape, store_->type(), spec.settings.mass);
    }
  }
  return static_cast<std::size_t>(shared);
}

std::size_t DeviceCaches::workspace_bytes() const {
  const std::size_t held =
      CacheStore::sequence_bytes(store_->specs(), store_->type(), length()).total();
  return held - std::min(held, bytes());
}

std::int64_t DeviceCaches::truncate_floor() const { return sequence_->truncate_floor(); }

void DeviceCaches::truncate(std::int64_t length) {
  const Turn turn(stores_.turn());
  sequence_->truncate(length);
}

void DeviceCaches::step_begin(bool) {
  if (begun_) return;
  stores_.turn().lock();  // until the step ends; Stages::begin prepares it, which knows its tokens
  begun_ = true;
}

void DeviceCaches::step_commit() noexcept {
  if (!begun_) return;
  sequence_->commit();
  begun_ = false;
  stores_.turn().unlock();
}

void DeviceCaches::step_rollback() noexcept {
  if (!begun_) return;
  sequence_->rollback();
  begun_ = false;
  stores_.turn().unlock();
}

std::unique_ptr<SequenceCaches> DeviceCaches::fork() const {
  const Turn turn(stores_.turn());
  return std::unique_ptr<SequenceCaches>(new DeviceCaches(stores_, store_, sequence_->fork()));
}

std::shared_ptr<const SequenceMark> DeviceCaches::mark() const {
  const Turn turn(stores_.turn());
  return std::make_shared<DeviceMark>(stores_, store_, sequence_->mark());
}

void DeviceCaches::rewind(const SequenceMark& mark) {
  const Turn turn(stores_.turn());
  sequence_->rewind(device_mark(mark));
}

std::unique_ptr<SequenceCaches> DeviceCaches::fork_at(const SequenceMark& mark) const {
  const Turn turn(stores_.turn());
  return std::unique_ptr<SequenceCaches>(
      new DeviceCaches(stores_, store_, sequence_->fork_at(device_mark(mark))));
}

void DeviceCaches::fill(std::int64_t length, std::uint32_t seed) {
  const Turn turn(stores_.turn());
  cache_fill_random(*sequence_, length, seed, stores_.queue());
}

std::vector<Cache> DeviceCaches::to_host() const {
  const Turn turn(stores_.turn());
  const DeviceScope scope(*stores_.queue().device);
  std::vector<Cache> caches;
  for (int i = 0; i < store_->layers(); ++i) {
    caches.push_back(cache_to_host(*store_, i, sequence_->held(), stores_.queue()));
  }
  return caches;
}

std::vector<std::optional<Cache>> DeviceCaches::mark_to_host(const SequenceMark& mark) const {
  const Turn turn(stores_.turn());
  const DeviceScope scope(*stores_.queue().device);
  std::vector<std::optional<Cache>> caches(store_->specs().size());
  for (int i = 0; i < store_->layers(); ++i) {
    if (layer_is_dense(store_->spec(i))) continue;
    caches[static_cast<std::size_t>(i)] =
        cache_to_host(*store_, i, device_mark(mark).held(), stores_.queue());
  }
  return caches;
}

std::shared_ptr<const SequenceMark> DeviceCaches::mark_from_host(
    std::int64_t position, std::vector<std::optional<Cache>> caches) const {
  const Turn turn(stores_.turn());
  const DeviceScope scope(*stores_.queue().device);
  if (caches.size() != store_->specs().size() || position > length()) {
    fail_incompatible("a mark at {} does not belong to caches of {} tokens", position, length());
  }
  // Its representatives are the first of this sequence's: they never change.
  PageList pages = *sequence_->held().pages;
  pages.cut(store_->pages_for(position));
  std::int64_t queries_first = position;
  for (const std::optional<Cache>& cache : caches) {
    if (cache) queries_first = std::min(queries_first, host_queries_first({&*cache, 1}));
  }
  CacheMark mark{position, queries_first, WindowHandle(store_, position), std::move(pages)};
  for (int i = 0; i < store_->layers(); ++i) {
    const std::optional<Cache>& cache = caches[static_cast<std::size_t>(i)];
    if (layer_is_dense(store_->spec(i)) == cache.has_value() ||
        (cache && cache->length() != position)) {
      fail_incompatible("a mark at {} has not the layers of these caches", position);
    }
    if (!cache) continue;
    cache_from_host(*cache, stores_.view(*store_, i), mark.held(), HostPart::window,
                    stores_.products(), stores_.queue());
  }
  return std::make_shared<DeviceMark>(stores_, store_, std::move(mark));
}

}  // namespace lca::cuda
