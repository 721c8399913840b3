#include "models/sequence.h"

#include <utility>

#include "core/error.h"

namespace lca {
namespace {

/// Frozen caches that are whole copies, for devices that share representatives alone.
class ForkedCaches final : public FrozenCaches {
 public:
  explicit ForkedCaches(std::unique_ptr<SequenceCaches> caches) : caches_(std::move(caches)) {}

  std::unique_ptr<SequenceCaches> thaw() const override { return caches_->fork(); }
  std::size_t bytes() const override {
    return caches_->bytes() - caches_->shared_bytes() + caches_->workspace_bytes();
  }
  std::size_t shared_bytes() const override { return caches_->shared_bytes(); }

 private:
  std::unique_ptr<SequenceCaches> caches_;
};

}  // namespace

std::unique_ptr<FrozenCaches> SequenceCaches::freeze(std::span<const FrozenCaches* const>,
                                                     const std::shared_ptr<FrozenBytes>&) const {
  return std::make_unique<ForkedCaches>(fork());
}

void SequenceCaches::fill(std::int64_t, std::uint32_t) {
  fail_incompatible("caches are filled with random numbers on a GPU only; read a prompt instead");
}

}  // namespace lca
