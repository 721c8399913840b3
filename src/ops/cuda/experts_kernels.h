#pragma once
/// The grouped products that experts_run is made of, one entry per kind of kernel.

#include <cstddef>
#include <cstdint>

#include "ops/cuda/experts.h"

namespace lca::cuda {

/// Rows sorted by expert times their expert's weights. With `glu`, weight rows are gate and up in
/// turn (ExpertsWeights) and out = silu(gate) · up, half as wide.
struct Grouped {
  const bf16* x = nullptr;      ///< [rows][inner]
  const int* source = nullptr;  ///< row of x that each sorted row is; null: its own number
  const bf16* w = nullptr;      ///< [experts][columns][inner]
  const int* begin = nullptr;   ///< [experts + 1] first sorted row of each expert
  bf16* out = nullptr;          ///< [sorted rows][columns, or columns / 2 with glu]
  int experts = 0;
  int columns = 0, inner = 0;
  std::int64_t sorted_rows = 0;  ///< of all experts together, known to the host
  std::int64_t rows_most = 0;    ///< of one expert, at most
  bool glu = false;
};

void grouped_portable(const Grouped& grouped, const Queue& queue);

/// On Hopper the rows are gathered first; those of experts from `shared_from` on are `shared_x`
/// itself, which is [shared_rows][inner].
struct GroupedRows {
  const bf16* shared_x = nullptr;  ///< null: `x` holds the rows of all experts
  std::int64_t shared_rows = 0;
  int shared_from = 0;
};
/// Tiles of 128 rows × 256 columns: many rows.
void grouped_sm90(const Grouped& grouped, const GroupedRows& rows, const Queue& queue);
/// Weights as the large operand, each tile read once for up to 64 rows: few rows, bound by memory.
void grouped_stream_sm90(const Grouped& grouped, const GroupedRows& rows, const Queue& queue);
/// Whether the last two take these sizes.
bool grouped_has_fast(const ExpertsShape& shape);

/// Up to kFewRows rows in three kernels, without sorting: all rows pass every expert that one of
/// them chose, which costs nothing while the weights are being read, and count with weight 0 where
/// they did not choose it.
inline constexpr int kFewRows = 8;
struct Few {
  Route route;                ///< its rows are those that pass
  bf16* act = nullptr;        ///< [experts hit][kFewRows][stored_width]
  int* hits = nullptr;        ///< [1 + experts]: how many experts are passed, and which
  float* weights = nullptr;   ///< [experts][kFewRows]: of the experts passed, by row
  float* residual = nullptr;  ///< [rows][hidden]
};
bool few_fits(const ExpertsShape& shape);
void few_run(const ExpertsShape& shape, const ExpertsWeights& weights, const Few& few,
             const Queue& queue);

}  // namespace lca::cuda
