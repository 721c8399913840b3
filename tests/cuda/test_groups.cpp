// Representatives into pages and back on the GPU: placed where the pages say, and within the
// precision of how they are stored. All pages start as NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cuda/condense_support.h"

namespace lca::test {
namespace {

using cuda::GroupPool;
using cuda::GroupType;

/// A pool of pages for one session, poisoned, with pages in no order.
struct TestPool {
  TestPool(Random& random, const AttentionShape& shape_in, GroupType type, std::int64_t longest,
           bool with_bias)
      : shape(shape_in) {
    const std::int64_t used = (longest + cuda::kPageRows - 1) / cuda::kPageRows;
    const std::int64_t page_count = used + 3;
    std::vector<std::int32_t> order(at(page_count));
    for (std::int64_t i = 0; i < page_count; ++i) order[at(i)] = static_cast<std::int32_t>(i);
    for (std::int64_t i = page_count - 1; i > 0; --i) {
      std::swap(order[at(i)], order[at(random.integer(0, i))]);
    }
    order.resize(at(used));
    pages = DeviceArray<std::int32_t>(order);
    const std::int64_t rows = page_count * cuda::kPageRows * shape.kv_heads;
    const bool mla = shape.form == Form::mla;
    scales = mla ? (shape.d_latent + cuda::kScaleBlock - 1) / cuda::kScaleBlock : 1;
    // 0xff in every byte: NaN as bf16 and as e4m3.
    semantic = DeviceArray<std::uint8_t>(
        std::vector<std::uint8_t>(at(rows * shape.d_semantic() * 2), 0xff));
    positional = DeviceArray<std::uint8_t>(
        std::vector<std::uint8_t>(at(rows * shape.d_positional() * 2), 0xff));
    semantic_scale = DeviceArray<float>(nan_float(rows * scales));
    positional_scale = DeviceArray<float>(nan_float(rows));
    bias = DeviceArray<float>(nan_float(rows));
    view.type = type;
    view.semantic = semantic.data();
    view.positional = positional.data();
    if (type != GroupType::bf16) {
      view.semantic_scale = semantic_scale.data();
      if (!mla) view.positional_scale = positional_scale.data();
    }
    if (with_bias) view.bias = bias.data();
  }

  AttentionShape shape;
  std::int64_t scales = 1;
  DeviceArray<std::int32_t> pages;
  DeviceArray<std::uint8_t> semantic;
  DeviceArray<std::uint8_t> positional;
  DeviceArray<float> semantic_scale;
  DeviceArray<float> positional_scale;
  DeviceArray<float> bias;
  GroupPool view;
};

/// Half the distance between neighbours that `type` has around `value` in a block of `largest`, and
/// the rounding of scale, quotient and bf16.
double quantised_error(GroupType type, double value, double largest) {
  if (type == GroupType::bf16) return 0;
  const double rounding = 4.1e-3 * std::fabs(value) + 1e-6 * largest;
  if (type == GroupType::int8) return 0.501 * largest / 127 + rounding;
  // e4m3 has 3 bits after the first, and steps of 2^-9 below 2^-6.
  const double scale = largest / 448;
  const double magnitude = std::max(std::fabs(value) / std::max(scale, 1e-300), 0x1p-6);
  return 0.501 * std::exp2(std::floor(std::log2(magnitude)) - 3) * scale + rounding;
}

TEST(CudaGroups, PagesGiveBackWhatWasAppendedWithinTheirPrecision) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8000;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 16, 64, 512, 16), AttentionShape::mla(2, 16, 32, 256, 16),
        AttentionShape::mla(2, 4, 6, 130, 4), AttentionShape::mla(2, 4, 3, 77, 4),
        AttentionShape::gqa(8, 4, 128, 128), AttentionShape::gqa(3, 3, 64, 36),
        AttentionShape::gqa(2, 2, 131, 7)}) {
    for (const GroupType type : {GroupType::bf16, GroupType::fp8, GroupType::int8}) {
      for (const bool with_bias : {false, true}) {
        Random random(++seed);
        SCOPED_TRACE(shape_text(shape) + " type " + std::to_string(static_cast<int>(type)) +
                     " bias " + std::to_string(with_bias) + " seed " + std::to_string(seed));
        constexpr std::int64_t kFirst = 61;  // two appends, across a page's end
        constexpr std::int64_t kCount = 80;
        const std::int64_t kv = shape.kv_heads;
        const std::int64_t d_s = shape.d_semantic();
        const std::int64_t d_p = shape.d_positional();
        const TestPool pool(random, shape, type, kFirst + kCount, with_bias);
        std::vector<bf16> semantic = random_bf16(random, (kFirst + kCount) * kv * d_s);
        std::vector<bf16> positional = random_bf16(random, (kFirst + kCount) * kv * d_p);
        for (std::int64_t i = 0; i < kv * d_s; ++i) {
          semantic[at(70 * kv * d_s + i)] = bf16_of(0);      // all zero: scale 0
          semantic[at(71 * kv * d_s + i)] = bf16_of(1e-39);  // tiny: nothing may overflow
          bf16& large = semantic[at(72 * kv * d_s + i)];
          large = bf16_of(1e30 * double_of(large));
        }
        for (std::int64_t i = 0; i < kv * d_p; ++i) positional[at(70 * kv * d_p + i)] = bf16_of(0);
        const std::vector<float> bias = random_float(random, (kFirst + kCount) * kv);
        const DeviceArray<bf16> in_semantic(semantic);
        const DeviceArray<bf16> in_positional(positional);
        const DeviceArray<float> in_bias(bias);
        for (const auto& [first, count] : {std::pair{std::int64_t{0}, kFirst}, {kFirst, kCount}}) {
          cuda::groups_append(shape, pool.view, pool.pages.data(), first, count,
                              in_semantic.data() + first * kv * d_s,
                              in_positional.data() + first * kv * d_p,
                              with_bias ? in_bias.data() + first * kv : nullptr, gpu_queue());
        }

        constexpr std::int64_t kFrom = 3;
        constexpr std::int64_t kRead = kFirst + kCount - kFrom;
        const DeviceArray<bf16> out_semantic(nan_bf16((kRead + 1) * kv * d_s));
        const DeviceArray<bf16> out_positional(nan_bf16((kRead + 1) * kv * d_p));
        const DeviceArray<float> out_bias(nan_float((kRead + 1) * kv));
        cuda::groups_gather(shape, pool.view, pool.pages.data(), kFrom, kRead, out_semantic.data(),
                            out_positional.data(), out_bias.data(), gpu_queue());

        const auto compare = [&](const std::vector<bf16>& sent, const std::vector<bf16>& got,
                                 std::int64_t width, std::int64_t block, GroupType stored,
                                 const char* part) {
          double largest = 0;
          for (std::int64_t i = 0; i < kRead * kv * width; ++i) {
            const std::int64_t from = kFrom * kv * width;
            const std::int64_t row = i / width * width;
            const std::int64_t begin = row + (i - row) / block * block;
            if (i == begin) largest = 0;
            for (std::int64_t k = begin; i == begin && k < std::min(begin + block, row + width);
                 ++k) {
              largest = std::max(largest, std::fabs(double_of(sent[at(from + k)])));
            }
            const double want = double_of(sent[at(from + i)]);
            const double have = double_of(got[at(i)]);
            // Below float's normal numbers a scale has few bits; only that nothing breaks counts.
            const double allowed = largest < 1e-30 ? 1e-37 : quantised_error(stored, want, largest);
            ASSERT_TRUE(std::fabs(have - want) <= allowed)
                << part << " representative " << kFrom + i / (kv * width) << " column " << i % width
                << ": got " << have << ", want " << want << " within " << allowed;
          }
          ASSERT_TRUE(is_nan_from(got, kRead * kv * width)) << part;
        };
        const bool mla = shape.form == Form::mla;
        compare(semantic, out_semantic.download(), d_s, mla ? cuda::kScaleBlock : d_s, type,
                "semantic");
        compare(positional, out_positional.download(), d_p, d_p, mla ? GroupType::bf16 : type,
                "positional");
        if (::testing::Test::HasFailure()) return;
        const std::vector<float> got_bias = out_bias.download();
        for (std::int64_t i = 0; i < kRead * kv; ++i) {
          ASSERT_EQ(got_bias[at(i)], with_bias ? bias[at(kFrom * kv + i)] : 0.0f) << "bias " << i;
        }
        ASSERT_TRUE(is_nan_from(got_bias, kRead * kv));

        // Rows that no representative has stay untouched.
        std::int64_t untouched = 0;
        for (const float value : pool.bias.download()) untouched += std::isnan(value) ? 1 : 0;
        const auto all = static_cast<std::int64_t>(pool.bias.size());
        ASSERT_EQ(untouched, with_bias ? all - (kFirst + kCount) * kv : all);
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
