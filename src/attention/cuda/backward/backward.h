#pragma once
/// Backward of prefill attention on the GPU (mechanism §8): gradients of queries, keys, values and
/// biases. Scores are computed again from the forward pass's log-sum-exp, never stored.
///
/// Sums have a fixed order and no atomics take part, so that gradients are the same bits in every
/// run. Memory grows with the tokens alone.

#include <span>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Rows that are written: element (row, head, i) at data[row·row_stride + head·head_stride + i], as
/// wide as what they are the gradient of. Null data: not wanted.
struct GradRows {
  bf16* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

/// Gradients of KeyRows. MLA's `rope` is summed over the heads.
struct KeyGrads {
  GradRows nope, rope, value;
};

/// Runs are whole documents: query_first and exact_gone are 0. Of every gradient that is wanted
/// the rows of each document are written: query_count of queries and of `exact`,
/// groups(query_count) of `groups` and of `dbias`. No other row is touched.
struct PrefillBackward {
  Prefill forward;  ///< with `out` and `lse` as the forward pass wrote them
  HeadRows dout;    ///< [rows][H][d_v], gradient of `out`
  GradRows q_nope, q_rope;
  KeyGrads exact, groups;
  float* dbias = nullptr;  ///< [rows][KV], as Prefill::bias; null: not wanted
  int blocks = 0;          ///< thread blocks that the fast kernels use at most; 0: the whole GPU
};

/// Whether the Hopper kernels cover these widths and alignments; everything else is portable.
bool backward_has_fast(const PrefillBackward& problem);

/// Bytes of device scratch that `backward` needs.
std::size_t backward_workspace_bytes(const PrefillBackward& problem,
                                     std::span<const PrefillRun> runs, Kernels kernels);

/// Computes the gradients. Enqueued on the stream; `workspace` must live until the stream has
/// passed it.
void backward(const PrefillBackward& problem, std::span<const PrefillRun> runs, void* workspace,
              Kernels kernels, const Queue& queue);

}  // namespace lca::cuda
