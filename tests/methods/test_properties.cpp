// What must hold (mechanism §9), on the reference and on the fast path; item 3 is in
// test_theorem.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "support/compare.h"
#include "support/engine.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

const AttentionShape kMla = AttentionShape::mla(3, 6, 4, 16, 5);
const AttentionShape kGqa = AttentionShape::gqa(4, 2, 8, 6);

constexpr std::array kForms{Form::mla, Form::gqa};
constexpr std::array kDTypes{DType::f32, DType::bf16};
constexpr std::array kSummaries{Summary::streaming, Summary::prompt};
constexpr std::array kPools{Pool::weighted, Pool::mean, Pool::max, Pool::select};
constexpr std::array kMasses{Mass::none, Mass::count, Mass::score};

LayerSpec make_spec(Form form, DType dtype, std::int64_t g, std::int64_t w, std::int64_t s) {
  LayerSpec spec;
  spec.shape = form == Form::mla ? kMla : kGqa;
  spec.dtype = dtype;
  spec.settings.group = g;
  spec.settings.window = w;
  spec.settings.sink = s;
  spec.settings.summary_queries = 5;
  return spec;
}

class Properties : public ::testing::TestWithParam<Engine> {};

INSTANTIATE_TEST_SUITE_P(Of, Properties, engines(), engine_name);

// --- 1. short contexts and groups of one are dense attention -----------------------------------

TEST(PropertiesOfTheFastPath, AContextTooShortToCondenseIsDenseAttentionBitForBit) {
  Random random(11);
  Context context(2);
  for (Form form : kForms) {
    for (DType dtype : kDTypes) {
      for (std::int64_t sink : {0, 3}) {
        for (Summary summary : kSummaries) {
          for (Mass mass : kMasses) {
            LayerSpec spec = make_spec(form, dtype, 7, 30, sink);
            spec.settings.summary = summary;
            spec.settings.mass = mass;
            SCOPED_TRACE(describe(spec));
            const Layer lca = random_layer(spec, random);
            const Layer dense = lca.with(dense_settings());
            // The longest context that condenses nothing, and a few below it.
            const std::int64_t longest = sink + 30 + 7 - 1;
            for (std::int64_t n : {longest, longest - 1, std::int64_t{20}, std::int64_t{1}}) {
              const Tokens tokens = random_tokens(spec, n, random);
              for (std::int64_t prompt : {n, (n + 1) / 2}) {  // all prefilled, half decoded
                const std::array<std::int64_t, 1> prefill{prompt};
                const Outcome ours = run_sequence(context, lca, tokens, prefill);
                const Outcome theirs = run_sequence(context, dense, tokens, prefill);
                EXPECT_EQ(ours.groups, 0);
                EXPECT_TRUE(same_output_bits(theirs, ours)) << "n=" << n << " P=" << prompt;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PropertiesOfTheFastPath, AContextTooShortToCondenseIsDenseAttentionBitForBitAcrossBlocks) {
  // Sink and window of several blocks each, so that where they meet falls inside one.
  Random random(27);
  Context context(2);
  for (Form form : kForms) {
    for (DType dtype : kDTypes) {
      for (std::int64_t sink : {1, 64, 100, 300}) {
        const LayerSpec spec = make_spec(form, dtype, 16, 250, sink);
        const Layer lca = random_layer(spec, random);
        const std::int64_t n = sink + 250 + 16 - 1;
        const Tokens tokens = random_tokens(spec, n, random);
        for (std::int64_t prompt : {n, n - 40}) {
          const std::array<std::int64_t, 1> prefill{prompt};
          EXPECT_TRUE(
              same_output_bits(run_sequence(context, lca.with(dense_settings()), tokens, prefill),
                               run_sequence(context, lca, tokens, prefill)))
              << describe(spec) << " P=" << prompt;
        }
      }
    }
  }
}

TEST(PropertiesOfTheReference, AContextTooShortToCondenseIsExactlyDenseAttention) {
  Random random(12);
  for (Form form : kForms) {
    for (std::int64_t sink : {0, 3}) {
      const LayerSpec spec = make_spec(form, DType::f32, 7, 30, sink);
      const Layer layer = random_layer(spec, random);
      const Tokens tokens = random_tokens(spec, sink + 30 + 7 - 1, random);
      const reference::Result ours = truth(layer, tokens);
      const reference::Result dense = truth(layer.with(dense_settings()), tokens);
      EXPECT_EQ(ours.groups, 0);
      EXPECT_EQ(ours.out, dense.out);
      EXPECT_EQ(ours.lse, dense.lse);
    }
  }
}

TEST_P(Properties, GroupsOfOneTokenAreDenseAttentionInEveryModePoolingAndMass) {
  const Engine& engine = GetParam();
  Random random(13);
  for (Form form : kForms) {
    LayerSpec spec = make_spec(form, engine.dtype, 1, 4, 2);
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 33, random);
    const reference::Result dense = engine.compute(layer.with(dense_settings()), tokens, 20);
    for (Summary summary : kSummaries) {
      for (Mass mass : kMasses) {
        for (Pool semantic : kPools) {
          for (Pool positional : kPools) {
            spec.settings.summary = summary;
            spec.settings.mass = mass;
            spec.settings.semantic_pool = semantic;
            spec.settings.positional_pool = positional;
            const reference::Result ours = engine.compute(layer.with(spec.settings), tokens, 20);
            EXPECT_EQ(ours.groups, 33 - 4 - 2);
            EXPECT_TRUE(close_outputs(dense, ours, engine.tolerance)) << describe(spec);
          }
        }
      }
    }
  }
}

// --- 2. Proposition 1 --------------------------------------------------------------------------

// α of one group of an MLA layer by the absorbed form of mechanism §3: one dot product of width
// d_c + d_r a token, no keys rebuilt. The reference rebuilds them, so this is a second opinion.
std::vector<double> group_weights(const Layer& layer, const Tokens& tokens, std::int64_t j) {
  const AttentionShape& shape = layer.spec.shape;
  const Layout layout(layer.spec.settings);
  const Range summary = layout.summary_range(j, 0);
  const Range group = layout.group_range(j);
  std::vector<double> latent(static_cast<std::size_t>(shape.d_latent), 0.0);
  std::vector<double> rope(static_cast<std::size_t>(shape.d_rope), 0.0);
  for (std::int64_t t = summary.begin; t < summary.end; ++t) {
    const double share = 1.0 / static_cast<double>(summary.size());
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t d = 0; d < shape.d_nope; ++d) {
        for (std::int64_t c = 0; c < shape.d_latent; ++c) {
          latent[static_cast<std::size_t>(c)] +=
              share * tokens.query.get(t, h, d) * layer.w_uk.get(h, d, c);
        }
      }
      for (std::int64_t d = 0; d < shape.d_rope; ++d) {
        rope[static_cast<std::size_t>(d)] += share * tokens.query.get(t, h, shape.d_nope + d);
      }
    }
  }
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t i = group.begin; i < group.end; ++i) {
    double score = 0;
    for (std::int64_t c = 0; c < shape.d_latent; ++c) {
      score += latent[static_cast<std::size_t>(c)] * tokens.entry.get(i, 0, c);
    }
    for (std::int64_t d = 0; d < shape.d_rope; ++d) {
      score += rope[static_cast<std::size_t>(d)] * tokens.entry.get(i, 0, shape.d_latent + d);
    }
    score *= layer.spec.softmax_scale() / static_cast<double>(shape.heads);
    weights.push_back(std::exp(score));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Σ α_i ‖c_i − x‖²
double reconstruction_error(const Tokens& tokens, const Range& group,
                            const std::vector<double>& weights, const std::vector<double>& x) {
  double error = 0;
  for (std::int64_t i = group.begin; i < group.end; ++i) {
    double distance = 0;
    for (std::size_t d = 0; d < x.size(); ++d) {
      const double delta = tokens.entry.get(i, 0, static_cast<std::int64_t>(d)) - x[d];
      distance += delta * delta;
    }
    error += weights[static_cast<std::size_t>(i - group.begin)] * distance;
  }
  return error;
}

TEST_P(Properties, NoPerturbationOfAWeightedRepresentativeReconstructsItsGroupBetter) {
  const Engine& engine = GetParam();
  Random random(14);
  const LayerSpec spec = make_spec(Form::mla, engine.dtype, 6, 8, 1);
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 50, random);
  const reference::Result result = engine.compute(layer, tokens);
  const Layout layout(spec.settings);
  ASSERT_EQ(result.groups, 6);
  const auto width = static_cast<std::size_t>(spec.shape.d_latent);
  for (std::int64_t j = 0; j < result.groups; ++j) {
    const std::vector<double> weights = group_weights(layer, tokens, j);
    const auto from = result.rep_semantic.begin() + j * spec.shape.d_latent;
    const std::vector<double> representative(from, from + spec.shape.d_latent);
    const Range group = layout.group_range(j);
    const double best = reconstruction_error(tokens, group, weights, representative);
    for (int trial = 0; trial < 50; ++trial) {
      // The error grows with the square of the distance from the mean: a step must be longer than
      // the engine's rounding of the mean, and its square must show beside the error itself.
      const double step = std::max(4 * engine.tolerance, 1e-5) * std::pow(10.0, 3 * random.unit());
      std::vector<double> moved = representative;
      for (std::size_t d = 0; d < width; ++d) moved[d] += step * random.normal();
      EXPECT_GT(reconstruction_error(tokens, group, weights, moved), best) << "j=" << j;
    }
  }
}

// --- 4. streaming equivalence ------------------------------------------------------------------

TEST(PropertiesOfTheReference, StreamingDoesNotDependOnWhereThePromptEnds) {
  Random random(19);
  for (Form form : kForms) {
    LayerSpec spec = make_spec(form, DType::f32, 3, 5, 1);
    spec.settings.mass = Mass::score;
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 40, random);
    const reference::Result whole = truth(layer, tokens);
    for (std::int64_t prompt = 1; prompt < tokens.count; ++prompt) {
      const reference::Result part = truth(layer, tokens, prompt);
      EXPECT_EQ(part.out, whole.out);
      EXPECT_EQ(part.rep_semantic, whole.rep_semantic);
    }
  }
}

TEST(PropertiesOfTheReference, APrefixIsWhatTheWholeSequenceSaysAboutIt) {
  Random random(20);
  const LayerSpec spec = make_spec(Form::mla, DType::f32, 3, 5, 1);
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 30, random);
  const Source source(layer, tokens);
  const reference::Result whole = truth(layer, tokens);
  for (std::int64_t n = 1; n < tokens.count; ++n) {
    const Source prefix(layer.spec, layer.weights(), source.queries(0, n), source.entries(0, n));
    const reference::Result part = truth(prefix, n);
    EXPECT_TRUE(std::equal(part.out.begin(), part.out.end(), whole.out.begin())) << "n=" << n;
    EXPECT_TRUE(
        std::equal(part.rep_semantic.begin(), part.rep_semantic.end(), whole.rep_semantic.begin()));
  }
}

TEST(PropertiesOfTheFastPath, StreamingDoesNotDependOnChunksNorOnDecodingInBetween) {
  Random random(21);
  Context context(2);
  for (std::int64_t trial = 0; trial < scaled(120); ++trial) {
    const std::int64_t n = random.integer(2, 90);
    LayerSpec spec;
    spec.shape = random.chance(0.5) ? kMla : kGqa;
    spec.dtype = random.chance(0.7) ? DType::f32 : DType::bf16;
    spec.settings = random_settings(random, n);
    random_positions(spec, random);
    spec.settings.summary = Summary::streaming;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Example example = random_example(layer, n, n, random);
    const Outcome whole = run_sequence(context, layer, example.tokens);
    EXPECT_TRUE(close(example.expected, whole, spec.dtype));

    // Runs of decoded tokens between runs of prefilled chunks.
    Feed feed(layer, example.tokens);
    std::string fed;
    for (std::int64_t chunk : random_chunks(n, random)) {
      const bool decode = random.chance(0.4);
      fed += (decode ? " decode " : " chunk ") + std::to_string(chunk);
      if (decode) {
        feed_decode(context, feed, chunk);
      } else {
        feed_forward(context, feed, chunk);
      }
    }
    EXPECT_TRUE(close(example.expected, feed.outcome(), spec.dtype)) << fed;
    EXPECT_TRUE(close(widen(whole), feed.outcome(), spec.dtype)) << fed;
  }
}

TEST(PropertiesOfTheFastPath, ALaterPromptScoresItsGroupsByItsOwnEnd) {
  // Turns of a conversation in `prompt` mode: groups that are condensed stay as they are.
  Random random(22);
  Context context(2);
  for (std::int64_t trial = 0; trial < scaled(40); ++trial) {
    const std::int64_t n = random.integer(20, 90);
    LayerSpec spec;
    spec.shape = random.chance(0.5) ? kMla : kGqa;
    spec.settings = random_settings(random, n);
    random_positions(spec, random);
    spec.settings.method = MethodKind::lca;
    spec.settings.summary = Summary::prompt;
    spec.settings.semantic_pool = spec.settings.positional_pool = Pool::weighted;  // no ties
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n, random);
    Feed feed(layer, tokens);
    std::vector<Range> prompts;
    while (feed.position < n) {
      const std::int64_t turn = random.integer(1, n - feed.position);
      prompts.push_back({feed.position, feed.position + turn});
      feed_prompt(context, feed, random_chunks(turn, random), {.poison = true});
      feed_decode(context, feed, random.integer(0, std::min<std::int64_t>(9, n - feed.position)),
                  {.poison = true});
    }
    const Source source(layer, tokens);
    const reference::Result expected =
        reference::attention(spec, source.weights, source.all_queries, source.all_entries, prompts);
    EXPECT_TRUE(close(expected, feed.outcome(), DType::f32));
  }
}

TEST(PropertiesOfTheFastPath, ThePromptModeDoesNotDependOnChunks) {
  Random random(23);
  Context context(2);
  for (std::int64_t trial = 0; trial < scaled(60); ++trial) {
    const std::int64_t n = random.integer(2, 90);
    const std::int64_t prompt = random.integer(1, n);
    LayerSpec spec;
    spec.shape = random.chance(0.5) ? kMla : kGqa;
    spec.dtype = random.chance(0.7) ? DType::f32 : DType::bf16;
    spec.settings = random_settings(random, n);
    random_positions(spec, random);
    spec.settings.summary = Summary::prompt;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Example example = random_example(layer, n, prompt, random);
    const Manner manner{.poison = random.chance(0.5),
                        .trim_queries = random.chance(0.5),
                        .attend_chunks = random.chance(0.5)};
    const std::vector<std::int64_t> chunks = random_chunks(prompt, random);
    EXPECT_TRUE(close(example.expected,
                      run_sequence(context, layer, example.tokens, chunks, manner), spec.dtype));
  }
}

// --- 5. causality ------------------------------------------------------------------------------

TEST_P(Properties, ChangingATokenChangesNoEarlierOutput) {
  const Engine& engine = GetParam();
  Random random(24);
  for (Form form : kForms) {
    for (MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
      LayerSpec spec = make_spec(form, engine.dtype, 4, 6, 2);
      spec.settings.method = method;
      spec.settings.mass = Mass::score;
      const Layer layer = random_layer(spec, random);
      const Tokens before = random_tokens(spec, 45, random);
      const reference::Result expected = engine.compute(layer, before);
      const auto row = static_cast<std::size_t>(spec.shape.heads * spec.shape.d_value);
      for (std::int64_t u : {0, 1, 2, 9, 17, 30, 44}) {
        Tokens after = before;
        redraw_token(after, u, random);
        const reference::Result changed = engine.compute(layer, after);
        const auto same_until = static_cast<std::size_t>(u) * row;
        for (std::size_t i = 0; i < same_until; ++i) {
          ASSERT_EQ(changed.out[i], expected.out[i]) << describe(spec) << " u=" << u;
        }
        for (std::size_t i = 0; i < same_until / row * static_cast<std::size_t>(spec.shape.heads);
             ++i) {
          ASSERT_EQ(changed.lse[i], expected.lse[i]) << describe(spec) << " u=" << u;
        }
        // The token itself does see the change.
        EXPECT_FALSE(std::equal(changed.out.begin() + static_cast<std::ptrdiff_t>(same_until),
                                changed.out.end(),
                                expected.out.begin() + static_cast<std::ptrdiff_t>(same_until)));
      }
    }
  }
}

// --- 6. batches --------------------------------------------------------------------------------

TEST(PropertiesOfTheFastPath, PermutingABatchPermutesItsOutputsBitForBit) {
  Random random(25);
  Context context(3);
  for (Form form : kForms) {
    for (DType dtype : kDTypes) {
      LayerSpec spec = make_spec(form, dtype, 4, 6, 2);
      spec.settings.mass = Mass::score;
      const Layer layer = random_layer(spec, random);
      const std::vector<std::int64_t> lengths{40, 1, 13, 27};
      std::vector<Tokens> tokens;
      for (std::int64_t n : lengths) tokens.push_back(random_tokens(spec, n + 3, random));

      // Everyone's prompt in one call, then three tokens each, one call a step.
      const auto run_in_order = [&](const std::vector<std::size_t>& order) {
        std::vector<Feed> feeds;
        for (std::size_t entry : order) feeds.emplace_back(layer, tokens[entry]);
        std::vector<Feed*> pointers;
        std::vector<std::int64_t> counts;
        for (std::size_t i = 0; i < order.size(); ++i) {
          pointers.push_back(&feeds[i]);
          counts.push_back(lengths[order[i]]);
        }
        feed_forward(context, pointers, counts);
        for (int step = 0; step < 3; ++step) {
          feed_forward(context, pointers, std::vector<std::int64_t>(order.size(), 1));
        }
        std::vector<Outcome> outcomes(lengths.size());
        for (std::size_t i = 0; i < order.size(); ++i) outcomes[order[i]] = feeds[i].outcome();
        return outcomes;
      };

      const std::vector<Outcome> straight = run_in_order({0, 1, 2, 3});
      for (const auto& order : {std::vector<std::size_t>{3, 2, 1, 0}, {1, 3, 0, 2}}) {
        const std::vector<Outcome> permuted = run_in_order(order);
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          EXPECT_TRUE(same_bits(straight[i], permuted[i])) << describe(spec) << " entry " << i;
        }
      }
      for (std::size_t i = 0; i < lengths.size(); ++i) {  // a batch of one is no exception
        EXPECT_TRUE(same_bits(straight[i], run_in_order({i})[i])) << describe(spec);
      }
    }
  }
}

// --- 7. representatives have valid positions ---------------------------------------------------

TEST_P(Properties, ASelectedPositionalKeyIsOneOfTheGroupsRowsBitForBit) {
  const Engine& engine = GetParam();
  Random random(26);
  for (Form form : kForms) {
    for (Pool semantic : kPools) {
      for (HeadReduce reduce : {HeadReduce::mean, HeadReduce::sum, HeadReduce::max}) {
        LayerSpec spec = make_spec(form, engine.dtype, 5, 6, 2);
        spec.settings.semantic_pool = semantic;
        spec.settings.head_reduce = reduce;
        const AttentionShape& shape = spec.shape;
        const Layer layer = random_layer(spec, random);
        const Tokens tokens = random_tokens(spec, 60, random);
        const reference::Result result = engine.compute(layer, tokens, 40);
        const Layout layout(spec.settings);
        for (std::int64_t j = 0; j < result.groups; ++j) {
          for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
            const auto representative =
                result.rep_positional.begin() + (j * shape.kv_heads + kv) * shape.d_positional();
            int equal = 0;
            const Range group = layout.group_range(j);
            for (std::int64_t i = group.begin; i < group.end; ++i) {
              bool all = true;
              for (std::int64_t d = 0; d < shape.d_positional(); ++d) {
                all = all && representative[d] == tokens.positional.get(i, kv, d);
              }
              equal += all ? 1 : 0;
            }
            EXPECT_EQ(equal, 1) << describe(spec) << " j=" << j << " kv=" << kv;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
