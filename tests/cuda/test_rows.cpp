// The operators between products on the GPU against the CPU's, on odd sizes too; outputs start as
// NaN.
#include "ops/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/rotate.h"
#include "core/bf16.h"
#include "cuda/support.h"
#include "models/rope.h"
#include "ops/elementwise.h"

namespace lca::test {
namespace {

std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

float rounded(float value) { return bf16_to_f32(bf16_from_f32(value)); }

/// Both are rounded to bf16, from float32 sums that were added in another order.
void expect_bf16_near(float expected, bf16 got, double scale = 1) {
  const double value = double_of(got);
  ASSERT_NEAR(value, static_cast<double>(rounded(expected)),
              std::fabs(static_cast<double>(expected)) / 120 + scale * 1e-5);
}

TEST(CudaRows, EmbeddingsAreScaledRowsOfTheTable) {
  LCA_NEEDS_GPU();
  Random random(100);
  for (const std::int64_t width : {1, 7, 64, 576, 2048}) {
    const std::int64_t vocabulary = 97, rows = 23;
    const std::vector<bf16> table = random_bf16(random, vocabulary * width);
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < rows; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
    }
    const DeviceArray<bf16> device_table(table);
    const DeviceArray<std::int32_t> device_tokens(tokens);
    const DeviceArray<float> out(nan_float(rows * width));
    cuda::rows_embed(device_table.data(), device_tokens.data(), rows, width, 12.5f, out.data(),
                     gpu_queue());
    const std::vector<float> got = out.download();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        const double value = double_of(table[size_of(tokens[size_of(r)] * width + i)]);
        ASSERT_EQ(got[size_of(r * width + i)], static_cast<float>(value * 12.5));
      }
    }
  }
}

TEST(CudaRows, NormsMatchTheCpuFromAnyRowsInAnyOrder) {
  LCA_NEEDS_GPU();
  Random random(200);
  Context context(1);
  for (const std::int64_t width : {3, 64, 100, 576, 2048, 7168}) {
    for (const bool gathered : {false, true}) {
      for (const bool biased : {false, true}) {
        const std::int64_t held = 31, rows = gathered ? 9 : held, stride = width + 4;
        const std::vector<float> x = random_float(random, held * stride, 3);
        const std::vector<float> weight = random_float(random, width);
        const std::vector<float> bias = random_float(random, width);
        std::vector<std::int32_t> from;
        for (std::int64_t r = 0; r < rows; ++r) {
          from.push_back(static_cast<std::int32_t>(gathered ? random.integer(0, held - 1) : r));
        }
        const DeviceArray<float> device_x(x), device_weight(weight), device_bias(bias);
        const DeviceArray<std::int32_t> device_from(from);
        const DeviceArray<bf16> out(nan_bf16(rows * width));
        cuda::RowsNorm job;
        job.x = device_x.data();
        job.x_stride = stride;
        if (gathered) job.from = device_from.data();
        if (biased) job.bias = device_bias.data();
        job.weight = device_weight.data();
        job.eps = 1e-5;
        job.factor = 0.5f;
        job.rows = rows;
        job.width = width;
        job.out = out.data();
        cuda::rows_norm(job, gpu_queue());
        const std::vector<bf16> got = out.download();
        std::vector<float> row(size_of(width)), expected(size_of(width));
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t i = 0; i < width; ++i) {
            row[size_of(i)] =
                x[size_of(from[size_of(r)] * stride + i)] + (biased ? bias[size_of(i)] : 0.0f);
          }
          rms_norm(context, row.data(), width, 1, width, weight.data(), 1e-5, expected.data(),
                   width);
          for (std::int64_t i = 0; i < width; ++i) {
            expect_bf16_near(expected[size_of(i)] / 2, got[size_of(r * width + i)]);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

RopeConfig rope_of(RopeKind kind, std::int64_t width) {
  RopeConfig config;
  config.kind = kind;
  config.width = width;
  config.factor = 4;
  config.original_length = 4096;
  if (kind == RopeKind::yarn) config.attention_factor = 1.25;
  if (kind == RopeKind::longrope) {
    for (std::int64_t i = 0; i < width / 2; ++i) {
      config.short_factors.push_back(1 + 0.1 * static_cast<double>(i));
      config.long_factors.push_back(2 + 0.3 * static_cast<double>(i));
    }
  }
  return config;
}

TEST(CudaRows, TurnsAreExactAtPositionsInTheMillions) {
  LCA_NEEDS_GPU();
  Random random(300);
  for (const RopeKind kind : {RopeKind::standard, RopeKind::linear, RopeKind::dynamic,
                              RopeKind::yarn, RopeKind::longrope, RopeKind::llama3}) {
    for (const std::int64_t width : {6, 64, 128}) {
      const Rope rope(rope_of(kind, width));
      const auto pairs = static_cast<int>(width / 2);
      // Two lengths: dynamic and longrope have frequencies of each.
      const std::int64_t lengths[] = {1000, 9000};
      std::vector<std::uint64_t> steps;
      for (const std::int64_t length : lengths) {
        for (const std::uint64_t step :
             rotation_steps({RopeLayout::halves, rope.frequencies(length)})) {
          steps.push_back(step);
        }
      }
      std::vector<std::int32_t> positions = {0, 1, 1048575, 4194304, 536870911}, tables;
      for (int i = 0; i < 40; ++i) {
        positions.push_back(static_cast<std::int32_t>(random.integer(0, 2000000)));
      }
      for (std::size_t i = 0; i < positions.size(); ++i) {
        tables.push_back(static_cast<std::int32_t>(random.integer(0, 1)));
      }
      const auto rows = std::ssize(positions);
      const DeviceArray<std::uint64_t> device_steps(steps);
      const DeviceArray<std::int32_t> device_positions(positions), device_tables(tables);
      const DeviceArray<cuda::RopeTurn> turns(
          std::vector<cuda::RopeTurn>(size_of(rows * pairs), {kNan, kNan}));
      cuda::RopeTurns job;
      job.steps = device_steps.data();
      job.tables = device_tables.data();
      job.positions = device_positions.data();
      job.rows = rows;
      job.pairs = pairs;
      job.factor = static_cast<float>(rope.multiplier(1));
      job.turns = turns.data();
      cuda::rope_turns(job, gpu_queue());
      const std::vector<cuda::RopeTurn> got = turns.download();
      std::vector<float> cosines(size_of(pairs)), sines(size_of(pairs));
      for (std::int64_t r = 0; r < rows; ++r) {
        rope.table(positions[size_of(r)], 1, lengths[tables[size_of(r)]], cosines.data(),
                   sines.data());
        for (std::int64_t i = 0; i < pairs; ++i) {
          const cuda::RopeTurn turn = got[size_of(r * pairs + i)];
          ASSERT_NEAR(turn.cosine, cosines[size_of(i)], 2e-6) << positions[size_of(r)];
          ASSERT_NEAR(turn.sine, sines[size_of(i)], 2e-6) << positions[size_of(r)];
        }
      }
    }
  }
}

/// What rows_place should write for one part of one row.
std::vector<float> placed(const std::vector<float>& row, std::int64_t heads, std::int64_t width,
                          std::int64_t plain, std::int64_t pairs, RopeLayout layout,
                          const float* cosines, const float* sines) {
  std::vector<float> values = row;
  if (pairs > 0) {
    rope_apply(values.data() + plain, 1, heads, heads * width, width, 2 * pairs, layout, cosines,
               sines);
  }
  return values;
}

struct PlaceShape {
  std::int64_t heads, plain, turned, pairs, keys, latent;
};

TEST(CudaRows, PartsAreRotatedAndPlacedWhereAttentionReadsThem) {
  LCA_NEEDS_GPU();
  Random random(400);
  Context context(1);
  const PlaceShape shapes[] = {{16, 128, 64, 32, 1, 512}, {4, 16, 8, 4, 1, 40}, {3, 5, 6, 3, 1, 7},
                               {9, 0, 64, 32, 3, 0},      {6, 0, 10, 3, 2, 0},  {2, 0, 8, 4, 2, 0}};
  for (const PlaceShape& shape : shapes) {
    for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::adjacent}) {
      for (const bool biased : {false, true}) {
        const std::int64_t rows = 13, held = 20, targets = 40;
        const bool mla = shape.latent > 0;
        const std::int64_t width = shape.plain + shape.turned;
        const std::int64_t third = mla ? shape.latent : shape.keys * shape.turned;
        const std::int64_t queries = shape.heads * width, keys = shape.keys * shape.turned;
        const std::int64_t stride = queries + keys + third;
        const std::vector<float> x = random_float(random, held * stride);
        const std::vector<float> bias = random_float(random, stride);
        const std::vector<float> norm = random_float(random, std::max<std::int64_t>(third, 1));
        std::vector<std::int32_t> source, query_to, entry_to;
        for (std::int64_t r = 0; r < rows; ++r) {
          source.push_back(static_cast<std::int32_t>((r * 7 + 3) % held));
          query_to.push_back(static_cast<std::int32_t>((r * 3 + 1) % targets));
          entry_to.push_back(static_cast<std::int32_t>((r * 11 + 5) % targets));
        }
        std::vector<cuda::RopeTurn> turns(size_of(held * shape.pairs));
        for (cuda::RopeTurn& turn : turns) {
          turn = {static_cast<float>(random.normal()), static_cast<float>(random.normal())};
        }
        const DeviceArray<float> device_x(x), device_bias(bias), device_norm(norm);
        const DeviceArray<std::int32_t> device_source(source), device_query(query_to),
            device_entry(entry_to);
        const DeviceArray<cuda::RopeTurn> device_turns(turns);
        const DeviceArray<bf16> nope(nan_bf16(targets * shape.heads * shape.plain + 1));
        const DeviceArray<bf16> rope(nan_bf16(targets * shape.heads * shape.turned));
        const DeviceArray<bf16> positional(nan_bf16(targets * keys));
        const DeviceArray<bf16> semantic(nan_bf16(targets * third));
        cuda::RowsPlace job;
        job.source = device_source.data();
        job.rows = rows;
        job.turns = device_turns.data();
        job.pairs = static_cast<int>(shape.pairs);
        job.layout = layout;
        cuda::PlacedPart parts[3];
        for (cuda::PlacedPart& part : parts) part.stride = stride;
        const auto bias_at = [&](std::int64_t at) {
          return biased ? device_bias.data() + at : nullptr;
        };
        parts[0].from = device_x.data();
        parts[0].bias = bias_at(0);
        parts[0].heads = static_cast<int>(shape.heads);
        parts[0].width = static_cast<int>(width);
        parts[0].plain = static_cast<int>(shape.plain);
        parts[0].rotated = true;
        parts[0].to = device_query.data();
        parts[0].plain_out = nope.data();
        parts[0].out = rope.data();
        parts[1].from = device_x.data() + queries;
        parts[1].bias = bias_at(queries);
        parts[1].heads = static_cast<int>(shape.keys);
        parts[1].width = static_cast<int>(shape.turned);
        parts[1].rotated = true;
        parts[1].to = device_entry.data();
        parts[1].out = positional.data();
        parts[2].from = device_x.data() + queries + keys;
        parts[2].bias = bias_at(queries + keys);
        parts[2].heads = static_cast<int>(mla ? 1 : shape.keys);
        parts[2].width = static_cast<int>(mla ? third : shape.turned);
        if (mla) parts[2].norm = device_norm.data();
        parts[2].eps = 1e-6;
        parts[2].to = device_entry.data();
        parts[2].out = semantic.data();
        cuda::rows_place(job, parts, gpu_queue());

        const std::vector<bf16> got_nope = nope.download(), got_rope = rope.download();
        const std::vector<bf16> got_keys = positional.download(), got_third = semantic.download();
        std::int64_t written = 0;
        for (const bf16 value : got_rope) written += !std::isnan(double_of(value));
        EXPECT_EQ(written, rows * shape.heads * shape.turned) << "rows beside the targets";
        std::vector<float> cosines(size_of(shape.pairs)), sines(size_of(shape.pairs));
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t from = source[size_of(r)];
          for (std::int64_t i = 0; i < shape.pairs; ++i) {
            cosines[size_of(i)] = turns[size_of(from * shape.pairs + i)].cosine;
            sines[size_of(i)] = turns[size_of(from * shape.pairs + i)].sine;
          }
          const auto part_of = [&](std::int64_t first, std::int64_t count) {
            std::vector<float> values(x.begin() + from * stride + first,
                                      x.begin() + from * stride + first + count);
            for (std::int64_t i = 0; biased && i < count; ++i) {
              values[size_of(i)] += bias[size_of(first + i)];
            }
            return values;
          };
          const std::vector<float> q = placed(part_of(0, queries), shape.heads, width, shape.plain,
                                              shape.pairs, layout, cosines.data(), sines.data());
          for (std::int64_t h = 0; h < shape.heads; ++h) {
            const std::int64_t at = query_to[size_of(r)] * shape.heads + h;
            for (std::int64_t i = 0; i < width; ++i) {
              const bf16 value = i < shape.plain
                                     ? got_nope[size_of(at * shape.plain + i)]
                                     : got_rope[size_of(at * shape.turned + i - shape.plain)];
              expect_bf16_near(q[size_of(h * width + i)], value);
              if (HasFatalFailure()) return;
            }
          }
          const std::vector<float> k = placed(part_of(queries, keys), shape.keys, shape.turned, 0,
                                              shape.pairs, layout, cosines.data(), sines.data());
          for (std::int64_t i = 0; i < keys; ++i) {
            expect_bf16_near(k[size_of(i)], got_keys[size_of(entry_to[size_of(r)] * keys + i)]);
            if (HasFatalFailure()) return;
          }
          std::vector<float> last = part_of(queries + keys, third);
          if (mla) {
            rms_norm(context, last.data(), third, 1, third, norm.data(), 1e-6, last.data(), third);
          }
          for (std::int64_t i = 0; i < third; ++i) {
            expect_bf16_near(last[size_of(i)],
                             got_third[size_of(entry_to[size_of(r)] * third + i)]);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaRows, RowsMoveWhereTheyAreSent) {
  LCA_NEEDS_GPU();
  Random random(500);
  for (const std::int64_t width : {1, 24, 2048}) {
    const std::vector<bf16> x = random_bf16(random, 10 * width);
    const std::vector<std::int32_t> from = {9, 0, 4, 4}, to = {2, 1, 5, 0};
    const DeviceArray<bf16> device_x(x), out(nan_bf16(6 * width));
    const DeviceArray<std::int32_t> device_from(from), device_to(to);
    cuda::rows_move(device_x.data(), device_from.data(), 4, width, out.data(), device_to.data(),
                    gpu_queue());
    const std::vector<bf16> got = out.download();
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(double_of(got[size_of(to[r] * width + i)]),
                  double_of(x[size_of(from[r] * width + i)]));
      }
    }
    EXPECT_TRUE(std::isnan(double_of(got[size_of(3 * width)]))) << "nothing was sent to row 3";
  }
}

TEST(CudaRows, MatricesAreTurned) {
  LCA_NEEDS_GPU();
  Random random(550);
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{128, 512}, {5, 70}, {33, 31}, {1, 1}}) {
    const std::vector<bf16> x = random_bf16(random, 3 * rows * columns);
    const DeviceArray<bf16> device_x(x), out(nan_bf16(3 * rows * columns));
    cuda::matrices_turn(device_x.data(), 3, rows, columns, out.data(), gpu_queue());
    const std::vector<bf16> got = out.download();
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          ASSERT_EQ(double_of(got[size_of((b * columns + j) * rows + i)]),
                    double_of(x[size_of((b * rows + i) * columns + j)]));
        }
      }
    }
  }
}

TEST(CudaRows, SwigluAndBiasesMatchTheCpu) {
  LCA_NEEDS_GPU();
  Random random(600);
  Context context(1);
  for (const std::int64_t width : {1, 44, 192, 1408}) {
    for (const bool biased : {false, true}) {
      const std::int64_t rows = 17;
      std::vector<float> x = random_float(random, rows * 2 * width);
      x[0] = -1000;  // a gate that is shut
      const std::vector<float> bias = random_float(random, 2 * width);
      const DeviceArray<bf16> out(nan_bf16(rows * width));
      const DeviceArray<float> device_x(x), device_bias(bias);
      cuda::rows_swiglu(device_x.data(), biased ? device_bias.data() : nullptr, rows, width,
                        out.data(), gpu_queue());
      const std::vector<bf16> got = out.download();
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<float> gate, up;
        for (std::int64_t i = 0; i < 2 * width; ++i) {
          (i < width ? gate : up)
              .push_back(x[size_of(r * 2 * width + i)] + (biased ? bias[size_of(i)] : 0.0f));
        }
        swiglu(context, gate.data(), up.data(), width);
        for (std::int64_t i = 0; i < width; ++i) {
          expect_bf16_near(gate[size_of(i)], got[size_of(r * width + i)], 10);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  const std::vector<float> start = random_float(random, 5 * 33), bias = random_float(random, 33);
  const DeviceArray<float> x(start), device_bias(bias);
  cuda::rows_add_bias(device_bias.data(), 0.25f, 5, 33, x.data(), gpu_queue());
  const std::vector<float> got = x.download();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_FLOAT_EQ(got[i], start[i] + 0.25f * bias[i % 33]);
  }
}

TEST(CudaRows, TheLargestValueOfARowIsFoundAndTiesGoToTheLowestIndex) {
  LCA_NEEDS_GPU();
  Random random(700);
  for (const std::int64_t width : {1, 5, 1000, 49152, 102400}) {
    const std::int64_t rows = 7;
    std::vector<float> x = random_float(random, rows * width);
    for (std::int64_t i = 0; i < width; ++i) {
      x[size_of(width + i)] = -3.5f;       // all equal
      x[size_of(width * 2 + i)] -= 1e30f;  // all negative
    }
    if (width > 900) {
      x[size_of(3 * width + 811)] = x[size_of(3 * width + 17)] = 1e9f;
      x[size_of(4 * width + 3)] = kNan;
      x[size_of(5 * width + 899)] = std::numeric_limits<float>::infinity();
    }
    const DeviceArray<float> device_x(x);
    const DeviceArray<std::uint64_t> space(
        std::vector<std::uint64_t>(size_of(rows * cuda::kArgmaxParts), ~std::uint64_t{0}));
    const DeviceArray<std::int32_t> out(std::vector<std::int32_t>(size_of(rows), -1));
    cuda::rows_argmax(device_x.data(), rows, width, space.data(), out.data(), gpu_queue());
    const std::vector<std::int32_t> got = out.download();
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int64_t best = -1;
      for (std::int64_t i = 0; i < width; ++i) {
        const float value = x[size_of(r * width + i)];
        if (std::isnan(value)) {
          best = -1;
          break;
        }
        if (best < 0 || value > x[size_of(r * width + best)]) best = i;
      }
      ASSERT_EQ(got[size_of(r)], best) << "row " << r << " of width " << width;
    }
  }
}

}  // namespace
}  // namespace lca::test
