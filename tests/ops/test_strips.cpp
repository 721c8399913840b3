// Weights in strips: the same bits as in rows, and the same products.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/workspace.h"
#include "ops/linear.h"
#include "ops/strips.h"
#include "support/worst.h"

namespace lca::test {
namespace {

constexpr PackedType kTypes[] = {PackedType::q4_0, PackedType::q4_1, PackedType::q5_0,
                                 PackedType::q5_1, PackedType::q8_0};

/// Blocks of random quants with scales of about 2⁻⁶.
std::vector<std::byte> random_rows(PackedType type, std::int64_t rows, std::int64_t columns) {
  std::mt19937 random(static_cast<unsigned>(rows * 131 + columns));
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * packed_bytes(type, columns));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255u);
  const std::size_t block = packed_type_info(type).block_bytes;
  const bool minimum = type == PackedType::q4_1 || type == PackedType::q5_1;
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    for (std::size_t header = 0; header < (minimum ? 4u : 2u); header += 2) {
      const auto half = static_cast<std::uint16_t>(0x2400u | (random() & 0x83ffu));
      std::memcpy(bytes.data() + at + header, &half, sizeof half);
    }
  }
  return bytes;
}

struct Strips {
  AlignedBytes memory;
  PackedMatrix matrix;

  explicit Strips(const PackedMatrix& rows) : matrix(rows) {
    const std::size_t bytes = strip_bytes(rows.type, rows.columns);
    const std::int64_t count = strip_count(rows.rows);
    memory = aligned_bytes(bytes * static_cast<std::size_t>(count));
    for (std::int64_t strip = 0; strip < count; ++strip) {
      strip_arrange(rows, strip, memory.get() + static_cast<std::size_t>(strip) * bytes);
    }
    matrix.data = memory.get();
    matrix.strips = true;
  }
};

TEST(Strips, GiveTheRowsBackToTheBit) {
  for (const PackedType type : kTypes) {
    for (const std::int64_t rows : {1, 15, 16, 17, 40}) {
      for (const std::int64_t columns : {32, 96, 576}) {
        const auto bytes = random_rows(type, rows, columns);
        const PackedMatrix plain{bytes.data(), type, rows, columns};
        const Strips strips(plain);
        std::vector<std::byte> back(static_cast<std::size_t>(kStripRows) * plain.row_bytes());
        for (std::int64_t strip = 0; strip < strip_count(rows); ++strip) {
          const std::int64_t count = std::min(kStripRows, rows - strip * kStripRows);
          strip_restore(strips.matrix, strip, count, back.data());
          EXPECT_EQ(0, std::memcmp(back.data(), plain.row(strip * kStripRows),
                                   static_cast<std::size_t>(count) * plain.row_bytes()))
              << packed_type_info(type).name << " " << rows << " " << columns << " " << strip;
        }
      }
    }
  }
}

TEST(Strips, TakeNoMoreMemoryThanRowsAndALine) {
  for (const PackedType type : kTypes) {
    for (const std::int64_t columns : {32, 96, 576, 2048}) {
      const std::size_t rows = static_cast<std::size_t>(kStripRows) * packed_bytes(type, columns);
      EXPECT_GE(strip_bytes(type, columns), rows);
      EXPECT_LT(strip_bytes(type, columns), rows + kAlignment);
    }
  }
}

TEST(Strips, KBlocksAndPlainNumbersKeepTheirRows) {
  for (const PackedType type : {PackedType::f32, PackedType::f16, PackedType::bf16,
                                PackedType::q4_k, PackedType::q5_k, PackedType::q6_k}) {
    EXPECT_FALSE(strips_supported(type)) << packed_type_info(type).name;
  }
}

// Both layouts round activations alike and differ in the order of sums; many rows are unpacked to
// the very same panels.
TEST(Strips, MultiplyAsRowsDo) {
  if (!strips_supported(PackedType::q8_0)) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  Context context(2);
  for (const PackedType type : kTypes) {
    for (const std::int64_t out : {7, 16, 49, 200}) {
      const std::int64_t in = 320;
      const auto bytes = random_rows(type, out, in);
      const Linear plain{{bytes.data(), type, out, in}, nullptr, {}};
      const Strips strips(plain.weight);
      const Linear arranged{strips.matrix, nullptr, {}};
      for (const std::int64_t rows : {1, 2, 3, 4, 7, 12, 13, 60}) {
        std::vector<float> x(static_cast<std::size_t>(rows * in));
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        for (float& value : x) value = normal(random);
        const auto nan = std::numeric_limits<float>::quiet_NaN();
        std::vector<float> expected(static_cast<std::size_t>(rows * out), nan);
        std::vector<float> actual(expected.size(), nan);
        linear(context, plain, ProductType::bf16, x.data(), rows, expected.data());
        linear(context, arranged, ProductType::bf16, x.data(), rows, actual.data());
        EXPECT_LE(worst_difference(expected, actual), rows > 12 ? 0 : 2e-6 * largest(expected))
            << packed_type_info(type).name << " " << out << " " << rows;
      }
    }
  }
}

// A batch must not change what a single row gets.
TEST(Strips, GiveARowTheSameBitsInAnyBatch) {
  if (!strips_supported(PackedType::q8_0)) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  Context context(2);
  const std::int64_t in = 160, out = 50, rows = 11;
  for (const PackedType type : kTypes) {
    const auto bytes = random_rows(type, out, in);
    const Strips strips({bytes.data(), type, out, in});
    const Linear layer{strips.matrix, nullptr, {}};
    std::vector<float> x(static_cast<std::size_t>(rows * in));
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    std::vector<float> together(static_cast<std::size_t>(rows * out));
    linear(context, layer, ProductType::bf16, x.data(), rows, together.data());
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<float> alone(static_cast<std::size_t>(out));
      linear(context, layer, ProductType::bf16, x.data() + row * in, 1, alone.data());
      EXPECT_EQ(
          0, std::memcmp(alone.data(), together.data() + row * out, alone.size() * sizeof(float)))
          << packed_type_info(type).name << " row " << row;
    }
  }
}

}  // namespace
}  // namespace lca::test
