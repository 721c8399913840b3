#pragma once
/// Scores, condensation and mass (mechanism §3–§5), and their gradients (§8).

#include "attention/layout.h"
#include "attention/reference/heads.h"

#include <cstdint>
#include <span>
#include <vector>

namespace lca::reference {

/// The m representatives of a sequence.
struct Representatives {
  Array semantic;              ///< [m,KV,d_semantic]
  Array positional;            ///< [m,KV,d_positional]
  std::vector<double> bias;    ///< [m,KV]
  std::vector<double> scores;  ///< [m,KV,g]
  std::vector<double> top;     ///< [m,KV]
  std::vector<double> margin;  ///< [m,KV]
};

/// One sequence in double precision.
struct Sequence {
  Array queries;     ///< [n,H,d_h]
  Array semantic;    ///< [n,KV,d_semantic]
  Array positional;  ///< [n,KV,d_positional]
  Array keys;        ///< [n,H,d_h], rebuilt
};

/// Reads tokens `range` and rebuilds their keys.
Sequence read_sequence(const AttentionShape& shape, const Projections& projections,
                       const Queries& queries, const Entries& entries, const Range& range);

/// Condenses every group that has left the window at the end of the sequence.
Representatives condense(const LayerSpec& spec, const Projections& projections,
                         const Sequence& sequence, std::span<const Range> prompts);

/// Gradients of representatives.
struct RepresentativeGrads {
  Array semantic;            ///< [m,KV,d_semantic]
  Array positional;          ///< [m,KV,d_positional]
  std::vector<double> bias;  ///< [m,KV]; has an effect with mass `score` only
};

/// Gradients of a sequence through its representatives.
struct CondenseGrads {
  Array queries;     ///< [n,H,d_h]
  Array semantic;    ///< [n,KV,d_semantic]
  Array positional;  ///< [n,KV,d_positional]
  Array w_uk;        ///< [H,d_n,d_c]
};

/// `scores` [m,KV,g] are those of the forward pass, of any precision: the rows it selected are the
/// best of them. Empty: the reference's own.
CondenseGrads condense_backward(const LayerSpec& spec, const Projections& projections,
                                const Sequence& sequence, std::span<const Range> prompts,
                                std::span<const float> scores, const RepresentativeGrads& grads);

}  // namespace lca::reference
