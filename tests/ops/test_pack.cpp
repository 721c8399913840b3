// Packing to Q8_0 and Q4_0: the bytes of ggml's own Python package, and values that cannot be
// packed.

#include "formats/safetensors.h"
#include "ops/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace lca {
namespace {

constexpr std::int64_t kBlock = 32;

class Pack : public testing::TestWithParam<PackedType> {
 protected:
  Pack() : file_(Safetensors::open(LCA_SOURCE_DIR "/tests/golden/quants/packing.safetensors")) {
    const TensorInfo* stored = file_.find("values");
    values_.resize(stored->bytes.size() / sizeof(float));
    std::memcpy(values_.data(), stored->bytes.data(), stored->bytes.size());
  }

  std::span<const std::byte> golden() const {
    return file_.find(std::string(packed_type_info(GetParam()).name))->bytes;
  }

  std::vector<std::byte> pack(const std::vector<float>& values, PackResult expected) const {
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::byte> out(packed_bytes(GetParam(), count));
    EXPECT_EQ(pack_f32(GetParam(), values.data(), out.data(), count), expected);
    return out;
  }

  Safetensors file_;
  std::vector<float> values_;
};

TEST_P(Pack, GivesTheReferencesBytes) {
  const std::span<const std::byte> expected = golden();
  const std::vector<std::byte> got = pack(values_, PackResult::packed);
  ASSERT_EQ(got.size(), expected.size());
  const std::size_t block = packed_type_info(GetParam()).block_bytes;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], expected[i]) << "block " << i / block << ", byte " << i % block;
  }
}

TEST_P(Pack, WhatIsUnpackedAndPackedAgainStays) {
  const std::vector<std::byte> once = pack(values_, PackResult::packed);
  std::vector<float> wide(values_.size());
  unpack_f32(GetParam(), once.data(), wide.data(), static_cast<std::int64_t>(wide.size()));
  const std::vector<std::byte> again = pack(wide, PackResult::packed);
  std::vector<float> twice(values_.size());
  unpack_f32(GetParam(), again.data(), twice.data(), static_cast<std::int64_t>(twice.size()));
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_NEAR(wide[i], twice[i], std::abs(wide[i]) * 1e-3 + 1e-7) << i;
  }
}

TEST_P(Pack, NaNAndInfinityAreFoundAnywhere) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 3 * kBlock; at += 7) {
      std::vector<float> values(values_.begin(), values_.begin() + 3 * kBlock);
      values[at] = bad;
      pack(values, PackResult::not_finite);
    }
  }
}

TEST_P(Pack, BlocksTooLargeForTheirScaleAreRefused) {
  std::vector<float> values(2 * kBlock, 1.0F);
  values[40] = -std::numeric_limits<float>::max();
  pack(values, PackResult::too_large);
  values[40] = 65520.0F * 127;  // rounds to infinity as a half in either type
  pack(values, PackResult::too_large);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  pack(values, PackResult::not_finite);
}

TEST_P(Pack, BlocksTooSmallForAScaleBecomeZeroes) {
  for (const float tiny : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 1e-44F, 1e-40F,
                           -std::numeric_limits<float>::min(), 1e-37F}) {
    std::vector<float> values(kBlock, tiny);
    values[5] = -tiny;
    const std::vector<std::byte> packed = pack(values, PackResult::packed);
    std::vector<float> wide(kBlock, -1.0F);
    unpack_f32(GetParam(), packed.data(), wide.data(), kBlock);
    for (const float value : wide) EXPECT_EQ(value, 0.0F) << tiny;
  }
}

TEST_P(Pack, AMatrixOfAnyPlainTypeIsPackedRowByRowOnAnyThreads) {
  constexpr std::int64_t kColumns = 3 * kBlock;
  const std::int64_t rows = 40;
  const std::int64_t count = rows * kColumns;
  std::vector<bf16_bits> narrow;
  std::vector<float> rounded;
  for (std::int64_t i = 0; i < count; ++i) {
    narrow.push_back(bf16_from_f32(values_[static_cast<std::size_t>(i)]));
    rounded.push_back(bf16_to_f32(narrow.back()));
  }
  const std::vector<std::byte> expected = pack(rounded, PackResult::packed);
  // An unaligned address, as in a file.
  std::vector<std::byte> odd(narrow.size() * sizeof(bf16_bits) + 1);
  std::memcpy(odd.data() + 1, narrow.data(), odd.size() - 1);
  for (const int threads : {1, 3}) {
    Context context(threads);
    std::vector<std::byte> out(expected.size());
    EXPECT_EQ(pack_matrix(context, {odd.data() + 1, PackedType::bf16, rows, kColumns}, GetParam(),
                          out.data()),
              PackResult::packed);
    EXPECT_EQ(out, expected);
    const auto* plain = reinterpret_cast<const std::byte*>(rounded.data());
    EXPECT_EQ(
        pack_matrix(context, {plain, PackedType::f32, rows, kColumns}, GetParam(), out.data()),
        PackResult::packed);
    EXPECT_EQ(out, expected);
    EXPECT_EQ(pack_matrix(context, {plain, PackedType::f32, 0, kColumns}, GetParam(), out.data()),
              PackResult::packed);
  }
  rounded[static_cast<std::size_t>(count) - 1] = std::numeric_limits<float>::infinity();
  Context context(2);
  std::vector<std::byte> out(expected.size());
  EXPECT_EQ(pack_matrix(context,
                        {reinterpret_cast<const std::byte*>(rounded.data()), PackedType::f32, rows,
                         kColumns},
                        GetParam(), out.data()),
            PackResult::not_finite);
}

INSTANTIATE_TEST_SUITE_P(Types, Pack, testing::Values(PackedType::q8_0, PackedType::q4_0),
                         [](const auto& type) {
                           return std::string(packed_type_info(type.param).name);
                         });

}  // namespace
}  // namespace lca
