// Decode kernels for MLA: DeepSeek-V2's latents (512 + 64; 16 heads a block) and MiniCPM3's
// (256 + 32; its 40 heads in one block, so that the cache is read once). decode_fast.cuh has
// shapes, shared memory, operations and bytes.

#include "attention/cuda/decode_fast.cuh"
#include "attention/cuda/decode_shapes.cuh"

namespace lca::cuda::decoding {

void launch_mla(const Args& args, cudaStream_t stream) {
  const bool quantised = args.step.pool.type != GroupType::bf16;
  if (args.step.shape.d_latent == 512) {
    quantised ? kernel_launch<MlaWideQuantised, true>(args, stream)
              : kernel_launch<MlaWide, false>(args, stream);
  } else {
    quantised ? kernel_launch<MlaNarrow, true>(args, stream)
              : kernel_launch<MlaNarrow, false>(args, stream);
  }
}

int slots_mla(const AttentionShape& shape, int cluster) {
  return shape.d_latent == 512 ? kernel_slots<MlaWide>(cluster) : kernel_slots<MlaNarrow>(cluster);
}

}  // namespace lca::cuda::decoding
