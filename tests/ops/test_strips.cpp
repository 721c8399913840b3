// Weights in strips: the same bits as in rows, and the same products.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cpu_level.h"
#include "core/workspace.h"
#include "ops/cpu/strip_kernels.h"
#include "ops/linear.h"
#include "ops/strips.h"

namespace lca::test {
namespace {

constexpr PackedType kTypes[] = {PackedType::q4_0, PackedType::q4_1, PackedType::q5_0,
                                 PackedType::q5_1, PackedType::q8_0, PackedType::q4_k,
                                 PackedType::q5_k, PackedType::q6_k};

/// Of every instruction set that this processor has.
std::vector<std::pair<const char*, StripKernels>> kernels() {
  std::vector<std::pair<const char*, StripKernels>> found;
#if defined(__x86_64__)
  if (cpu_level() >= CpuLevel::avx2) found.emplace_back("avx2", avx2::kStrips);
  if (strips_in_use().dot == vnni::kStrips.dot) found.emplace_back("vnni", vnni::kStrips);
#elif defined(__aarch64__)
  const CpuLevel level = cpu_level();
  if (level >= CpuLevel::neon) found.emplace_back("neon", neon::kStrips);
  if (level >= CpuLevel::dotprod) found.emplace_back("dotprod", neon_dotprod::kStrips);
#endif
  std::erase_if(found, [](const auto& each) { return each.second.dot == nullptr; });
  return found;
}

/// Blocks of random quants with scales of about 2⁻⁶.
std::vector<std::byte> random_rows(PackedType type, std::int64_t rows, std::int64_t columns) {
  std::mt19937 random(static_cast<unsigned>(rows * 131 + columns));
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * packed_bytes(type, columns));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255u);
  const std::size_t block = packed_type_info(type).block_bytes;
  const bool minimum = type == PackedType::q4_1 || type == PackedType::q5_1 ||
                       type == PackedType::q4_k || type == PackedType::q5_k;
  const std::size_t scale_at = type == PackedType::q6_k ? block - 2 : 0;
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    for (std::size_t header = 0; header < (minimum ? 4u : 2u); header += 2) {
      const auto half = static_cast<std::uint16_t>(0x2400u | (random() & 0x83ffu));
      std::memcpy(bytes.data() + at + scale_at + header, &half, sizeof half);
    }
  }
  return bytes;
}

/// The largest quants everywhere: sums of 16 bits are at their limits. Headers stay.
void extremes_write(PackedType type, std::vector<std::byte>& bytes) {
  const PackedTypeInfo& info = packed_type_info(type);
  const bool k = info.block_values == 256;
  const std::size_t header = type == PackedType::q6_k                               ? 0
                             : k                                                    ? 16
                             : type == PackedType::q4_1 || type == PackedType::q5_1 ? 4
                                                                                    : 2;
  const std::size_t end = type == PackedType::q6_k ? 192 : info.block_bytes;
  const auto most = static_cast<std::byte>(type == PackedType::q8_0 ? 0x80 : 0xff);
  for (std::size_t at = 0; at < bytes.size(); at += info.block_bytes) {
    for (std::size_t i = header; i < end; ++i) bytes[at + i] = most;
  }
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

// a·q + b in one rounding, where unpacked rows take two: halves of a bfloat16's last place may fall
// to either side.
TEST(Strips, UnpackToTheRowsTheyCameFrom) {
  if (kernels().empty()) GTEST_SKIP() << "this processor has no product for strips";
  for (const PackedType type : kTypes) {
    for (const std::int64_t rows : {1, 15, 16, 17, 40}) {
      for (const std::int64_t blocks : {1, 3, 5}) {
        const std::int64_t columns = blocks * packed_type_info(type).block_values;
        const auto bytes = random_rows(type, rows, columns);
        const Strips strips({bytes.data(), type, rows, columns});
        const auto values = static_cast<std::size_t>(rows * columns);
        std::vector<float> exact(values);
        unpack_f32(type, bytes.data(), exact.data(), rows * columns);
        for (const auto& [name, set] : kernels()) {
          std::vector<bf16_bits> narrow(values + 64, 0x7fc1);
          std::vector<float> wide(values + 64, -1e30F);
          for (std::int64_t strip = 0; strip < strip_count(rows); ++strip) {
            const auto count = static_cast<int>(std::min(kStripRows, rows - strip * kStripRows));
            const auto at = static_cast<std::size_t>(strip * kStripRows * columns);
            set.unpack(strips.matrix, strip, count, narrow.data() + at);
            set.unpack_wide(strips.matrix, strip, count, wide.data() + at);
          }
          std::size_t other = 0;
          for (std::size_t i = 0; i < values; ++i) {
            ASSERT_EQ(wide[i], bf16_to_f32(narrow[i])) << name << " " << i;
            ASSERT_NEAR(wide[i], exact[i], std::abs(exact[i]) / 256 + 1e-7)
                << name << " " << packed_type_info(type).name << " " << rows << " " << i;
            other += wide[i] != bf16_to_f32(bf16_from_f32(exact[i])) ? 1 : 0;  // of zeros any
          }
          EXPECT_LE(other, values / 500) << name << " " << packed_type_info(type).name;
          EXPECT_EQ(narrow[values], 0x7fc1) << "written past the end";
          EXPECT_EQ(wide[values], -1e30F) << "written past the end";
        }
      }
    }
  }
}

TEST(Strips, GiveARowBackToTheBit) {
  for (const PackedType type : kTypes) {
    for (const std::int64_t rows : {1, 15, 16, 17, 40}) {
      for (const std::int64_t blocks : {1, 3, 5}) {
        const std::int64_t columns = blocks * packed_type_info(type).block_values;
        const auto bytes = random_rows(type, rows, columns);
        const PackedMatrix plain{bytes.data(), type, rows, columns};
        const Strips strips(plain);
        std::vector<std::byte> back(plain.row_bytes());
        for (std::int64_t row = 0; row < rows; ++row) {
          strip_row_restore(strips.matrix, row, back.data());
          EXPECT_EQ(0, std::memcmp(back.data(), plain.row(row), back.size()))
              << packed_type_info(type).name << " " << rows << " " << columns << " row " << row;
        }
      }
    }
  }
}

TEST(Strips, TakeNoMoreMemoryThanRowsAndALine) {
  for (const PackedType type : kTypes) {
    for (const std::int64_t columns : {256, 768, 2048}) {
      const std::size_t rows = static_cast<std::size_t>(kStripRows) * packed_bytes(type, columns);
      EXPECT_GE(strip_bytes(type, columns), rows);
      EXPECT_LT(strip_bytes(type, columns), rows + kAlignment);
    }
  }
}

TEST(Strips, PlainNumbersKeepTheirRows) {
  for (const PackedType type : {PackedType::f32, PackedType::f16, PackedType::bf16}) {
    EXPECT_FALSE(strips_supported(type)) << packed_type_info(type).name;
  }
}

// Against the sums in double precision of unpacked weights and rounded activations, and at the ends
// of all ranges.
TEST(Strips, MultiplyAsUnpackedWeightsDo) {
  if (kernels().empty()) GTEST_SKIP() << "this processor has no product for strips";
  for (const PackedType type : kTypes) {
    for (const auto& [out, blocks] :
         {std::pair<std::int64_t, std::int64_t>{7, 3}, {16, 2}, {49, 5}, {33, 1}}) {
      const std::int64_t in = blocks * packed_type_info(type).block_values;
      auto bytes = random_rows(type, out, in);
      const PackedMatrix plain{bytes.data(), type, out, in};
      for (const bool extreme : {false, true}) {
        if (extreme) extremes_write(type, bytes);
        const Strips strips(plain);
        std::vector<float> w(static_cast<std::size_t>(out * in));
        unpack_f32(type, bytes.data(), w.data(), out * in);
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 12}) {
          std::vector<float> x(static_cast<std::size_t>(rows * in));
          std::mt19937 random(5);
          std::normal_distribution<float> normal;
          for (float& value : x) value = extreme ? 1.0F : normal(random);
          const AlignedBytes memory = aligned_bytes(quantised_bytes(rows, in));
          const QuantisedRows rounded = quantised_carve(rows, in, memory.get());
          quantised_round(x.data(), 0, rows, rounded);
          std::vector<double> expected;
          double largest_sum = 0;
          for (std::int64_t m = 0; m < rows; ++m) {
            for (std::int64_t n = 0; n < out; ++n) {
              double sum = 0, size = 0;
              for (std::int64_t i = 0; i < in; ++i) {
                const auto at = static_cast<std::size_t>(m * in + i);
                const double value = static_cast<double>(rounded.scales[at / 32]) *
                                     (128 * rounded.high[at] + rounded.low[at]);
                const double term = value * w[static_cast<std::size_t>(n * in + i)];
                sum += term, size += std::abs(term);
              }
              expected.push_back(sum);
              largest_sum = std::max(largest_sum, size);
            }
          }
          for (const auto& [name, set] : kernels()) {
            std::vector<float> actual(expected.size(), std::numeric_limits<float>::quiet_NaN());
            set.dot(strips.matrix, 0, out, rounded, rows, actual.data(), out);
            for (std::size_t i = 0; i < actual.size(); ++i) {
              // Offsets are added and subtracted in float32: up to twice the terms' size.
              ASSERT_NEAR(actual[i], expected[i], 4e-7 * largest_sum)
                  << name << " " << packed_type_info(type).name << " " << out << " " << rows << " "
                  << extreme;
            }
          }
        }
      }
    }
  }
}

// The instruction sets add in the same order; of x86's, only AVX-512 VNNI moves bytes by 128.
TEST(Strips, GiveTheSameBitsOnEveryInstructionSet) {
  const auto found = kernels();
  if (found.size() < 2) GTEST_SKIP() << "this processor has one of the instruction sets alone";
  const std::int64_t in = 768, out = 40, rows = 5;
  for (const PackedType type : kTypes) {
    if (type == PackedType::q8_0 && found[1].first == std::string_view("vnni")) continue;
    const auto bytes = random_rows(type, out, in);
    const Strips strips({bytes.data(), type, out, in});
    std::vector<float> x(static_cast<std::size_t>(rows * in));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    const AlignedBytes memory = aligned_bytes(quantised_bytes(rows, in));
    const QuantisedRows rounded = quantised_carve(rows, in, memory.get());
    quantised_round(x.data(), 0, rows, rounded);
    std::vector<std::vector<float>> results;
    for (const auto& [name, set] : found) {
      results.emplace_back(static_cast<std::size_t>(rows * out));
      set.dot(strips.matrix, 0, out, rounded, rows, results.back().data(), out);
    }
    EXPECT_EQ(results[0], results[1]) << packed_type_info(type).name;
  }
}

// Many rows are multiplied as integers too, where that is fast: to the bits that few rows get.
TEST(Strips, ManyRowsGetTheBitsOfFew) {
  bool any = false;
  const std::int64_t out = 41, rows = 23;
  for (const auto& [name, set] : kernels()) {
    if (set.dot_many == nullptr) continue;
    any = true;
    for (const PackedType type : kTypes) {
      for (const bool extreme : {false, true}) {
        const std::int64_t in = 3 * packed_type_info(type).block_values;
        auto bytes = random_rows(type, out, in);
        if (extreme) extremes_write(type, bytes);
        const Strips strips({bytes.data(), type, out, in});
        std::vector<float> x(static_cast<std::size_t>(rows * in));
        std::mt19937 random(11);
        std::normal_distribution<float> normal;
        for (float& value : x) value = extreme ? -1.0F : normal(random);
        const AlignedBytes few_memory = aligned_bytes(quantised_bytes(rows, in));
        const QuantisedRows few = quantised_carve(rows, in, few_memory.get());
        quantised_round(x.data(), 0, 4, few);
        quantised_round(x.data(), 4, rows - 4, few);
        const AlignedBytes many_memory = aligned_bytes(words_bytes(rows, in));
        const WordRows many = words_carve(rows, in, many_memory.get());
        words_round(x.data(), 0, 9, many);
        words_round(x.data(), 9, rows - 9, many);
        std::vector<float> expected(static_cast<std::size_t>(rows * out));
        set.dot(strips.matrix, 0, out, few, rows, expected.data(), out);
        std::vector<float> actual(expected.size() + 1, -7.0F);
        const AlignedBytes scratch = aligned_bytes(StripKernels::panel_bytes(in));
        set.dot_many(strips.matrix, 0, out, many, rows, actual.data(), out, scratch.get());
        EXPECT_EQ(actual.back(), -7.0F) << "written past the end";
        actual.pop_back();
        EXPECT_EQ(actual, expected) << name << " " << packed_type_info(type).name << " " << extreme;
      }
    }
  }
  if (!any) GTEST_SKIP() << "this processor multiplies many rows otherwise";
}

// A batch must not change what a single row gets.
TEST(Strips, GiveARowTheSameBitsInAnyBatch) {
  if (kernels().empty()) GTEST_SKIP() << "this processor has no product for strips";
  Context context(2);
  const std::int64_t in = 256, out = 50, rows = 11;
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
