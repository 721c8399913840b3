// LoRA changes beside weights, packed ones included, against plain loops in double precision.

#include <gtest/gtest.h>

#include <lca/error.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "core/context_state.h"
#include "ops/linear.h"
#include "ops/pack.h"
#include "ops/strips.h"
#include "support/worst.h"

namespace lca::test {
namespace {

using Floats = std::vector<float>;

Floats lora_values(std::mt19937& random, std::int64_t count, float size = 1) {
  std::uniform_real_distribution<float> uniform(-size, size);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

PackedMatrix f32_matrix(const Floats& values, std::int64_t rows) {
  return {reinterpret_cast<const std::byte*>(values.data()), PackedType::f32, rows,
          static_cast<std::int64_t>(values.size()) / rows};
}

/// A linear layer with a random change (rank 0: none), and what it computes.
struct ChangedLayer {
  std::int64_t in, out, rank;
  Floats weight, bias, a, b;
  float scale = 0.75F;
  AlignedBytes packed, strips, layout;
  Linear layer;

  ChangedLayer(std::mt19937& random, std::int64_t inner, std::int64_t outer, std::int64_t r,
               bool with_bias, ProductType type)
      : in(inner),
        out(outer),
        rank(r),
        weight(lora_values(random, in * out)),
        bias(lora_values(random, out)),
        a(lora_values(random, rank * in)),
        b(lora_values(random, out * rank)) {
    layer.weight = f32_matrix(weight, out);
    if (with_bias) layer.bias = bias.data();
    if (rank == 0) return;
    layer.lora = {f32_matrix(a, rank), f32_matrix(b, out), scale, {}};
    layout = aligned_bytes(layer.lora.layout_bytes(type));
    layer.lora.arrange(type, layout.get());
  }
  /// The weight in blocks of 8 bits, in strips where this processor has such products.
  void pack(Context& context, bool in_strips) {
    packed = aligned_bytes(packed_bytes(PackedType::q8_0, in * out));
    ASSERT_EQ(pack_matrix(context, layer.weight, PackedType::q8_0, packed.get()),
              PackResult::packed);
    layer.weight = {packed.get(), PackedType::q8_0, out, in};
    unpack_f32(PackedType::q8_0, packed.get(), weight.data(), in * out);
    if (!in_strips) return;
    const std::size_t bytes = strip_bytes(PackedType::q8_0, in);
    strips = aligned_bytes(static_cast<std::size_t>(strip_count(out)) * bytes);
    for (std::int64_t strip = 0; strip < strip_count(out); ++strip) {
      strip_arrange(layer.weight, strip, strips.get() + static_cast<std::size_t>(strip) * bytes);
    }
    layer.weight = {strips.get(), PackedType::q8_0, out, in, true};
  }

  std::vector<double> expected(const Floats& x) const {
    const auto at = [](const Floats& values, std::int64_t index) {
      return static_cast<double>(values[static_cast<std::size_t>(index)]);
    };
    const std::int64_t rows = std::ssize(x) / in;
    std::vector<double> result(static_cast<std::size_t>(rows * out));
    std::vector<double> low(static_cast<std::size_t>(rank));
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t r = 0; r < rank; ++r) {
        double sum = 0;
        for (std::int64_t k = 0; k < in; ++k) sum += at(x, m * in + k) * at(a, r * in + k);
        low[static_cast<std::size_t>(r)] = scale * sum;
      }
      for (std::int64_t n = 0; n < out; ++n) {
        double sum = layer.bias == nullptr ? 0 : at(bias, n);
        for (std::int64_t k = 0; k < in; ++k) sum += at(x, m * in + k) * at(weight, n * in + k);
        for (std::int64_t r = 0; r < rank; ++r) {
          sum += low[static_cast<std::size_t>(r)] * at(b, n * rank + r);
        }
        result[static_cast<std::size_t>(m * out + n)] = sum;
      }
    }
    return result;
  }
};

Floats lora_poisoned(std::size_t count) {
  return Floats(count, std::numeric_limits<float>::quiet_NaN());
}

/// An error of sums of `in` and `rank` products of numbers up to one, of `unit` each.
double lora_tolerance(double unit, std::int64_t in, std::int64_t rank) {
  const auto count = static_cast<double>(in);
  return unit * (std::sqrt(count) + std::sqrt(count * static_cast<double>(rank))) + unit;
}

TEST(LoraProducts, MatchPlainLoopsForEveryRank) {
  Context context(2);
  std::mt19937 random(1);
  for (const std::int64_t rank : {1, 3, 8, 16, 17, 24, 40}) {
    for (const auto& [in, out] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {31, 33}, {64, 300}, {576, 96}, {130, 16}}) {
      for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
        const ChangedLayer changed(random, in, out, rank, rank % 2 == 0, type);
        for (const std::int64_t rows : {1, 2, 4, 5, 12, 13, 40}) {
          const Floats x = lora_values(random, rows * in);
          const auto expected = changed.expected(x);
          Floats actual = lora_poisoned(expected.size());
          context.state().workspace.poison();
          linear(context, changed.layer, type, x.data(), rows, actual.data());
          const double unit = type == ProductType::f32 ? 4e-6 : 8e-3;
          EXPECT_LE(worst_difference(expected, actual), lora_tolerance(unit, in, rank))
              << "rank " << rank << ", " << in << " to " << out << ", " << rows << " rows";
        }
      }
    }
  }
}

TEST(LoraProducts, StandBesidePackedWeightsWithoutChangingThem) {
  Context context(2);
  std::mt19937 random(2);
  const std::int64_t in = 96, out = 83, rank = 5;
  for (const bool in_strips : {false, true}) {
    if (in_strips && !strips_supported(PackedType::q8_0)) continue;
    ChangedLayer changed(random, in, out, rank, true, ProductType::bf16);
    changed.pack(context, in_strips);
    for (const std::int64_t rows : {1, 3, 12, 25}) {
      const Floats x = lora_values(random, rows * in);
      const auto expected = changed.expected(x);
      Floats actual = lora_poisoned(expected.size());
      linear(context, changed.layer, ProductType::bf16, x.data(), rows, actual.data());
      EXPECT_LE(worst_difference(expected, actual), lora_tolerance(8e-3, in, rank));
      // What the change adds is what it adds to any other weight, to the rounding of one addition.
      Linear bare = changed.layer;
      bare.lora = {};
      Floats without = lora_poisoned(expected.size());
      linear(context, bare, ProductType::bf16, x.data(), rows, without.data());
      const Floats zeros(changed.weight.size(), 0.0F);
      Linear alone = changed.layer;
      alone.weight = f32_matrix(zeros, out);
      alone.bias = nullptr;
      Floats change = lora_poisoned(expected.size());
      linear(context, alone, ProductType::bf16, x.data(), rows, change.data());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        ASSERT_EQ(actual[i], without[i] + change[i]);
      }
    }
  }
}

TEST(LoraProducts, AGroupMayHaveChangesOfDifferentRanksOrNone) {
  Context context(2);
  std::mt19937 random(3);
  const std::int64_t in = 80;
  for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
    std::vector<std::unique_ptr<ChangedLayer>> layers;
    for (const std::int64_t rank : {20, 0, 1, 16, 0}) {
      const auto out = static_cast<std::int64_t>(20 + random() % 60);
      layers.push_back(
          std::make_unique<ChangedLayer>(random, in, out, rank, random() % 2 == 0, type));
    }
    const std::vector<std::int64_t> runs{2, 30, 1, 12, 13};
    const Floats x = lora_values(random, 58 * in);
    std::vector<Floats> outs;
    std::vector<LinearCall> calls;
    for (const auto& changed : layers) {
      outs.push_back(lora_poisoned(static_cast<std::size_t>(58 * changed->out)));
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      calls.push_back({&layers[i]->layer, outs[i].data()});
    }
    linear_group(context, calls, type, x.data(), runs);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const double unit = type == ProductType::f32 ? 4e-6 : 8e-3;
      EXPECT_LE(worst_difference(layers[i]->expected(x), outs[i]),
                lora_tolerance(unit, in, layers[i]->rank))
          << i;
      // The others of the group make no difference.
      Floats alone = lora_poisoned(outs[i].size());
      linear(context, layers[i]->layer, type, x.data(), runs, alone.data());
      EXPECT_EQ(alone, outs[i]) << i;
    }
  }
}

TEST(LoraProducts, RunsTogetherGetWhatEachGetsAlone) {
  Context context(2);
  std::mt19937 random(4);
  const std::int64_t in = 96, out = 72;
  for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
    ChangedLayer changed(random, in, out, 19, false, type);
    if (type == ProductType::bf16) changed.pack(context, strips_supported(PackedType::q8_0));
    for (int round = 0; round < 6; ++round) {
      std::vector<std::int64_t> runs;
      std::int64_t rows = 0;
      for (int i = 0; i < 7; ++i) {
        runs.push_back(1 + static_cast<std::int64_t>(random() % (i % 2 == 0 ? 40 : 12)));
        rows += runs.back();
      }
      const Floats x = lora_values(random, rows * in);
      Floats together = lora_poisoned(static_cast<std::size_t>(rows * out));
      Floats alone = together;
      linear(context, changed.layer, type, x.data(), runs, together.data());
      std::int64_t at = 0;
      for (const std::int64_t run : runs) {
        linear(context, changed.layer, type, x.data() + at * in, run, alone.data() + at * out);
        at += run;
      }
      ASSERT_EQ(together, alone);
    }
  }
}

TEST(ThreadsLora, BitsDoNotDependOnTheThreads) {
  std::mt19937 random(5);
  const std::int64_t in = 96, out = 700;
  for (const ProductType type : {ProductType::f32, ProductType::bf16}) {
    const ChangedLayer first(random, in, out, 24, false, type);
    const ChangedLayer second(random, in, 48, 7, true, type);
    for (const std::int64_t rows : {1, 3, 40}) {
      const Floats x = lora_values(random, rows * in);
      std::vector<Floats> results;
      for (const int threads : {1, 2, 7}) {
        Context context(threads);
        for (int round = 0; round < 20; ++round) {
          Floats y = lora_poisoned(static_cast<std::size_t>(rows * out));
          Floats z = lora_poisoned(static_cast<std::size_t>(rows * 48));
          const LinearCall calls[] = {{&first.layer, y.data()}, {&second.layer, z.data()}};
          linear_group(context, calls, type, x.data(), {&rows, 1});
          y.insert(y.end(), z.begin(), z.end());
          results.push_back(y);
        }
      }
      for (const Floats& result : results) ASSERT_EQ(result, results[0]);
    }
  }
}

TEST(LoraProducts, RoundToBfloat16OnlyWhereProductsDoOrNothingIsLost) {
  const Floats values(64, 1.0F);
  Lora lora{f32_matrix(values, 2), f32_matrix(values, 32), 1, {}};
  EXPECT_EQ(lora.layout_type(ProductType::f32), DType::f32);
  EXPECT_EQ(lora.layout_type(ProductType::bf16), DType::bf16);
  lora.a.type = PackedType::f16;
  EXPECT_EQ(lora.layout_type(ProductType::f32), DType::f32);
  lora.a.type = lora.b.type = PackedType::bf16;
  EXPECT_EQ(lora.layout_type(ProductType::f32), DType::bf16);
  // Rank 2 takes a whole panel of A: [in][16], and B as it is: [out][2].
  EXPECT_EQ(lora.layout_bytes(ProductType::f32), (32U * 16 + 32 * 2) * 2);
}

TEST(LoraProducts, AChangeThatIsNotArrangedIsAnError) {
  Context context(1);
  const Floats values(64, 1.0F);
  Linear layer;
  layer.weight = f32_matrix(values, 8);
  layer.lora = {f32_matrix(values, 8), f32_matrix(values, 8), 1, {}};
  Floats out(8);
  EXPECT_THROW(linear(context, layer, ProductType::f32, values.data(), 1, out.data()), Error);
}

}  // namespace
}  // namespace lca::test
