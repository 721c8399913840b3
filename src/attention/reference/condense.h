#pragma once
/// Scores, condensation and mass (mechanism §3–§5).

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

/// Condenses every group that has left the window at the end of the sequence.
Representatives condense(const LayerSpec& spec, const Projections& projections,
                         const Sequence& sequence, std::span<const Range> prompts);

}  // namespace lca::reference
