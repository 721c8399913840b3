#pragma once
/// What is fixed about an operator's call, and where it runs.

#include "exchange.h"
#include "views.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lca::python {

/// A context for the length of a call, out of those that no other call is using.
class ContextLease {
 public:
  ContextLease();
  ~ContextLease();
  ContextLease(const ContextLease&) = delete;
  ContextLease& operator=(const ContextLease&) = delete;
  Context* get() { return context_.get(); }

 private:
  std::unique_ptr<Context> context_;
};

/// Threads of later calls; 0: one per core.
void contexts_set_threads(int threads);

/// What tells one plan from another.
struct PlanSpec {
  bool mla = false;
  std::array<std::int64_t, 6> dims{};  // heads, kv_heads, d_nope, d_rope, d_latent, d_value
  std::string settings;                // "group=16 window=1024 …"
  double scale = 0;
  std::vector<double> frequencies;
  std::string rope_layout;
  std::int64_t batch = 1;
  std::int64_t tokens = 0;
  std::optional<std::vector<std::int64_t>> starts;
  Backend backend = Backend::cpu;
  int device = 0;
  bool portable = false;
};

/// Everything about a call that is not a tensor.
class Plan {
 public:
  explicit Plan(const PlanSpec& spec);

  /// Representatives of one entry of the batch.
  std::int64_t groups() const { return entry.groups(); }

  bool packs(std::initializer_list<const BatchedView*> tensors) const {
    const bool one_document = entry.layer.settings.summary == Summary::prompt &&
                              entry.layer.settings.method == MethodKind::lca;
    return batch == 1 ||
           (!one_document && std::all_of(tensors.begin(), tensors.end(),
                                         [](auto* tensor) { return tensor->is_packed(); }));
  }

  /// The view of an argument. Throws Error where it lies on another device than the plan's.
  MaybeView view(nb::handle tensor) const;

  /// Calls `call(spec, at, place)` once with at = −1 for all entries, or for each of them; on a GPU
  /// on PyTorch's current stream, with scratch that its allocator takes back in stream order.
  template <typename Call>
  void run(OperatorPart part, bool together, Call&& call) const {
    OperatorPlace where = place();
    std::optional<TorchScratch> scratch;
    if (backend == Backend::cuda) {
      where.stream = torch_stream(device);
      where.workspace = scratch.emplace(device, workspace_bytes(part)).data();
    }
    const nb::gil_scoped_release unlocked;
    std::optional<ContextLease> lease;
    if (backend == Backend::cpu) where.context = lease.emplace().get();
    if (together) return call(packed, std::int64_t{-1}, where);
    for (std::int64_t at = 0; at < batch; ++at) call(entry, at, where);
  }

  OperatorSpec entry;   // one entry of the batch
  OperatorSpec packed;  // all of them as documents
  std::int64_t batch = 1;
  Backend backend = Backend::cpu;
  int device = 0;
  bool portable = false;

 private:
  OperatorPlace place() const;
  /// Device scratch of a part, asked for once.
  std::size_t workspace_bytes(OperatorPart part) const;

  mutable std::array<std::atomic<std::size_t>, 4> bytes_{};  // 0: not asked for yet
};

/// The plan of a call, out of those that calls had before. They live on this side, so that none is
/// left to Python when it ends.
std::shared_ptr<const Plan> plan_find(const PlanSpec& spec);

Backend backend_parse(const std::string& name);

}  // namespace lca::python
