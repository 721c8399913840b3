#pragma once
/// A sequence's caches on a GPU, and the stores they are in.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "attention/cuda/calls.h"
#include "models/sequence.h"

namespace lca::cuda {

/// What caches of one model on one GPU share: a store for each list of layer specs, the stream that
/// all of them work on, and the weights that summaries are made with.
class DeviceStores {
 public:
  /// One layer's up-projections; null for GQA.
  struct Weights {
    const bf16* w_uk = nullptr;  ///< [H][d_n][d_c]
    const bf16* w_uv = nullptr;  ///< [H][d_v][d_c]
  };

  /// `queue` and `products` must outlive the object.
  DeviceStores(const Queue& queue, std::vector<Weights> weights, GroupType type,
               const StoreLimits& limits, const ProductSpace& products,
               Kernels kernels = Kernels::fast);

  /// The store for these layers: as long as caches are in it, and some time after, the same one.
  std::shared_ptr<CacheStore> store(std::span<const LayerSpec> layers);
  LayerView view(const CacheStore& store, int layer) const;

  /// Steps and everything else that changes caches take turns: every DeviceCaches of a step holds
  /// this from step_begin until the step ends, in one thread.
  std::recursive_mutex& turn() const { return turn_; }
  const Queue& queue() const { return queue_; }
  const ProductSpace& products() const { return products_; }
  /// Memory of all stores.
  StoreBytes backed() const;
  /// Gives back what is kept for the next windows.
  void trim() noexcept;

 private:
  Queue queue_;
  std::vector<Weights> weights_;
  GroupType type_;
  StoreLimits limits_;
  ProductSpace products_;
  Kernels kernels_;
  mutable std::recursive_mutex turn_;
  std::vector<std::shared_ptr<CacheStore>> stores_;  // the last used is last
};

class DeviceMark final : public SequenceMark {
 public:
  DeviceMark(DeviceStores& stores, std::shared_ptr<CacheStore> store, CacheMark mark)
      : stores_(stores), store_(std::move(store)), mark_(std::move(mark)) {}
  ~DeviceMark() override;

  std::int64_t position() const override;
  std::size_t bytes() const override;
  const CacheMark& mark() const { return *mark_; }

 private:
  DeviceStores& stores_;
  std::shared_ptr<CacheStore> store_;
  std::optional<CacheMark> mark_;
};

/// Must not outlive its DeviceStores.
class DeviceCaches final : public SequenceCaches {
 public:
  DeviceCaches(DeviceStores& stores, std::span<const LayerSpec> layers);
  /// From host memory: a file, or another device.
  DeviceCaches(DeviceStores& stores, const std::vector<Cache>& caches);
  ~DeviceCaches() override;

  CacheStore& store() const { return sequence_->store(); }
  /// What Stages need: prepare, step_row, chunk. `step_commit` and `step_rollback` end the step.
  CacheSequence& sequence() { return *sequence_; }

  std::int64_t length() const override;
  std::size_t bytes() const override;
  std::size_t shared_bytes() const override;
  std::size_t workspace_bytes() const override;
  std::int64_t truncate_floor() const override;
  void truncate(std::int64_t length) override;
  void step_begin(bool staged) override;
  void step_commit() noexcept override;
  void step_rollback() noexcept override;
  std::unique_ptr<SequenceCaches> fork() const override;
  std::shared_ptr<const SequenceMark> mark() const override;
  void rewind(const SequenceMark& mark) override;
  std::unique_ptr<SequenceCaches> fork_at(const SequenceMark& mark) const override;
  std::vector<Cache> to_host() const override;
  std::vector<std::optional<Cache>> mark_to_host(const SequenceMark& mark) const override;
  std::shared_ptr<const SequenceMark> mark_from_host(
      std::int64_t position, std::vector<std::optional<Cache>> caches) const override;

 private:
  DeviceCaches(DeviceStores& stores, std::shared_ptr<CacheStore> store,
               std::unique_ptr<CacheSequence> sequence);

  DeviceStores& stores_;
  std::shared_ptr<CacheStore> store_;
  std::unique_ptr<CacheSequence> sequence_;
  bool begun_ = false;  // a step, which holds the turn
};

}  // namespace lca::cuda
