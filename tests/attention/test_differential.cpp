// The fast path against the reference over random configurations: odd sizes, every option, scratch
// memory and spare capacity full of NaN. Tolerances are those of support/compare.h, measured as
// mechanism §5 says: 2e-4 for float32 storage, 2e-2 for bfloat16.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/context_state.h"
#include "core/workspace.h"
#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

// Contexts of 1 … 4 threads, made once: starting threads would take longer than most cases.
class Contexts {
 public:
  Contexts() {
    for (int threads = 1; threads <= 4; ++threads) {
      contexts_.push_back(std::make_unique<Context>(threads));
    }
  }
  Context& any(Random& random) {
    return *contexts_[static_cast<std::size_t>(random.integer(0, 3))];
  }

 private:
  std::vector<std::unique_ptr<Context>> contexts_;
};

Manner random_manner(Random& random) {
  return {.poison = true, .trim_queries = random.chance(0.5), .attend_chunks = random.chance(0.5)};
}

// Statistics of a test: the largest error, and near ties, which are excluded by redrawing and must
// be rare (mechanism §3).
struct Tally {
  struct OfType {
    NearTies ties;
    double worst = 0;
  };
  OfType f32;
  OfType bf16;

  OfType& of(DType dtype) { return dtype == DType::f32 ? f32 : bf16; }

  void check(const reference::Result& expected, const Outcome& outcome, DType dtype) {
    EXPECT_TRUE(close(expected, outcome, dtype));
    of(dtype).worst = std::max(of(dtype).worst, worst_error(expected, widen(outcome)));
  }

  void finish() const {
    EXPECT_LE(f32.ties.ties * 100, f32.ties.groups) << "float32: above 1 % of groups";
    EXPECT_LE(bf16.ties.ties * 100, 6 * bf16.ties.groups) << "bfloat16: above 6 % of groups";
    for (const auto& [name, one] : {std::pair{"f32", f32}, std::pair{"bf16", bf16}}) {
      fmt::print("{}: largest error {:.1e}; near ties in {} of {} groups, {} redraws\n", name,
                 one.worst, one.ties.ties, one.ties.groups, one.ties.redraws);
    }
  }
};

// One sequence of `count` tokens under `spec`, of which a random part is the prompt.
void compare_one(Context& context, const LayerSpec& spec, std::int64_t count, Random& random,
                 Tally& tally) {
  const auto other = [&] {  // queries and weights need not be of the cache's type
    const DType odd = spec.dtype == DType::f32 ? DType::bf16 : DType::f32;
    return random.chance(0.1) ? odd : spec.dtype;
  };
  const std::int64_t prompt = random.chance(0.3) ? count : random.integer(1, count);
  const std::vector<std::int64_t> chunks =
      random.chance(0.3) ? std::vector<std::int64_t>{prompt} : random_chunks(prompt, random);
  const Manner manner = random_manner(random);
  const Layer layer = random_layer(spec, random, other());
  const Storage storage{.fused = random.chance(0.5), .queries = other()};
  const Example example =
      random_example(layer, count, prompt, random, storage, &tally.of(spec.dtype).ties);
  const Outcome outcome = run_sequence(context, layer, example.tokens, chunks, manner);
  SCOPED_TRACE(fmt::format("{} n={} chunks=[{}] threads={}", describe(spec), count,
                           fmt::join(chunks, ","), context.threads()));
  tally.check(example.expected, outcome, spec.dtype);
}

TEST(Differential, TheFastPathAgreesWithTheReferenceOnRandomConfigurations) {
  Contexts contexts;
  Tally tally;
  const std::int64_t cases = scaled(2000);
  for (std::int64_t i = 0; i < cases && !::testing::Test::HasFailure(); ++i) {
    Random random(1000 + static_cast<std::uint64_t>(i));
    SCOPED_TRACE("case " + std::to_string(i));
    const std::int64_t count =
        random.pick({std::int64_t{1}, random.integer(1, 8), random.integer(2, 40),
                     random.integer(2, 120), random.integer(20, 120)});
    LayerSpec spec;
    spec.shape = random_shape(random);
    spec.dtype = random.chance(0.7) ? DType::f32 : DType::bf16;
    spec.settings = random_settings(random, count);
    random_positions(spec, random);
    if (random.chance(0.2)) spec.scale = 0.05 + random.unit();
    compare_one(contexts.any(random), spec, count, random, tally);
  }
  tally.finish();
}

TEST(Differential, TheFastPathAgreesWithTheReferenceAcrossTilesAndBlocks) {
  // Widths of real models and lengths of several query tiles and key blocks, with few heads to keep
  // the reference fast.
  const std::array shapes{
      AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(2, 64, 32, 256, 64),
      AttentionShape::mla(1, 96, 48, 320, 80),   AttentionShape::gqa(2, 1, 128, 128),
      AttentionShape::gqa(3, 1, 64, 64),         AttentionShape::gqa(4, 2, 80, 96),
  };
  Contexts contexts;
  Tally tally;
  const std::int64_t cases = scaled(36);
  for (std::int64_t i = 0; i < cases && !::testing::Test::HasFailure(); ++i) {
    Random random(900000 + static_cast<std::uint64_t>(i));
    SCOPED_TRACE("case " + std::to_string(i));
    LayerSpec spec;
    spec.shape = shapes[static_cast<std::size_t>(i) % shapes.size()];
    spec.dtype = random.chance(0.6) ? DType::f32 : DType::bf16;
    const std::int64_t count = random.pick({random.integer(300, 700), random.integer(700, 1500)});
    spec.settings = random_settings(random, 60);
    random_positions(spec, random);
    spec.settings.group = random.pick({std::int64_t{16}, random.integer(2, 24)});
    spec.settings.window =
        random.pick({std::int64_t{128}, random.integer(1, 300), random.integer(90, 140)});
    spec.settings.summary_queries = random.pick({std::int64_t{16}, random.integer(1, 40)});
    if (spec.settings.method == MethodKind::dense && count > 800) {
      spec.settings.method = MethodKind::lca;  // the reference takes too long
    }
    compare_one(contexts.any(random), spec, count, random, tally);
  }
  tally.finish();
}

TEST(Differential, BatchesOfDifferentLengthsAgreeWithTheReference) {
  Contexts contexts;
  Tally tally;
  const std::int64_t cases = scaled(100);
  for (std::int64_t i = 0; i < cases && !::testing::Test::HasFailure(); ++i) {
    Random random(70000 + static_cast<std::uint64_t>(i));
    SCOPED_TRACE("case " + std::to_string(i));
    Context& context = contexts.any(random);
    LayerSpec spec;
    spec.shape = random_shape(random);
    spec.dtype = random.chance(0.7) ? DType::f32 : DType::bf16;
    spec.settings = random_settings(random, 60);
    random_positions(spec, random);
    const Layer layer = random_layer(spec, random);

    // In `prompt` mode a call ends every prompt in it, so there the first call holds them whole.
    const bool whole = needs_whole_prompt(spec.settings);
    const std::int64_t entries = random.integer(1, 5);
    std::vector<std::int64_t> prompts;
    std::vector<Example> examples;
    for (std::int64_t e = 0; e < entries; ++e) {
      const std::int64_t count = random.integer(1, 90);
      prompts.push_back(random.integer(1, count));
      examples.push_back(random_example(layer, count, prompts.back(), random,
                                        {.fused = random.chance(0.5)}, &tally.of(spec.dtype).ties));
    }
    std::vector<Feed> feeds;
    for (const Example& example : examples) feeds.emplace_back(layer, example.tokens);
    std::vector<Feed*> pointers;
    for (Feed& feed : feeds) pointers.push_back(&feed);

    bool first = true;
    const auto left = [](const Feed& feed) { return feed.source.count() - feed.position; };
    const auto unfinished = [&] {
      return std::any_of(feeds.begin(), feeds.end(),
                         [&](const Feed& feed) { return left(feed) > 0; });
    };
    while (unfinished()) {
      std::vector<std::int64_t> counts;
      for (std::size_t e = 0; e < feeds.size(); ++e) {
        const std::int64_t most = left(feeds[e]);
        const std::int64_t decoded = random.chance(0.8) ? std::min<std::int64_t>(1, most) : 0;
        counts.push_back(first ? prompts[e] : whole ? decoded : random.integer(0, most));
      }
      first = false;
      feed_forward(context, pointers, counts, {.poison = true});
    }
    for (std::size_t e = 0; e < feeds.size(); ++e) {
      SCOPED_TRACE(fmt::format("{} entry {} n={} P={}", describe(spec), e, examples[e].tokens.count,
                               prompts[e]));
      tally.check(examples[e].expected, feeds[e].outcome(), spec.dtype);
    }
  }
  tally.finish();
}

TEST(Differential, AnyPieceOfAPromptThatWasTakenWholeAgreesWithTheReference) {
  // A piece that starts where a block of keys begins or ends, or a row before or after.
  constexpr std::int64_t kTokens = 560;
  constexpr std::int64_t kPiece = 11;
  Context context(2);
  for (const AttentionShape& shape :
       {AttentionShape::mla(1, 5, 3, 8, 4), AttentionShape::gqa(2, 1, 4, 3)}) {
    for (MethodKind kind : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
      LayerSpec spec;
      spec.shape = shape;
      spec.settings.method = kind;
      spec.settings.group = 1;  // the window then moves with every token
      spec.settings.window = 3;
      spec.settings.sink = 2;
      spec.settings.mass = Mass::score;
      Random random(33);
      const Layer layer = random_layer(spec, random);
      const Tokens tokens = random_tokens(spec, kTokens, random);
      const reference::Result expected = truth(layer, tokens);
      const Method& method = method_for(kind);
      Feed feed(layer, tokens);
      const auto whole = feed.run(0, kTokens);
      method.take(context, layer.weights(), {&whole, 1});
      for (std::int64_t block : {0, 64, 96, 128, 256, 512}) {
        for (std::int64_t first = std::max<std::int64_t>(0, block - 8); first < block + 8;
             ++first) {
          const auto piece = feed.run(first, kPiece);
          std::fill_n(piece.out, kPiece * shape.heads * shape.d_value, 0.0F);
          context.state().workspace.poison();
          method.attend(context, layer.weights(), {&piece, 1}, {&first, 1});
          const std::int64_t row = shape.heads * shape.d_value;
          const std::vector<double> wanted(expected.out.begin() + first * row,
                                           expected.out.begin() + (first + kPiece) * row);
          const std::vector<double> got(piece.out, piece.out + kPiece * row);
          EXPECT_LE(error_of(wanted, got), kToleranceF32) << describe(spec) << " from " << first;
        }
      }
    }
  }
}

TEST(Differential, LargeAndEqualScoresAreSafe) {
  // Softmax over a group whose scores lie hundreds apart, or are all the same.
  Random random(31);
  Context context(2);
  for (double size : {0.0, 40.0}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(2, 8, 4, 16, 8), AttentionShape::gqa(4, 2, 8, 8)}) {
      for (HeadReduce reduce : {HeadReduce::mean, HeadReduce::sum, HeadReduce::max}) {
        for (Mass mass : {Mass::none, Mass::count, Mass::score}) {
          LayerSpec spec;
          spec.shape = shape;
          spec.settings.group = 4;
          spec.settings.window = 5;
          spec.settings.head_reduce = reduce;
          spec.settings.mass = mass;
          const Layer layer = random_layer(spec, random);
          Tokens tokens = random_tokens(spec, 40, random);
          for (std::int64_t t = 0; t < tokens.count; ++t) {
            for (std::int64_t h = 0; h < shape.heads; ++h) {
              for (std::int64_t d = 0; d < shape.d_score(); ++d) {
                tokens.query.set(t, h, d, size * tokens.query.get(t, h, d));
              }
            }
          }
          tokens.split();
          const reference::Result expected = truth(layer, tokens);
          if (size > 0 && near_ties(expected, spec.dtype) > 0) continue;
          // Logits of hundreds: float32 resolves them, and with them every softmax, to some 1e-5.
          EXPECT_TRUE(close(expected, widen(run_sequence(context, layer, tokens)), kToleranceF32))
              << describe(spec) << " size=" << size;
        }
      }
    }
  }
}

TEST(Differential, AContextNeverHoldsMoreScratchMemoryThanPlanned) {
  // Where only memory is checked, narrow heads do.
  const std::int64_t width = test_scale() < 1 ? 16 : 64;
  for (const AttentionShape& shape :
       {AttentionShape::mla(4, 2 * width, width, 8 * width, 2 * width),
        AttentionShape::gqa(8, 2, 2 * width, 2 * width)}) {
    for (MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        LayerSpec spec;
        spec.shape = shape;
        spec.dtype = dtype;
        spec.settings.method = method;
        spec.settings.window = 64;
        Random random(32);
        const Layer layer = random_layer(spec, random);
        const Tokens tokens = random_tokens(spec, 400, random);
        for (int threads : {1, 3}) {
          Context context(threads);
          Feed feed(layer, tokens);
          std::size_t planned = 0;
          for (std::int64_t run : {250, 149, 1}) {
            planned = std::max(planned,
                               attention_workspace_bytes(spec, feed.position + run, run, threads));
            feed_forward(context, feed, run);
            EXPECT_LE(context.memory().scratch, planned) << describe(spec) << " run=" << run;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
