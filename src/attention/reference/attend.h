#pragma once
/// Attention of one sequence over sink, representatives and window (mechanism §2, §10), and its
/// gradients, with keys and values as every query head sees them.

#include "attention/reference/condense.h"
#include "attention/reference/heads.h"

#include <vector>

namespace lca::reference {

/// Keys [rows,H,d_h] and values [rows,H,d_v].
struct HeadRows {
  Array keys, values;
};

/// All that queries see, and the queries. Also its gradients: of the same shapes.
struct Scene {
  Array queries;             ///< [n,H,d_h], rotated at token positions
  HeadRows exact;            ///< n rows
  HeadRows groups;           ///< m rows, keys as they are kept
  std::vector<double> bias;  ///< [m,KV]
};

/// Keys and values of a sequence and of its representatives.
Scene rebuild_scene(const AttentionShape& shape, const Projections& projections,
                    const Sequence& sequence, const Representatives& representatives);

struct Attended {
  Array out;  ///< [n,H,d_v]
  Array lse;  ///< [n,H,1], natural log
};

/// Query t attends to representatives j < m(t+1) and to tokens of local(t+1).
Attended attend(const LayerSpec& spec, const Scene& scene);

/// The gradients of everything in the scene. `given_out` [n,H,d_v]: taken for the output, which is
/// else computed again.
Scene attend_backward(const LayerSpec& spec, const Scene& scene, const Array& out_grad,
                      const Array* given_out = nullptr);

}  // namespace lca::reference
