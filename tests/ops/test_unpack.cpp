#include "formats/safetensors.h"
#include "ops/packed.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace lca {
namespace {

std::vector<PackedType> all_types() {
  std::vector<PackedType> types;
  for (int i = 0; i < kPackedTypes; ++i) types.push_back(static_cast<PackedType>(i));
  return types;
}

/// Blocks of one type and the values that ggml's own Python package unpacks from them.
struct Golden {
  std::span<const std::byte> bytes;
  std::vector<float> values;
};

class Unpack : public testing::TestWithParam<PackedType> {
 protected:
  Unpack() : file_(Safetensors::open(LCA_SOURCE_DIR "/tests/golden/quants/quants.safetensors")) {}

  Golden golden() const {
    const std::string name(packed_type_info(GetParam()).name);
    const TensorInfo* bytes = file_.find(name + ".bytes");
    const TensorInfo* values = file_.find(name + ".values");
    if (bytes == nullptr || values == nullptr) throw std::runtime_error("no golden " + name);
    Golden result{bytes->bytes, std::vector<float>(values->bytes.size() / sizeof(float))};
    std::memcpy(result.values.data(), values->bytes.data(), values->bytes.size());
    return result;
  }

  Safetensors file_;
};

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST_P(Unpack, GivesTheReferencesValuesToTheBit) {
  const Golden expected = golden();
  const auto count = static_cast<std::int64_t>(expected.values.size());
  ASSERT_EQ(packed_bytes(GetParam(), count), expected.bytes.size());
  std::vector<float> out(expected.values.size());
  unpack_f32(GetParam(), expected.bytes.data(), out.data(), count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(bits(out[i]), bits(expected.values[i]))
        << "value " << i << ": " << out[i] << " for " << expected.values[i];
  }
}

TEST_P(Unpack, RoundsToNearestBfloat16) {
  const Golden expected = golden();
  const auto count = static_cast<std::int64_t>(expected.values.size());
  std::vector<bf16_bits> out(expected.values.size());
  unpack_bf16(GetParam(), expected.bytes.data(), out.data(), count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], bf16_from_f32(expected.values[i])) << "value " << i;
  }
}

TEST_P(Unpack, NeedsNoAlignmentAndWritesNothingElse) {
  const Golden expected = golden();
  const PackedTypeInfo& info = packed_type_info(GetParam());
  const std::int64_t values = 3 * info.block_values;
  const std::size_t bytes = packed_bytes(GetParam(), values);
  for (std::size_t shift = 0; shift < 4; ++shift) {
    // Exactly as long as necessary, so that a sanitizer detects accesses beyond the end.
    std::vector<std::byte> source(shift + bytes);
    std::memcpy(source.data() + shift, expected.bytes.data(), bytes);
    std::vector<float> out(static_cast<std::size_t>(values) + 2, -7.0f);
    unpack_f32(GetParam(), source.data() + shift, out.data() + 1, values);
    EXPECT_EQ(out.front(), -7.0f);
    EXPECT_EQ(out.back(), -7.0f);
    for (std::size_t i = 0; i < static_cast<std::size_t>(values); ++i) {
      ASSERT_EQ(bits(out[i + 1]), bits(expected.values[i])) << "shift " << shift;
    }
    std::vector<bf16_bits> halves(static_cast<std::size_t>(values) + 2, 0x1234);
    unpack_bf16(GetParam(), source.data() + shift, halves.data() + 1, values);
    EXPECT_EQ(halves.front(), 0x1234);
    EXPECT_EQ(halves.back(), 0x1234);
  }
}

TEST_P(Unpack, OfNothingDoesNothing) {
  unpack_f32(GetParam(), nullptr, nullptr, 0);
  unpack_bf16(GetParam(), nullptr, nullptr, 0);
}

TEST_P(Unpack, SlicesOfRowsBeginAtWholeBlocks) {
  const Golden expected = golden();
  const PackedTypeInfo& info = packed_type_info(GetParam());
  const PackedMatrix matrix{expected.bytes.data(), GetParam(), 4, 2 * info.block_values};
  EXPECT_FALSE(matrix.empty());
  EXPECT_TRUE(PackedMatrix{}.empty());
  EXPECT_EQ(matrix.bytes(), 4 * matrix.row_bytes());
  const PackedMatrix slice = matrix.slice(1, 2);
  EXPECT_EQ(slice.rows, 2);
  std::vector<float> out(static_cast<std::size_t>(slice.columns));
  unpack_f32(slice.type, slice.row(1), out.data(), slice.columns);
  const auto skipped = static_cast<std::size_t>(2 * slice.columns);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(bits(out[i]), bits(expected.values[skipped + i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Unpack, testing::ValuesIn(all_types()), [](const auto& one) {
  return std::string(packed_type_info(one.param).name);
});

/// Every binary16 number by its definition.
TEST(UnpackHalf, IsExactForEveryBitPattern) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(halves.size());
  unpack_f32(PackedType::f16, reinterpret_cast<const std::byte*>(halves.data()), out.data(), 65536);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    const double sign = i < 32768 ? 1 : -1;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(out[i]), mantissa != 0);
      EXPECT_EQ(std::signbit(out[i]), i >= 32768);
      EXPECT_EQ(std::isinf(out[i]), mantissa == 0);
      continue;
    }
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(bits(out[i]), bits(static_cast<float>(sign * value))) << i;
  }
}

TEST(UnpackTypes, HaveGgmlsSizes) {
  EXPECT_EQ(packed_type_info(PackedType::q4_1).name, "Q4_1");
  EXPECT_EQ(packed_bytes(PackedType::f32, 3), 12u);
  EXPECT_EQ(packed_bytes(PackedType::q8_0, 64), 68u);
  EXPECT_EQ(packed_bytes(PackedType::q4_k, 512), 288u);
  EXPECT_EQ(packed_bytes(PackedType::q6_k, 256), 210u);
  EXPECT_EQ(packed_bytes(PackedType::q6_k, 0), 0u);
}

}  // namespace
}  // namespace lca
