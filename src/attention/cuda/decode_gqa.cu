// Decode kernels for GQA: keys and values of 128 (Qwen, Llama) and of 64 (SmolLM2). A job is one KV
// head; the query heads that share it are the rows of the product, padded to 16 with zeros.
// decode_fast.cuh has the rest. Bytes at 128K for Qwen-7B: 9152 · 4 · 512 = 18.7 MB a layer, 4.4 µs
// at 4.27 TB/s.

#include "attention/cuda/decode_fast.cuh"
#include "attention/cuda/decode_shapes.cuh"

namespace lca::cuda::decoding {

void launch_gqa(const Args& args, cudaStream_t stream) {
  const bool quantised = args.step.pool.type != GroupType::bf16;
  if (args.step.shape.d_value == 128) {
    quantised ? kernel_launch<GqaWide, true>(args, stream)
              : kernel_launch<GqaWide, false>(args, stream);
  } else {
    quantised ? kernel_launch<GqaNarrow, true>(args, stream)
              : kernel_launch<GqaNarrow, false>(args, stream);
  }
}

int slots_gqa(const AttentionShape& shape, int cluster) {
  return shape.d_value == 128 ? kernel_slots<GqaWide>(cluster) : kernel_slots<GqaNarrow>(cluster);
}

}  // namespace lca::cuda::decoding
