#pragma once
/// Tensor maps: descriptions of tensors in memory for Hopper's copy engine (TMA).

#include <cuda.h>

#include <cstdint>

#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// Boxes of `box_rows` rows × up to 64 columns of one head, swizzled as wgmma reads them. Rows
/// before the first and after the last read as zero.
CUtensorMap tensor_map(const HeadRows& rows, std::int64_t heads, std::int64_t count, int box_rows);

/// Whether address and strides are aligned as the copy engine requires.
bool tensor_map_fits(const HeadRows& rows);

}  // namespace lca::cuda
