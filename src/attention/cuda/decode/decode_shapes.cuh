#pragma once
/// The widths that have a tensor-core decode kernel.

#include "attention/cuda/decode/decode_tiles.cuh"

namespace lca::cuda::decoding {

using MlaWide = Row<Form::mla, 512, 64, 1, 8>;
/// Converting a quantised tile is work for more threads.
using MlaWideQuantised = Row<Form::mla, 512, 64, 1, 16>;
using MlaNarrow = Row<Form::mla, 256, 32, 3, 8>;
using GqaWide = Row<Form::gqa, 128, 128, 1, 8>;
using GqaNarrow = Row<Form::gqa, 64, 64, 1, 8>;

}  // namespace lca::cuda::decoding
