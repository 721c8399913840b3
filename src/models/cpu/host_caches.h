#pragma once
/// A sequence's caches in host memory, for models that run on the CPU.

#include <span>

#include "models/sequence.h"

namespace lca {

class HostMark final : public SequenceMark {
 public:
  HostMark(std::int64_t position, std::vector<std::optional<Cache>> caches)
      : position_(position), caches_(std::move(caches)) {}

  std::int64_t position() const override { return position_; }
  std::size_t bytes() const override;
  const std::vector<std::optional<Cache>>& caches() const { return caches_; }

 private:
  std::int64_t position_;
  std::vector<std::optional<Cache>> caches_;  // empty where the layer can be truncated instead
};

class HostCaches final : public SequenceCaches {
 public:
  explicit HostCaches(std::span<const LayerSpec> layers);
  explicit HostCaches(std::vector<Cache> layers) : layers_(std::move(layers)) {}

  Cache& layer(std::size_t index) { return layers_[index]; }

  std::int64_t length() const override { return layers_.front().length(); }
  std::size_t bytes() const override;
  std::size_t shared_bytes() const override;
  std::size_t workspace_bytes() const override;
  std::int64_t truncate_floor() const override;
  void truncate(std::int64_t length) override;
  void step_begin(bool staged) override;
  void step_commit() noexcept override;
  void step_rollback() noexcept override;
  std::unique_ptr<SequenceCaches> fork() const override;
  std::unique_ptr<FrozenCaches> freeze(std::span<const FrozenCaches* const> alike,
                                       const std::shared_ptr<FrozenBytes>& count) const override;
  std::shared_ptr<const SequenceMark> mark() const override;
  void rewind(const SequenceMark& mark) override;
  std::unique_ptr<SequenceCaches> fork_at(const SequenceMark& mark) const override;
  std::vector<Cache> to_host() const override;
  std::vector<std::optional<Cache>> mark_to_host(const SequenceMark& mark) const override;
  std::shared_ptr<const SequenceMark> mark_from_host(
      std::int64_t position, std::vector<std::optional<Cache>> caches) const override;

 private:
  std::vector<Cache> layers_;
};

}  // namespace lca
