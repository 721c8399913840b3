#include "models/cpu/host_caches.h"

#include <algorithm>

#include "attention/cache_state.h"
#include "attention/frozen_cache.h"

namespace lca {
namespace {

std::vector<Cache> clones_of(std::span<const Cache> caches) {
  std::vector<Cache> copies;
  copies.reserve(caches.size());
  for (const Cache& cache : caches) copies.push_back(cache.clone());
  return copies;
}

std::vector<std::optional<Cache>> clones_of(const std::vector<std::optional<Cache>>& caches) {
  std::vector<std::optional<Cache>> copies(caches.size());
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (caches[i]) copies[i] = caches[i]->clone();
  }
  return copies;
}

/// Dense attention drops nothing, so its cache can be truncated to any position.
bool can_be_cut(const Cache& cache) { return cache.spec().settings.method == MethodKind::dense; }

/// The caches of `layers` at a mark.
std::vector<Cache> caches_at(std::span<const Cache> layers, const HostMark& mark) {
  std::vector<Cache> at;
  at.reserve(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::optional<Cache>& kept = mark.caches()[i];
    at.push_back(kept ? kept->clone() : layers[i].clone());
    at.back().truncate(mark.position());
  }
  return at;
}

class HostFrozen final : public FrozenCaches {
 public:
  HostFrozen(std::span<const Cache> layers, std::span<const FrozenCaches* const> alike,
             const std::shared_ptr<FrozenBytes>& count) {
    layers_.reserve(layers.size());
    std::vector<const FrozenCache*> others;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      others.clear();
      for (const FrozenCaches* other : alike) {
        others.push_back(&static_cast<const HostFrozen*>(other)->layers_[i]);
      }
      layers_.emplace_back(layers[i], others, count);
    }
  }

  std::unique_ptr<SequenceCaches> thaw() const override {
    std::vector<Cache> layers;
    layers.reserve(layers_.size());
    for (const FrozenCache& layer : layers_) layers.push_back(layer.thaw());
    return std::make_unique<HostCaches>(std::move(layers));
  }
  std::size_t bytes() const override { return layers_.size() * sizeof(FrozenCache); }
  std::size_t shared_bytes() const override {
    std::size_t total = 0;
    for (const FrozenCache& layer : layers_) total += layer.group_bytes();
    return total;
  }

 private:
  std::vector<FrozenCache> layers_;
};

const HostMark& host_mark(const SequenceMark& mark) { return static_cast<const HostMark&>(mark); }

}  // namespace

std::size_t HostMark::bytes() const {
  std::size_t total = 0;
  for (const std::optional<Cache>& cache : caches_) {
    if (!cache) continue;
    const Cache::State& state = cache->state();
    total += state.sink.capacity_bytes() + state.window.capacity_bytes() +
             state.queries.capacity_bytes();
  }
  return total;
}

HostCaches::HostCaches(std::span<const LayerSpec> layers) {
  layers_.reserve(layers.size());
  for (const LayerSpec& layer : layers) layers_.emplace_back(layer);
}

std::size_t HostCaches::bytes() const {
  std::size_t total = 0;
  for (const Cache& cache : layers_) total += cache.bytes();
  return total;
}

std::size_t HostCaches::shared_bytes() const {
  std::size_t total = 0;
  for (const Cache& cache : layers_) total += cache.shared_bytes();
  return total;
}

std::size_t HostCaches::workspace_bytes() const {
  std::size_t total = 0;
  for (const Cache& cache : layers_) total += cache.workspace_bytes();
  return total;
}

std::int64_t HostCaches::truncate_floor() const {
  std::int64_t floor = 0;
  for (const Cache& cache : layers_) floor = std::max(floor, cache.truncate_floor());
  return floor;
}

void HostCaches::truncate(std::int64_t length) {
  for (Cache& cache : layers_) cache.truncate(length);
}

void HostCaches::step_begin(bool staged) {
  try {
    for (Cache& cache : layers_) cache.state().step_begin(staged);
  } catch (...) {
    step_rollback();
    throw;
  }
}

void HostCaches::step_commit() noexcept {
  for (Cache& cache : layers_) cache.state().step_commit();
}

void HostCaches::step_rollback() noexcept {
  for (Cache& cache : layers_) cache.state().step_rollback();
}

std::unique_ptr<SequenceCaches> HostCaches::fork() const {
  return std::make_unique<HostCaches>(clones_of(layers_));
}

std::unique_ptr<FrozenCaches> HostCaches::freeze(std::span<const FrozenCaches* const> alike,
                                                 const std::shared_ptr<FrozenBytes>& count) const {
  return std::make_unique<HostFrozen>(layers_, alike, count);
}

std::shared_ptr<const SequenceMark> HostCaches::mark() const {
  std::vector<std::optional<Cache>> caches(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!can_be_cut(layers_[i])) caches[i] = layers_[i].clone();
  }
  return std::make_shared<HostMark>(length(), std::move(caches));
}

void HostCaches::rewind(const SequenceMark& mark) {
  std::vector<std::optional<Cache>> kept = clones_of(host_mark(mark).caches());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (kept[i]) {
      layers_[i] = std::move(*kept[i]);
    } else {
      layers_[i].truncate(mark.position());
    }
  }
}

std::unique_ptr<SequenceCaches> HostCaches::fork_at(const SequenceMark& mark) const {
  return std::make_unique<HostCaches>(caches_at(layers_, host_mark(mark)));
}

std::vector<Cache> HostCaches::to_host() const { return clones_of(layers_); }

std::vector<std::optional<Cache>> HostCaches::mark_to_host(const SequenceMark& mark) const {
  return clones_of(host_mark(mark).caches());
}

std::shared_ptr<const SequenceMark> HostCaches::mark_from_host(
    std::int64_t position, std::vector<std::optional<Cache>> caches) const {
  return std::make_shared<HostMark>(position, std::move(caches));
}

}  // namespace lca
