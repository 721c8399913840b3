// A whole layer on the GPU against the reference: prompts in chunks, batches, decoding, every
// option, both kinds of kernels. All inputs are bf16 to the bit on both sides.
//
// What is allowed: ‖Δout‖ ≤ 8e-3·‖out‖ (rebuilt keys, absorbed queries, softmax weights, latents
// and outputs are all rounded to bf16 on the way; 1.5e-2 where widths are so small that no sum
// evens it out), and for log-sum-exps 6e-3 of the largest: a query that sees one token has that
// logit's rounding. Where a group's two best scores are nearly the same, `select` may pick either
// (mechanism §3): such sequences are drawn again; where none could be found, a flip is excused if
// the margin is small, counted, and must be rare.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention/cuda/layer.h"
#include "cuda/support.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

constexpr double kToleranceLog = 6e-3;

// A margin that the rounding of absorbed queries may eat up (1e-3 counts as a near tie).
constexpr double kMarginExcused = 5e-3;

struct Plan {
  LayerSpec spec;
  std::vector<std::vector<std::int64_t>> chunks;  // of each sequence's prompt
  std::int64_t steps = 0;                         // decoded after it, by all together
  cuda::LayerOptions options;
};

struct Tally {
  double tolerance = 8e-3;
  std::int64_t groups = 0;
  std::int64_t flips = 0;
  double worst = 0;
};

// One sequence on its way through a layer on the GPU.
struct Path {
  Tokens tokens;
  reference::Result expected;
  std::int64_t prompt = 0;
  std::int64_t position = 0;
  std::vector<float> out, lse;
  cuda::HostGroups groups;

  cuda::HostRun run(int sequence, std::int64_t count) {
    const AttentionShape& shape = tokens.shape;
    const auto part = [&](const ConstTensor& all) {
      return all.empty() ? all : all.slice(position, count);
    };
    const Queries queries = tokens.queries();
    const Entries entries = tokens.entries();
    cuda::HostRun run{sequence,
                      {part(queries.nope), part(queries.rope)},
                      {part(entries.semantic), part(entries.positional)},
                      out.data() + position * shape.heads * shape.d_value,
                      lse.data() + position * shape.heads};
    position += count;
    return run;
  }
};

bool margin_is_below(const reference::Result& result, std::size_t i, double width) {
  return result.rep_margin[i] < width * std::max(1.0, std::abs(result.rep_top[i]));
}

// Tokens and the truth about them, without near ties where they can be had.
Path path_make(const Layer& layer, std::int64_t prompt, std::int64_t count, Random& random) {
  constexpr int kMostDraws = 40;
  Path path;
  path.prompt = prompt;
  for (int draw = 0; draw < kMostDraws; ++draw) {
    const Storage storage{.fused = random.chance(0.5), .queries = std::nullopt};
    path.tokens = random_tokens(layer.spec, count, random, storage);
    path.expected = truth(layer, path.tokens, prompt);
    bool clear = true;
    for (std::size_t i = 0; i < path.expected.rep_margin.size(); ++i) {
      clear = clear && !margin_is_below(path.expected, i, kMarginExcused);
    }
    if (clear || !selects(layer.spec.settings)) break;
  }
  const AttentionShape& shape = layer.spec.shape;
  path.out.assign(static_cast<std::size_t>(count * shape.heads * shape.d_value), kNan);
  path.lse.assign(static_cast<std::size_t>(count * shape.heads), kNan);
  return path;
}

void feed(cuda::Layer& gpu, std::vector<Path>& paths, const Plan& plan) {
  std::size_t rounds = 0;
  for (const auto& chunks : plan.chunks) rounds = std::max(rounds, chunks.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (round >= plan.chunks[i].size()) continue;
      runs.push_back(paths[i].run(static_cast<int>(i), plan.chunks[i][round]));
    }
    gpu.prefill(runs);
  }
  for (std::int64_t step = 0; step < plan.steps; ++step) {
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      runs.push_back(paths[i].run(static_cast<int>(i), 1));
    }
    gpu.decode(runs);
  }
  for (std::size_t i = 0; i < paths.size(); ++i) paths[i].groups = gpu.groups(static_cast<int>(i));
}

// The relative norm of the difference, and where it is first large.
template <typename Expected>
double relative_error(const std::vector<Expected>& expected, const std::vector<float>& actual,
                      std::string* where) {
  if (expected.size() != actual.size()) {
    *where = fmt::format("{} values, expected {}", actual.size(), expected.size());
    return std::numeric_limits<double>::infinity();
  }
  RelativeError error;
  double largest = 1e-30;
  for (const Expected& value : expected) {
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto value = static_cast<double>(expected[i]);
    error.add(actual[i], value);
    if (where->empty() && !(std::abs(actual[i] - value) <= 0.03 * largest)) {
      *where = fmt::format("first wrong value {}: {} instead of {}", i, actual[i], value);
    }
  }
  return expected.empty() ? 0 : error.value();
}

double largest_difference(const std::vector<double>& expected, const std::vector<float>& actual,
                          std::string* where) {
  if (expected.size() != actual.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    if (!(difference <= largest)) {
      *where = fmt::format("value {}: {} instead of {}", i, actual[i], expected[i]);
      largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
  }
  return largest;
}

double largest_size(const std::vector<double>& values) {
  double largest = 1;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Groups whose selected row is another than the reference's. Only near ties may be.
std::int64_t count_flips(const LayerSpec& spec, const Path& path, const std::string& what) {
  const Settings& settings = spec.settings;
  if (!selects(settings)) return 0;
  const auto width =
      static_cast<std::size_t>(settings.positional_pool == Pool::select ? spec.shape.d_positional()
                                                                        : spec.shape.d_semantic());
  const bool positional = settings.positional_pool == Pool::select;
  const std::vector<double>& expected =
      positional ? path.expected.rep_positional : path.expected.rep_semantic;
  const std::vector<float>& actual = positional ? path.groups.positional : path.groups.semantic;
  if (actual.size() != expected.size()) return 0;  // another check says so
  std::int64_t flips = 0;
  for (std::size_t i = 0; i < path.expected.rep_margin.size(); ++i) {
    const auto first = expected.begin() + static_cast<std::ptrdiff_t>(i * width);
    const bool same = std::equal(first, first + static_cast<std::ptrdiff_t>(width),
                                 actual.begin() + static_cast<std::ptrdiff_t>(i * width),
                                 [](double a, float b) { return a == static_cast<double>(b); });
    if (same) continue;
    ++flips;
    EXPECT_TRUE(margin_is_below(path.expected, i, kMarginExcused))
        << what << ": representative " << i
        << " is another row than the reference's, by a margin of " << path.expected.rep_margin[i]
        << " at " << path.expected.rep_top[i];
  }
  return flips;
}

void check_path(const LayerSpec& spec, const Path& path, const std::string& what, Tally& tally) {
  tally.groups += static_cast<std::int64_t>(path.expected.rep_margin.size());
  ASSERT_EQ(path.groups.count, path.expected.groups) << what;
  const std::int64_t flips = count_flips(spec, path, what);
  tally.flips += flips;
  if (flips > 0) return;  // every output after it is legitimately another

  const auto near = [&](const char* name, const auto& expected, const std::vector<float>& actual) {
    std::string where;
    const double error = relative_error(expected, actual, &where);
    EXPECT_LE(error, tally.tolerance) << what << ": " << name << ", " << where;
    tally.worst = std::max(tally.worst, error);
  };
  near("representatives, semantic", path.expected.rep_semantic, path.groups.semantic);
  near("representatives, positional", path.expected.rep_positional, path.groups.positional);
  std::string where;
  EXPECT_LE(largest_difference(path.expected.rep_bias, path.groups.bias, &where),
            2 * kToleranceLog * largest_size(path.expected.rep_top))
      << what << ": bias, " << where;
  // What prefill and decoding made, apart: one may hide the other.
  const auto cut = [&](std::int64_t values, const auto& all, bool front) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(path.prompt * values);
    using Values = std::decay_t<decltype(all)>;
    return front ? Values(all.begin(), middle) : Values(middle, all.end());
  };
  for (const bool front : {true, false}) {
    const std::int64_t outs = spec.shape.heads * spec.shape.d_value;
    near(front ? "out of prefill" : "out of decoding", cut(outs, path.expected.out, front),
         cut(outs, path.out, front));
    where.clear();
    EXPECT_LE(largest_difference(cut(spec.shape.heads, path.expected.lse, front),
                                 cut(spec.shape.heads, path.lse, front), &where),
              kToleranceLog * largest_size(path.expected.lse))
        << what << ": lse of " << (front ? "prefill" : "decoding") << ", " << where;
  }
}

void run_plan(const Plan& plan, Random& random, const std::string& name, Tally& tally) {
  const Layer layer = random_layer(plan.spec, random);
  std::vector<Path> paths;
  std::int64_t longest = 1;
  for (const std::vector<std::int64_t>& chunks : plan.chunks) {
    std::int64_t prompt = 0;
    for (const std::int64_t chunk : chunks) prompt += chunk;
    paths.push_back(path_make(layer, prompt, prompt + plan.steps, random));
    longest = std::max(longest, prompt + plan.steps);
  }
  cuda::Layer gpu(plan.spec, layer.weights(), static_cast<int>(paths.size()), longest,
                  plan.options);
  feed(gpu, paths, plan);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string what = fmt::format(
        "{} sequence {} of {}: {} chunks=[{}] steps={} {} groups={}", name, i, paths.size(),
        describe(plan.spec), fmt::join(plan.chunks[i], ","), plan.steps,
        plan.options.portable ? "portable" : "fast", static_cast<int>(plan.options.groups));
    check_path(plan.spec, paths[i], what, tally);
  }
}

void finish(const Tally& tally) {
  EXPECT_LE(tally.flips * 100, 6 * tally.groups) << "near ties flipped in above 6 % of groups";
  fmt::print("largest relative error {:.1e}; {} of {} groups flipped\n", tally.worst, tally.flips,
             tally.groups);
}

LayerSpec spec_of(const AttentionShape& shape, const Settings& settings) {
  LayerSpec spec;
  spec.shape = shape;
  spec.settings = settings;
  spec.dtype = DType::bf16;
  return spec;
}

bool takes_whole_prompts(const Settings& settings) { return needs_whole_prompt(settings); }

// `sequences` prompts of random lengths up to `most`, in random chunks.
Plan random_plan(const LayerSpec& spec, int sequences, std::int64_t most, std::int64_t steps,
                 Random& random) {
  Plan plan;
  plan.spec = spec;
  plan.steps = steps;
  plan.options = {.portable = random.chance(0.5), .poison = true};
  for (int i = 0; i < sequences; ++i) {
    const std::int64_t prompt = random.integer(1, most);
    plan.chunks.push_back(takes_whole_prompts(spec.settings) || random.chance(0.3)
                              ? std::vector<std::int64_t>{prompt}
                              : random_chunks(prompt, random));
  }
  return plan;
}

TEST(CudaLayer, AgreesWithTheReferenceOnRandomLayers) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.5e-2};
  for (std::uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    Random random(7000 + i);
    const std::int64_t most = random.pick(
        {std::int64_t{1}, random.integer(1, 9), random.integer(2, 60), random.integer(40, 110)});
    const std::int64_t steps =
        random.pick({std::int64_t{0}, std::int64_t{1}, random.integer(1, 30)});
    const LayerSpec spec = spec_of(random_shape(random), random_settings(random, most + steps));
    run_plan(random_plan(spec, static_cast<int>(random.integer(1, 3)), most, steps, random), random,
             fmt::format("case {}", i), tally);
  }
  finish(tally);
}

TEST(CudaLayer, AgreesWithTheReferenceAtTheWidthsOfModels) {
  LCA_NEEDS_GPU();
  const std::vector<AttentionShape> shapes = {
      AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(5, 128, 64, 512, 128),
      AttentionShape::mla(3, 64, 32, 256, 64),   AttentionShape::gqa(7, 1, 128, 128),
      AttentionShape::gqa(6, 2, 64, 64),
  };
  Tally tally;
  for (std::uint64_t i = 0; i < 2 * shapes.size() && !HasFailure(); ++i) {
    Random random(7400 + i);
    Settings settings;
    settings.window = random.pick<std::int64_t>({33, 64, 100});
    settings.sink = random.pick<std::int64_t>({0, 16});
    settings.summary = random.pick({Summary::streaming, Summary::streaming, Summary::prompt});
    settings.semantic_pool = random.pick({Pool::weighted, Pool::select});
    settings.mass = random.pick({Mass::none, Mass::score});
    Plan plan;
    plan.spec = spec_of(shapes[i % shapes.size()], settings);
    plan.steps = 40;  // two groups leave the window
    plan.options = {.portable = i >= shapes.size(), .poison = true};
    plan.chunks = {takes_whole_prompts(settings) ? std::vector<std::int64_t>{271}
                                                 : std::vector<std::int64_t>{130, 1, 140}};
    run_plan(plan, random, fmt::format("case {}", i), tally);
  }
  finish(tally);
}

TEST(CudaLayer, AgreesWithTheReferenceOnBatchesOfManyLengths) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.5e-2};
  for (std::uint64_t i = 0; i < 6 && !HasFailure(); ++i) {
    Random random(7500 + i);
    Settings settings;
    settings.group = 3;
    settings.window = 5;
    settings.sink = static_cast<std::int64_t>(i % 3);
    settings.summary_queries = 4;
    settings.mass = Mass::score;
    const AttentionShape shape =
        i % 2 == 0 ? AttentionShape::mla(3, 16, 8, 32, 16) : AttentionShape::gqa(6, 2, 16, 24);
    // Enough groups for a second page: 64 of 3 tokens.
    run_plan(random_plan(spec_of(shape, settings), 9, 230, 24, random), random,
             fmt::format("case {}", i), tally);
  }
  finish(tally);
}

TEST(CudaLayer, AgreesWithTheReferenceUnderEveryCombinationOfPools) {
  LCA_NEEDS_GPU();
  Tally tally;
  std::uint64_t i = 0;
  for (const Form form : {Form::mla, Form::gqa}) {
    for (int semantic = 0; semantic < 4; ++semantic) {
      for (int positional = 0; positional < 4; ++positional, ++i) {
        Random random(7600 + i);
        Settings settings;
        settings.group = 8;
        settings.window = 12;
        settings.semantic_pool = static_cast<Pool>(semantic);
        settings.positional_pool = static_cast<Pool>(positional);
        settings.mass = static_cast<Mass>(i % 3);
        settings.head_reduce = static_cast<HeadReduce>((i / 3) % 3);
        settings.summary = static_cast<Summary>((i / 2) % 2);
        settings.summary_queries = 8;
        const AttentionShape shape = form == Form::mla ? AttentionShape::mla(5, 16, 8, 64, 16)
                                                       : AttentionShape::gqa(10, 2, 16, 16);
        run_plan(random_plan(spec_of(shape, settings), 1, 90, 20, random), random,
                 fmt::format("case {}", i), tally);
        if (HasFailure()) return;
      }
    }
  }
  finish(tally);
}

TEST(CudaLayer, GoesOnWithAPromptAfterDecoding) {
  LCA_NEEDS_GPU();
  Random random(7700);
  Settings settings;
  settings.group = 4;
  settings.window = 6;
  settings.sink = 2;
  settings.summary_queries = 5;
  const LayerSpec spec = spec_of(AttentionShape::mla(3, 16, 8, 32, 16), settings);
  const Layer layer = random_layer(spec, random);
  std::vector<Path> paths;
  paths.push_back(path_make(layer, 60, 60, random));
  cuda::Layer gpu(spec, layer.weights(), 1, 60, {.poison = true});
  const auto prefill = [&](std::int64_t count) {
    const cuda::HostRun run = paths[0].run(0, count);
    gpu.prefill({&run, 1});
  };
  prefill(21);
  for (int step = 0; step < 9; ++step) {
    const cuda::HostRun run = paths[0].run(0, 1);
    gpu.decode({&run, 1});
  }
  prefill(30);
  paths[0].groups = gpu.groups(0);
  Tally tally;
  check_path(spec, paths[0], "two prompts", tally);
  finish(tally);
}

// Latents of which a few columns are far larger than the rest, as in real models.
void add_outliers(Tokens& tokens) {
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    for (const std::int64_t column : {3, 77, 200}) {
      tokens.entry.set(t, 0, column, 20 * tokens.entry.get(t, 0, column));
    }
  }
  tokens.split();
}

TEST(CudaLayer, QuantisedGroupsChangeOutputsByLittle) {
  LCA_NEEDS_GPU();
  for (const bool outliers : {false, true}) {
    for (const Form form : {Form::mla, Form::gqa}) {
      if (outliers && form == Form::gqa) continue;
      Random random(7800);
      Settings settings;
      settings.window = 64;
      const AttentionShape shape = form == Form::mla ? AttentionShape::mla(3, 64, 32, 256, 64)
                                                     : AttentionShape::gqa(4, 2, 64, 64);
      const LayerSpec spec = spec_of(shape, settings);
      const Layer layer = random_layer(spec, random);
      Path exact = path_make(layer, 300, 340, random);
      // Queries of unit size: what quantising costs grows with the logits.
      for (std::int64_t t = 0; t < exact.tokens.count; ++t) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t d = 0; d < shape.d_score(); ++d) {
            exact.tokens.query.set(t, h, d, 0.4 * exact.tokens.query.get(t, h, d));
          }
        }
      }
      exact.tokens.split();
      if (outliers) add_outliers(exact.tokens);
      const auto run = [&](cuda::GroupStorage groups) {
        std::vector<Path> paths = {exact};
        Plan plan;
        plan.chunks = {{100, 200}};
        plan.steps = 40;
        cuda::Layer gpu(spec, layer.weights(), 1, 340, {.groups = groups, .poison = true});
        feed(gpu, paths, plan);
        return paths[0];
      };
      const Path wide = run(cuda::GroupStorage::bf16);
      for (const cuda::GroupStorage groups : {cuda::GroupStorage::fp8, cuda::GroupStorage::int8}) {
        const Path narrow = run(groups);
        std::string where;
        const double out = relative_error(wide.out, narrow.out, &where);
        const double latents = relative_error(wide.groups.semantic, narrow.groups.semantic, &where);
        fmt::print("{} {} {}: out {:.2e}, representatives {:.2e}\n",
                   form == Form::mla ? "mla" : "gqa", outliers ? "outliers" : "normal",
                   groups == cuda::GroupStorage::fp8 ? "fp8" : "int8", out, latents);
        EXPECT_LE(out, 2e-2);
        EXPECT_GT(latents, 0) << "nothing was quantised";
        EXPECT_LE(latents, 5e-2);
      }
    }
  }
}

TEST(CudaLayer, SaysWhatIsWrongWithARun) {
  LCA_NEEDS_GPU();
  Random random(7900);
  const LayerSpec spec = spec_of(AttentionShape::gqa(2, 1, 8, 8), Settings{});
  const Layer layer = random_layer(spec, random);
  Path path = path_make(layer, 8, 8, random);
  cuda::Layer gpu(spec, layer.weights(), 2, 4, {});
  const auto fails = [&](int sequence, std::int64_t count) {
    path.position = 0;
    const cuda::HostRun run = path.run(sequence, count);
    EXPECT_THROW(gpu.prefill({&run, 1}), Error) << sequence << " " << count;
  };
  fails(0, 5);
  fails(2, 1);
  fails(-1, 1);
  path.position = 0;
  const cuda::HostRun one = path.run(0, 1);
  EXPECT_THROW(gpu.decode({&one, 1}), Error);
  EXPECT_THROW(cuda::Layer(spec, layer.weights(), 1, std::int64_t{1} << 33), Error);
}

}  // namespace
}  // namespace lca::test
