#pragma once
/// One decode step of one layer for a batch of sessions on the GPU.

#include "attention/cuda/views.h"

namespace lca::cuda {

/// One step: takes each session's new token into its window, condenses the group that leaves it (if
/// one does), and attends, all in one launch without the host.
struct Decode {
  AttentionShape shape;
  Settings settings;
  RotationView rotation;  ///< queries and new tokens are given at token positions
  float scale = 0;
  GroupPool pool;
  ExactPool
      exact;  ///< where all sessions' exact tokens lie; Hopper's kernel for wide latents needs it
  SessionView* sessions = nullptr;  ///< device memory, [batch]
  int batch = 0;
  /// MLA: absorbed, [batch][H][d_c + d_r] (W_ukᵀq_nope, then q_rope); GQA: [batch][H][d].
  const bf16* queries = nullptr;
  /// MLA with method lca: the new tokens' queries as condensing reduces them, [batch]
  /// [summary_width] float, from unrounded absorbed queries (mechanism §3). GQA: not read, the sum
  /// of `queries` over heads is it.
  const float* summary = nullptr;
  const bf16* semantic = nullptr;    ///< the new tokens' entries, [batch][KV][d_semantic]
  const bf16* positional = nullptr;  ///< [batch][KV][d_positional]
  bf16* out = nullptr;               ///< MLA: latent, [batch][H][d_c]; GQA: [batch][H][d_v]
  float* lse = nullptr;              ///< [batch][H], natural log; may be null
};

/// How a step is cut over the GPU. Made on the host from lengths that need only be about right:
/// results do not depend on it, and one plan serves many steps.
struct DecodePlan {
  int chunk = 0;    ///< the fewest cache entries that are worth a block
  int blocks = 0;   ///< blocks that share the entries of one job
  int cluster = 1;  ///< blocks of a job that reduce among themselves first; 1 without clusters
  int jobs = 1;     ///< parts of a session that have nothing to do with each other (heads)
  int batch = 0;
  std::size_t workspace_bytes = 0;
};

/// `longest` is an upper bound on any session's length while the plan is used; `lengths` are the
/// sessions' lengths now.
DecodePlan decode_plan(const Device& device, const AttentionShape& shape, const Settings& settings,
                       GroupType type, const std::int64_t* lengths, int batch, std::int64_t longest,
                       Kernels kernels);

/// Enqueues the step. `workspace` must be zero before the first use and is left ready for the next;
/// one workspace, zero at first, may serve several plans as long as their counters, batch · (1 + 8
/// · jobs) words, fit into its first MiB. All rows must begin on 16 bytes where their widths allow
/// that (as cudaMalloc's memory does).
void decode(const Decode& step, const DecodePlan& plan, void* workspace, Kernels kernels,
            const Queue& queue);

}  // namespace lca::cuda
