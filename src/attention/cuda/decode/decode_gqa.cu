// Decode kernels for GQA: keys and values of 128 (Qwen, Llama) and of 64 (SmolLM2). A job is one KV
// head; the query heads that share it are the rows of the product, padded to 16 with zeros.
// decode_fast.cuh has the rest. Bytes at 128K for Qwen-7B: 9152 · 4 · 512 = 18.7 MB a layer, 4.4 µs
// at 4.27 TB/s.

#include "attention/cuda/decode/decode_fast.cuh"
#include "attention/cuda/decode/decode_shapes.cuh"

namespace lca::cuda::decoding {

void launch_gqa(const Args& args, const Queue& queue) {
  const bool quantised = args.step.pool.type != GroupType::bf16;
  if (args.step.shape.d_value == 128) {
    quantised ? kernel_launch<GqaWide, true>(args, queue)
              : kernel_launch<GqaWide, false>(args, queue);
  } else {
    quantised ? kernel_launch<GqaNarrow, true>(args, queue)
              : kernel_launch<GqaNarrow, false>(args, queue);
  }
}

int slots_gqa(const Device& device, const AttentionShape& shape, int cluster) {
  return shape.d_value == 128 ? kernel_slots<GqaWide>(device, cluster)
                              : kernel_slots<GqaNarrow>(device, cluster);
}

}  // namespace lca::cuda::decoding
