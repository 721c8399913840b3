#pragma once
/// Which experts a row passes: the router's product, the choice, and the sorting of rows by expert.

#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// How experts are chosen, as on the CPU (models/cpu/experts.h): softmax of the logits, the highest
/// scores, ties to the lower index.
struct RouteRule {
  int experts = 0;             ///< to choose from
  int per_token = 0;           ///< chosen for a row
  bool group_limited = false;  ///< only experts of the groups with the best single expert
  int groups = 1;              ///< … groups of consecutive experts
  int top_groups = 1;          ///< … of which so many are kept
  bool normalise = false;      ///< chosen weights sum to one
  float scale = 1;             ///< multiplies the chosen weights
};

/// Most experts a router may have: a warp keeps a row's scores in its registers.
inline constexpr int kMostExperts = 512;

/// The choice for `rows` rows. All pointers are device memory.
struct Route {
  const bf16* x = nullptr;        ///< [rows][hidden], normed
  const float* router = nullptr;  ///< [experts][hidden]
  const float* bias = nullptr;    ///< [experts], added to the logits; or null
  const int* forced = nullptr;    ///< [rows][per_token]: these experts instead; or null
  int rows = 0;
  int hidden = 0;
  float* logits = nullptr;   ///< [rows][experts]
  int* chosen = nullptr;     ///< [rows][per_token], best first
  float* weights = nullptr;  ///< [rows][per_token]
};

/// Enqueues the logits alone.
void route_logits(const RouteRule& rule, const Route& route, const Queue& queue);

/// Enqueues logits, choice and weights.
void route_choose(const RouteRule& rule, const Route& route, const Queue& queue);

/// Rows sorted by expert: those of expert e are `begin[e]` … `begin[e + 1]` − 1 of the sorted
/// order, by row number. Shared experts follow, each with all rows.
struct Sorted {
  int* begin = nullptr;   ///< [experts + shared + 1]
  int* place = nullptr;   ///< [rows][per_token + shared]: where a row's visits are in the order
  int* source = nullptr;  ///< [rows · (per_token + shared)]: which row is there
};
void route_sort(const RouteRule& rule, int shared, const int* chosen, int rows, const Sorted& out,
                const Queue& queue);

/// out[i] = x[source[i]] for `count` rows of `hidden` values.
void route_gather(const bf16* x, const int* source, std::int64_t count, int hidden, bf16* out,
                  const Queue& queue);

/// residual[row] += Σ weights[row][i] · y[place[row][i]], shared experts with weight 1, added in
/// this order.
struct Combine {
  const bf16* y = nullptr;         ///< [rows · (per_token + shared)][hidden]
  const int* place = nullptr;      ///< as in Sorted
  const float* weights = nullptr;  ///< [rows][per_token]
  float* residual = nullptr;       ///< [rows][hidden]
  int rows = 0, hidden = 0, per_token = 0, shared = 0;
};
void route_combine(const Combine& combine, const Queue& queue);

}  // namespace lca::cuda
