// What must hold of entry positions (mechanism §10), on the reference and on the fast path.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "attention/layout.h"
#include "attention/rotate.h"
#include "support/compare.h"
#include "support/engine.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

const AttentionShape kRotatedMla = AttentionShape::mla(3, 6, 8, 16, 5);
const AttentionShape kRotatedGqa = AttentionShape::gqa(4, 2, 8, 6);

constexpr std::array kEveryPool{Pool::weighted, Pool::mean, Pool::max, Pool::select};
constexpr std::array kEveryMass{Mass::none, Mass::count, Mass::score};
constexpr std::array kLayouts{RopeLayout::halves, RopeLayout::adjacent};

LayerSpec entry_spec(const AttentionShape& shape, DType dtype, std::int64_t g, std::int64_t w,
                     std::int64_t s) {
  LayerSpec spec;
  spec.shape = shape;
  spec.dtype = dtype;
  spec.settings.group = g;
  spec.settings.window = w;
  spec.settings.sink = s;
  spec.settings.summary_queries = 5;
  spec.settings.positions = Positions::entry;
  spec.rotation = rotation_plain(shape.d_positional(), 50);
  return spec;
}

LayerSpec at_tokens(LayerSpec spec) {
  spec.settings.positions = Positions::token;
  return spec;
}

class PositionsOf : public ::testing::TestWithParam<Engine> {};

INSTANTIATE_TEST_SUITE_P(Each, PositionsOf, engines(), engine_name);

// --- with nothing condensed --------------------------------------------------------------------

TEST(Positions, WithNothingCondensedTheyAreTokenPositionsBitForBit) {
  Random random(31);
  Context context(2);
  for (const AttentionShape& shape :
       {kRotatedMla, kRotatedGqa, AttentionShape::gqa(2, 1, 64, 64)}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t sink : {0, 3, 70}) {
        for (const Mass mass : kEveryMass) {
          LayerSpec spec = entry_spec(shape, dtype, 7, 130, sink);
          spec.settings.mass = mass;
          const std::int64_t n = sink + 130 + 7 - 1;
          const Layer layer = random_layer(spec, random);
          Layer token = layer;
          token.spec = at_tokens(spec);
          const Tokens tokens = random_tokens(spec, n, random);
          for (const std::int64_t prompt : {n, n / 2}) {
            const std::array<std::int64_t, 1> prefill{prompt};
            const Outcome ours = run_sequence(context, layer, tokens, prefill);
            EXPECT_EQ(ours.groups, 0);
            EXPECT_TRUE(same_bits(run_sequence(context, token, tokens, prefill), ours))
                << describe(spec) << " P=" << prompt;
          }
        }
      }
    }
  }
}

TEST(Positions, QueriesBeforeTheFirstCondensationAreTokenPositionsBitForBitInATileWithLaterOnes) {
  Random random(32);
  Context context(2);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const LayerSpec spec = entry_spec(shape, dtype, 4, 40, 5);
      const Layer layer = random_layer(spec, random);
      Layer token = layer;
      token.spec = at_tokens(spec);
      const Tokens tokens = random_tokens(spec, 90, random);
      const Outcome ours = run_sequence(context, layer, tokens);
      const Outcome theirs = run_sequence(context, token, tokens);
      const auto before = (5 + 40 + 4 - 1) * shape.heads * shape.d_value;
      EXPECT_TRUE(std::equal(ours.out.begin(), ours.out.begin() + before, theirs.out.begin()));
      EXPECT_NE(ours.out, theirs.out);
    }
  }
}

TEST(Positions, DenseAttentionAndAWindowWithoutASinkKeepTheirBits) {
  Random random(33);
  Context context(2);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const MethodKind method : {MethodKind::dense, MethodKind::window}) {
      LayerSpec spec = entry_spec(shape, DType::f32, 4, 6, 0);
      spec.settings.method = method;
      const Layer layer = random_layer(spec, random);
      Layer token = layer;
      token.spec = at_tokens(spec);
      const Tokens tokens = random_tokens(spec, 50, random);
      const std::array<std::int64_t, 1> prefill{30};
      EXPECT_TRUE(same_bits(run_sequence(context, token, tokens, prefill),
                            run_sequence(context, layer, tokens, prefill)));
    }
  }
}

// --- what they are -----------------------------------------------------------------------------

/// Rows at position 0: the rotation of their tokens taken off.
std::vector<double> bare(const LayerSpec& spec, const Buffer& rows, std::int64_t i, std::int64_t j,
                         std::int64_t first, std::int64_t width) {
  std::vector<double> row;
  for (std::int64_t k = 0; k < width; ++k) row.push_back(rows.get(i, j, first + k));
  rotate_row(spec.rotation, -i, row.data());
  return row;
}

/// One thing a query sees: what is stored of it, its key at position 0.
struct Entry {
  std::vector<double> semantic;
  std::vector<double> bare_key;
  double bias = 0;
};

/// Dense attention over gathered entries at positions 0, 1, 2, …: head h of the last one's token.
std::vector<double> dense_over(const Layer& layer, const std::vector<Entry>& entries,
                               const std::vector<double>& nope, const std::vector<double>& rope,
                               std::int64_t h) {
  const LayerSpec& spec = layer.spec;
  const AttentionShape& shape = spec.shape;
  const auto at = [&](std::vector<double> row, std::size_t position) {
    rotate_row(spec.rotation, static_cast<std::int64_t>(position), row.data());
    return row;
  };
  const std::vector<double> query = at(rope, entries.size() - 1);
  std::vector<double> logits;
  for (std::size_t p = 0; p < entries.size(); ++p) {
    const std::vector<double> key = at(entries[p].bare_key, p);
    double sum = 0;
    for (std::size_t k = 0; k < key.size(); ++k) sum += query[k] * key[k];
    for (std::int64_t k = 0; k < shape.d_nope; ++k) {
      for (std::int64_t c = 0; c < shape.d_latent; ++c) {
        sum += nope[static_cast<std::size_t>(k)] * layer.w_uk.get(h, k, c) *
               entries[p].semantic[static_cast<std::size_t>(c)];
      }
    }
    logits.push_back(spec.softmax_scale() * sum + entries[p].bias);
  }
  const double top = *std::ranges::max_element(logits);
  double total = 0;
  for (double& logit : logits) total += logit = std::exp(logit - top);
  std::vector<double> out(static_cast<std::size_t>(shape.d_value), 0.0);
  for (std::size_t p = 0; p < entries.size(); ++p) {
    for (std::int64_t v = 0; v < shape.d_value; ++v) {
      double value = 0;
      if (shape.form == Form::gqa) {
        value = entries[p].semantic[static_cast<std::size_t>(v)];
      } else {
        for (std::int64_t c = 0; c < shape.d_latent; ++c) {
          value += layer.w_uv.get(h, v, c) * entries[p].semantic[static_cast<std::size_t>(c)];
        }
      }
      out[static_cast<std::size_t>(v)] += logits[p] / total * value;
    }
  }
  return out;
}

/// The entries that query t sees, with the representatives of `result`.
std::vector<Entry> gather(const LayerSpec& spec, const Tokens& tokens,
                          const reference::Result& result, std::int64_t t, std::int64_t kv) {
  const AttentionShape& shape = spec.shape;
  const Layout layout(spec.settings);
  const Visible seen = layout.visible(t);
  std::vector<Entry> entries;
  const auto add_token = [&](std::int64_t i) {
    Entry entry;
    for (std::int64_t k = 0; k < shape.d_semantic(); ++k) {
      entry.semantic.push_back(tokens.semantic.get(i, kv, k));
    }
    entry.bare_key = bare(spec, tokens.positional, i, kv, 0, shape.d_positional());
    entries.push_back(entry);
  };
  for (std::int64_t i = seen.sink.begin; i < seen.sink.end; ++i) add_token(i);
  for (std::int64_t j = 0; j < seen.groups; ++j) {
    Entry entry;
    const std::int64_t row = j * shape.kv_heads + kv;
    const auto semantic = result.rep_semantic.begin() + row * shape.d_semantic();
    const auto key = result.rep_positional.begin() + row * shape.d_positional();
    entry.semantic.assign(semantic, semantic + shape.d_semantic());
    entry.bare_key.assign(key, key + shape.d_positional());
    rotate_row(spec.rotation, -static_cast<std::int64_t>(entries.size()), entry.bare_key.data());
    entry.bias = result.rep_bias[static_cast<std::size_t>(row)];
    entries.push_back(entry);
  }
  for (std::int64_t i = seen.window.begin; i < seen.window.end; ++i) add_token(i);
  return entries;
}

void expect_dense_over_entries(const Engine& engine, const LayerSpec& spec, std::int64_t n,
                               std::int64_t prompt, Random& random) {
  SCOPED_TRACE(describe(spec));
  const AttentionShape& shape = spec.shape;
  const Layer layer = random_layer(spec, random);
  const Example example = random_example(layer, n, prompt, random);
  const Tokens& tokens = example.tokens;
  const reference::Result result = engine.compute(layer, tokens, prompt);
  std::vector<double> expected;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::vector<Entry> entries = gather(spec, tokens, result, t, h / shape.heads_per_kv());
      std::vector<double> nope;
      for (std::int64_t k = 0; k < shape.d_nope; ++k) nope.push_back(tokens.query.get(t, h, k));
      const std::vector<double> rope = bare(spec, tokens.query, t, h, shape.d_nope, shape.d_rope);
      const std::vector<double> out = dense_over(layer, entries, nope, rope, h);
      expected.insert(expected.end(), out.begin(), out.end());
    }
  }
  EXPECT_LE(error_of(expected, result.out), std::max(engine.tolerance, 1e-11));
}

TEST_P(PositionsOf, TheyAreThoseOfDenseAttentionOverTheGatheredEntries) {
  Random random(34);
  std::size_t turn = 0;
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const Pool semantic : kEveryPool) {
      for (const Pool positional : kEveryPool) {
        for (const Mass mass : kEveryMass) {
          if (turn++ % scaled_step(5) != 0) continue;
          LayerSpec spec =
              entry_spec(shape, GetParam().dtype, 4, 6, static_cast<std::int64_t>(turn % 4));
          spec.settings.semantic_pool = semantic;
          spec.settings.positional_pool = positional;
          spec.settings.mass = mass;
          spec.settings.summary = turn % 3 == 0 ? Summary::prompt : Summary::streaming;
          spec.rotation = random_rotation(random, shape.d_positional());
          expect_dense_over_entries(GetParam(), spec, 37, turn % 2 == 0 ? 37 : 20, random);
        }
      }
    }
  }
}

TEST_P(PositionsOf, TheMethodsWindowAndDenseFollowTheSameRule) {
  Random random(35);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const MethodKind method : {MethodKind::window, MethodKind::dense}) {
      for (const std::int64_t sink : {0, 1, 5, 40}) {
        LayerSpec spec = entry_spec(shape, GetParam().dtype, 4, 6, sink);
        spec.settings.method = method;
        spec.rotation = random_rotation(random, shape.d_positional());
        expect_dense_over_entries(GetParam(), spec, 30, 14, random);
      }
    }
  }
}

TEST_P(PositionsOf, ASelectedKeyIsOneOfTheGroupsRotatedToItsEntry) {
  Random random(36);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const RopeLayout layout : kLayouts) {
      LayerSpec spec = entry_spec(shape, GetParam().dtype, 5, 6, 2);
      spec.rotation.layout = layout;
      const Layer layer = random_layer(spec, random);
      const Tokens tokens = random_tokens(spec, 60, random);
      const reference::Result result = GetParam().compute(layer, tokens);
      const Layout law(spec.settings);
      ASSERT_EQ(result.groups, 10);
      for (std::int64_t j = 0; j < result.groups; ++j) {
        for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
          const std::int64_t width = shape.d_positional();
          const double* kept = result.rep_positional.data() + (j * shape.kv_heads + kv) * width;
          double nearest = 1e9;
          const Range group = law.group_range(j);
          for (std::int64_t i = group.begin; i < group.end; ++i) {
            std::vector<double> row = bare(spec, tokens.positional, i, kv, 0, width);
            rotate_row(spec.rotation, 2 + j, row.data());
            double apart = 0;
            for (std::int64_t k = 0; k < width; ++k) {
              apart = std::max(apart, std::abs(row[static_cast<std::size_t>(k)] - kept[k]));
            }
            nearest = std::min(nearest, apart);
          }
          EXPECT_LE(nearest, GetParam().tolerance);
        }
      }
    }
  }
}

TEST_P(PositionsOf, ScoresAndMassStayAtTokenPositions) {
  Random random(37);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    for (const Pool pool : kEveryPool) {
      LayerSpec spec = entry_spec(shape, GetParam().dtype, 5, 6, 2);
      spec.settings.positional_pool = pool;
      spec.settings.mass = Mass::score;
      const Layer layer = random_layer(spec, random);
      Layer token = layer;
      token.spec = at_tokens(spec);
      const Tokens tokens = random_tokens(spec, 60, random);
      const reference::Result ours = GetParam().compute(layer, tokens);
      const reference::Result theirs = GetParam().compute(token, tokens);
      EXPECT_EQ(ours.rep_bias, theirs.rep_bias);
      EXPECT_EQ(ours.rep_semantic, theirs.rep_semantic);
      EXPECT_NE(ours.rep_positional, theirs.rep_positional);
    }
  }
}

TEST_P(PositionsOf, OnlyDistancesMatterSoThatAFarSequenceIsTheSameAsANearOne) {
  // Queries and keys of a sequence that begins a million tokens later, all rotated alike: window
  // and sink keep their distances, and nothing else may notice.
  Random random(38);
  for (const AttentionShape& shape : {kRotatedMla, kRotatedGqa}) {
    const LayerSpec spec = entry_spec(shape, DType::f32, 4, 6, 2);
    const Layer layer = random_layer(spec, random);
    const Tokens near = random_tokens(spec, 50, random);
    Tokens far = near;
    const auto rotate = [&](Buffer& buffer, std::int64_t first, std::int64_t width) {
      for (std::int64_t i = 0; i < buffer.rows(); ++i) {
        for (std::int64_t j = 0; j < buffer.columns(); ++j) {
          std::vector<double> row;
          for (std::int64_t k = 0; k < width; ++k) row.push_back(buffer.get(i, j, first + k));
          rotate_row(spec.rotation, 1'000'000, row.data());
          for (std::int64_t k = 0; k < width; ++k) {
            buffer.set(i, j, first + k, row[static_cast<std::size_t>(k)]);
          }
        }
      }
    };
    rotate(far.query, shape.d_nope, shape.d_rope);
    rotate(far.entry, shape.d_semantic(), shape.d_positional());
    far.split();
    if (near_ties(truth(layer, near), DType::bf16) > 0) continue;
    EXPECT_TRUE(close_outputs(GetParam().compute(layer, near), GetParam().compute(layer, far),
                              std::max(GetParam().tolerance, 2e-5)));
  }
}

TEST(Positions, ALayerWithoutFrequenciesIsRefused) {
  LayerSpec spec = entry_spec(kRotatedGqa, DType::f32, 4, 6, 0);
  spec.rotation.frequencies.clear();
  EXPECT_THROW(Cache{spec}, Error);
  spec.rotation.frequencies.assign(5, 1.0);  // of at most four pairs
  EXPECT_THROW(Cache{spec}, Error);
  spec.rotation.frequencies.assign(4, std::nan(""));
  EXPECT_THROW(Cache{spec}, Error);
  spec.rotation.frequencies.assign(1, 1.0);
  EXPECT_NO_THROW(Cache{spec});
}

}  // namespace
}  // namespace lca::test
