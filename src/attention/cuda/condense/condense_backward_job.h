#pragma once
/// What the kernels of condensation's backward pass share.

#include "attention/cuda/condense/condense_job.h"

namespace lca::cuda {

/// The arguments of both kernels. forward.out_scores are read, forward's other outputs are not
/// used.
struct CondenseBackwardJob {
  CondenseJob forward;
  HeadRows grad_semantic;
  HeadRows grad_positional;
  const float* grad_bias;  ///< null unless mass is `score`
  OutRows semantic;
  OutRows positional;
  bool accumulate;
  bf16* summary_semantic;
  float* summary_positional;
};

/// The kernel for everything that no fast instance covers.
void condense_backward_plain(const CondenseBackwardJob& job, const Queue& queue);

}  // namespace lca::cuda
