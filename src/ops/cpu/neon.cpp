// Strips on NEON without dot products (the first ARMv8 processors): bytes are multiplied into 16
// bits, where quants of 4 and 5 bits leave room for eight products, those of 6 for four and bytes
// for two; neighbours are then added into 32 bits.

#include "ops/cpu/strip_kernels.h"
#include "ops/cpu/strip_weave.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <utility>

namespace lca {
namespace neon {
namespace {

#include "ops/cpu/neon-inl.h"

struct Isa : Neon {
  template <int kLargest, bool kSigned>
  struct Accumulator {
    /// Products that fit into 16 bits.
    static constexpr int kFit = 32767 / (kLargest * 127);
    static_assert(kFit >= 2);
    static constexpr int kSums = kFit >= 8 ? 8 : kFit >= 4 ? 4 : 2;

    /// Of two rows each: products of one column, sums of two.
    struct Sums {
      int16x8_t products[2];
      int32x4_t pairs[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};

      void add(int step, int8x16_t q, int8x16_t x) {
        const bool first = step % kSums == 0;
        products[0] = first ? vmull_s8(vget_low_s8(q), vget_low_s8(x))
                            : vmlal_s8(products[0], vget_low_s8(q), vget_low_s8(x));
        products[1] = first ? vmull_high_s8(q, x) : vmlal_high_s8(products[1], q, x);
        if (step % kSums == kSums - 1) {
          pairs[0] = vpadalq_s16(pairs[0], products[0]);
          pairs[1] = vpadalq_s16(pairs[1], products[1]);
        }
      }
      Ints total() const { return vpaddq_s32(pairs[0], pairs[1]); }
    };
    Sums high, low;

    void add(int step, Bytes q, const std::int8_t* x_high, const std::int8_t* x_low) {
      high.add(step, vreinterpretq_s8_u8(q), four_values(x_high));
      low.add(step, vreinterpretq_s8_u8(q), four_values(x_low));
    }
    Ints total() const { return vaddq_s32(vshlq_n_s32(high.total(), 7), low.total()); }
  };
};

// The order matters.
// clang-format off
#include "ops/cpu/strip_product-inl.h"
#include "ops/cpu/strip_unpack-inl.h"
// clang-format on

}  // namespace

const StripKernels kStrips = {strips_dot_of, unpack_of<bf16_bits>, unpack_of<float>};

}  // namespace neon
}  // namespace lca

#endif
