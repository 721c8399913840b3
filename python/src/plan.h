#pragma once
/// What is fixed about an operator's call, and where it runs.

#include "views.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lca::python {

using MaybeView = std::optional<View>;

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

/// Everything about a call that is not a tensor.
struct Plan {
  OperatorSpec entry;   // one entry of the batch
  OperatorSpec packed;  // all of them as documents
  std::int64_t batch = 1;
  Backend backend = Backend::cpu;
  int device = 0;
  bool portable = false;

  /// Representatives of one entry of the batch.
  std::int64_t groups() const { return entry.groups(); }

  OperatorPlace place(std::uintptr_t stream, std::uintptr_t workspace) const {
    OperatorPlace place;
    place.backend = backend;
    place.device = device;
    place.stream = reinterpret_cast<void*>(stream);
    place.workspace = reinterpret_cast<void*>(workspace);
    place.portable = portable;
    return place;
  }

  bool packs(std::initializer_list<const BatchedView*> tensors) const {
    const bool one_document = entry.layer.settings.summary == Summary::prompt &&
                              entry.layer.settings.method == MethodKind::lca;
    return batch == 1 ||
           (!one_document && std::all_of(tensors.begin(), tensors.end(),
                                         [](auto* tensor) { return tensor->is_packed(); }));
  }

  /// Calls `call(spec, at, place)` once with at = −1 for all entries, or for each of them.
  template <typename Call>
  void run(bool together, std::uintptr_t stream, std::uintptr_t workspace, Call&& call) const {
    const nb::gil_scoped_release unlocked;
    OperatorPlace where = place(stream, workspace);
    std::optional<ContextLease> lease;
    if (backend == Backend::cpu) where.context = lease.emplace().get();
    if (together) return call(packed, std::int64_t{-1}, where);
    for (std::int64_t at = 0; at < batch; ++at) call(entry, at, where);
  }
};

/// `dims`: heads, kv_heads, d_nope, d_rope, d_latent, d_value; `settings`: "group=16 window=1024
/// …".
Plan plan_make(bool mla, const std::array<std::int64_t, 6>& dims, const std::string& settings,
               double scale, std::vector<double> frequencies, const std::string& rope_layout,
               std::int64_t batch, std::int64_t tokens,
               const std::optional<std::vector<std::int64_t>>& starts, const std::string& backend,
               int device, bool portable);

/// Whether a call with these tensors is one call for the whole batch.
bool plan_packs(const Plan& plan, const std::vector<MaybeView>& views);

/// Device scratch of a part: "condense", "condense_backward", "attend", "attend_backward".
std::size_t workspace_bytes(const Plan& plan, const std::string& part);

}  // namespace lca::python
