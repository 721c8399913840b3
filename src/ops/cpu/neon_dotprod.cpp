// Strips on NEON with dot products (ARMv8.2 and later, where the processor has them): one
// instruction multiplies 16 pairs of signed bytes and adds them four by four, so one row's four
// columns.

#include "ops/cpu/strip_kernels.h"
#include "ops/cpu/strip_weave.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

#include <utility>

namespace lca {
namespace neon_dotprod {
namespace {

#include "ops/cpu/neon-inl.h"

struct Isa : Neon {
  template <int kLargest, bool kSigned>
  struct Accumulator {
    Ints high = vdupq_n_s32(0), low = high;

    void add(int, Bytes q, const std::int8_t* x_high, const std::int8_t* x_low) {
      high = vdotq_s32(high, vreinterpretq_s8_u8(q), four_values(x_high));
      low = vdotq_s32(low, vreinterpretq_s8_u8(q), four_values(x_low));
    }
    Ints total() const { return vaddq_s32(vshlq_n_s32(high, 7), low); }
  };
};

// The order matters.
// clang-format off
#include "ops/cpu/strip_product-inl.h"
#include "ops/cpu/strip_unpack-inl.h"
// clang-format on

}  // namespace

const StripKernels kStrips = {strips_dot_of, unpack_of<bf16_bits>, unpack_of<float>};

}  // namespace neon_dotprod
}  // namespace lca

#elif defined(__aarch64__)

namespace lca::neon_dotprod {
const StripKernels kStrips;
}

#endif
