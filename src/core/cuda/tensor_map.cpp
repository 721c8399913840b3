#include "core/cuda/tensor_map.h"

#include "core/cuda/device.h"
#include "core/error.h"

#include <algorithm>

namespace lca::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  // The driver's function, the same for every GPU.
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          "asking the driver for tensor maps");
    if (found != cudaDriverEntryPointSuccess)
      fail_internal("the GPU driver has no tensor maps; update it");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const HeadRows& rows, std::int64_t heads, std::int64_t count, int box_rows) {
  CUtensorMap map{};
  const int columns = std::min(rows.width, 64);
  const bool shared = rows.head_stride == 0;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(rows.width),
                               shared ? 1 : static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(std::max<std::int64_t>(count, 1))};
  const std::int64_t head_stride = shared ? rows.row_stride : rows.head_stride;
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_stride) * 2,
                                 static_cast<cuuint64_t>(rows.row_stride) * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(columns), 1,
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t ones[3] = {1, 1, 1};
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
                     const_cast<void*>(static_cast<const void*>(rows.data)), sizes, strides, box,
                     ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail_internal("the GPU driver refused a tensor map (error {})", static_cast<int>(result));
  return map;
}

bool tensor_map_fits(const HeadRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 8 == 0 &&
         rows.head_stride % 8 == 0;
}

}  // namespace lca::cuda
