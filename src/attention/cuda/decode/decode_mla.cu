// Decode kernels for MLA: DeepSeek-V2's latents (512 + 64; 16 heads a block) and MiniCPM3's
// (256 + 32; its 40 heads in one block, so that the cache is read once). decode_fast.cuh has
// shapes, shared memory, operations and bytes.

#include "attention/cuda/decode/decode_fast.cuh"
#include "attention/cuda/decode/decode_shapes.cuh"

namespace lca::cuda::decoding {

void launch_mla(const Args& args, const Queue& queue) {
  const bool quantised = args.step.pool.type != GroupType::bf16;
  if (args.step.shape.d_latent == 512) {
    quantised ? kernel_launch<MlaWideQuantised, true>(args, queue)
              : kernel_launch<MlaWide, false>(args, queue);
  } else {
    quantised ? kernel_launch<MlaNarrow, true>(args, queue)
              : kernel_launch<MlaNarrow, false>(args, queue);
  }
}

int slots_mla(const Device& device, const AttentionShape& shape, int cluster) {
  return shape.d_latent == 512 ? kernel_slots<MlaWide>(device, cluster)
                               : kernel_slots<MlaNarrow>(device, cluster);
}

}  // namespace lca::cuda::decoding
