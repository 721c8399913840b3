#pragma once
/// Attention methods behind one interface: dense, lca, window.

#include <lca/cache.h>
#include <lca/context.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace lca {

/// MLA's up-projections; GQA has none and leaves both empty.
struct LayerWeights {
  ConstTensor w_uk;  ///< [H,d_n,d_c]
  ConstTensor w_uv;  ///< [H,d_v,d_c]
};

/// One sequence's part in a call: a run of L ≥ 1 consecutive tokens.
struct Run {
  Cache* cache = nullptr;
  Queries queries;
  Entries entries;
  float* out = nullptr;  ///< [L,H,d_v]
  float* lse = nullptr;  ///< [L,H], natural log; null: not wanted
};

/// An attention method: what a cache keeps, and what a query sees. Stateless; all state is in the
/// caches. Each call takes a batch of runs of any lengths, each with a cache of its own.
class Method {
 public:
  virtual ~Method() = default;
  virtual std::string_view name() const = 0;

  /// Takes the runs' entries into their caches and condenses every group that left the window.
  /// In `prompt` mode nothing is condensed until `prompt_ends`: then all that left it is, with the
  /// last queries. `queries` may there hold only the last tokens of a run. Outputs are not touched.
  virtual void take(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                    bool prompt_ends = true) const = 0;

  /// Writes outputs of queries at positions first[i] … of each run; their tokens must have been
  /// taken, and not released since.
  virtual void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                      std::span<const std::int64_t> first) const = 0;

  /// Drops what no later query will see.
  virtual void release(Cache& cache) const = 0;

  /// One chunk of a prompt, or one decoded token: take, attend, release.
  void forward(Context& context, const LayerWeights& weights, std::span<const Run> runs) const;
};

/// The method a layer's settings ask for.
const Method& method_for(MethodKind kind);

/// The most scratch memory a context needs for a run of `run` tokens that ends at `length`.
std::size_t attention_workspace_bytes(const LayerSpec& spec, std::int64_t length, std::int64_t run,
                                      int threads);

}  // namespace lca
