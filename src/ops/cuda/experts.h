#pragma once
/// Mixture of experts on the GPU: router, grouped products and combination, enqueued without a host
/// round trip and without allocation, so that a call can be captured.

#include <cstddef>
#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"
#include "ops/cuda/route.h"

namespace lca::cuda {

/// One layer's mixture. `shared` experts of the same width are passed by every row with weight 1:
/// a fused feed-forward of width shared · width, cut into pieces.
struct ExpertsShape {
  int hidden = 0;
  int width = 0;
  int shared = 0;
  RouteRule route;

  int experts() const { return route.experts + shared; }    ///< stored, shared ones last
  int visits() const { return route.per_token + shared; }   ///< experts that a row passes
  int stored_width() const { return (width + 7) / 8 * 8; }  ///< zeros behind `width`
  std::int64_t gate_up_elements() const {
    return std::int64_t{2} * experts() * stored_width() * hidden;
  }
  std::int64_t down_elements() const { return std::int64_t{experts()} * hidden * stored_width(); }
};

/// Weights in device memory, aligned to 16 bytes. Gate and up rows alternate in blocks of eight:
/// rows 16i … 16i + 7 of an expert are gate rows 8i … 8i + 7, the next eight the up rows of the
/// same numbers. expert_store writes both arrays.
struct ExpertsWeights {
  const float* router = nullptr;       ///< [route.experts][hidden]
  const float* router_bias = nullptr;  ///< [route.experts], added to the logits; or null
  const bf16* gate_up = nullptr;       ///< [experts()][2 · stored_width()][hidden]
  const bf16* down = nullptr;          ///< [experts()][hidden][stored_width()]
};

/// One expert as checkpoints have it, in device memory. Of a fused feed-forward of shared experts,
/// piece s begins at gate and up row s · width and at column s · width of down.
struct ExpertSource {
  const bf16* gate = nullptr;    ///< [width][hidden]
  const bf16* up = nullptr;      ///< [width][hidden]
  const bf16* down = nullptr;    ///< [hidden][width], row stride down_stride
  std::int64_t down_stride = 0;  ///< elements
};
/// Enqueues the arrangement of expert `index` (shared ones: route.experts + s) into the two arrays.
void expert_store(const ExpertsShape& shape, int index, const ExpertSource& source, bf16* gate_up,
                  bf16* down, const Queue& queue);

/// What is computed: residual[rows][hidden] += Σ weight · down(silu(gate(x)) · up(x)).
struct ExpertsCall {
  const bf16* x = nullptr;    ///< [rows][hidden], normed; aligned to 16 bytes
  float* residual = nullptr;  ///< [rows][hidden]; aligned to 16 bytes
  std::int64_t rows = 0;
  const int* forced = nullptr;  ///< [rows][per_token]: experts to pass instead of choosing; or
                                ///< null. Their weights are the router's.
  int* chosen = nullptr;        ///< [rows][per_token]: receives the experts passed; or null
};

/// Rows that are computed together; calls with more go through the workspace in slices.
inline constexpr std::int64_t kExpertRowsAtOnce = 16384;

/// Device memory that a call of up to `rows` rows needs. Alignment 256; contents may be anything,
/// and calls on one stream may share it.
std::size_t experts_workspace(const ExpertsShape& shape, std::int64_t rows);

/// Enqueues one layer's mixture. Two runs give the same bits. A row's result does not depend on
/// what the other rows are, as long as the number of rows chooses the same kernels (experts_path);
/// with `few` they may change the order in which a sum is added up.
void experts_run(const ExpertsShape& shape, const ExpertsWeights& weights, const ExpertsCall& call,
                 void* workspace, Kernels kernels, const Queue& queue);

/// The kernels that a call of so many rows uses.
enum class ExpertsPath {
  few,       ///< weights streamed through registers, a handful of rows
  stream,    ///< Hopper: weights as the large operand, up to a few hundred rows
  grouped,   ///< Hopper: rows sorted by expert, tiles of 128 rows
  portable,  ///< every GPU, every shape
};
ExpertsPath experts_path(const ExpertsShape& shape, std::int64_t rows, Kernels kernels,
                         const Device& device);

}  // namespace lca::cuda
