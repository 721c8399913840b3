// A whole layer on the GPU against the reference: prompts in chunks, batches, decoding, every
// option, both kinds of kernels, both kinds of positions.

#include "attention/rotate.h"
#include "cuda/layer_path.h"

namespace lca::test {
namespace {

class CudaLayer : public testing::TestWithParam<Positions> {
 protected:
  static bool entry() { return GetParam() == Positions::entry; }
  static LayerSpec spec_with(const AttentionShape& shape, const Settings& settings,
                             Random& random) {
    return entry() ? entry_spec(shape, settings, random) : spec_of(shape, settings);
  }
  /// With entry positions the rotated form of a query is rounded to bf16 once more.
  static Tally tally_of(double token, double entries = kEntryTolerance) {
    return {.tolerance = entry() ? entries : token};
  }
};

INSTANTIATE_TEST_SUITE_P(, CudaLayer, testing::Values(Positions::token, Positions::entry),
                         [](const auto& info) {
                           return info.param == Positions::token ? "token" : "entry";
                         });

TEST_P(CudaLayer, AgreesWithTheReferenceOnRandomLayers) {
  LCA_NEEDS_GPU();
  Tally tally = tally_of(9e-3);
  int layers = 0;
  for (std::uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    Random random(7000 + i);
    const std::int64_t most = random.pick(
        {std::int64_t{1}, random.integer(1, 9), random.integer(2, 60), random.integer(40, 110)});
    const std::int64_t steps =
        random.pick({std::int64_t{0}, std::int64_t{1}, random.integer(1, 30)});
    const AttentionShape shape = random_shape(random);
    const Settings settings = random_settings(random, most + steps);
    if (entry() && shape.d_positional() < 2) continue;
    ++layers;
    const LayerSpec spec = spec_with(shape, settings, random);
    run_plan(random_plan(spec, static_cast<int>(random.integer(1, 3)), most, steps, random), random,
             fmt::format("case {}", i), tally);
  }
  EXPECT_GE(layers, 75);
  finish(tally);
}

TEST_P(CudaLayer, AgreesWithTheReferenceAtTheWidthsOfModels) {
  LCA_NEEDS_GPU();
  const std::vector<AttentionShape> shapes = {
      AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(5, 128, 64, 512, 128),
      AttentionShape::mla(3, 64, 32, 256, 64),   AttentionShape::gqa(7, 1, 128, 128),
      AttentionShape::gqa(6, 2, 64, 64),
  };
  constexpr std::int64_t kSinks[] = {0, 4, 16};
  Tally tally = tally_of(5e-3, 8e-3);
  std::uint64_t i = 0;
  for (const AttentionShape& shape : shapes) {
    for (const bool portable : {false, true}) {
      for (const Summary summary : {Summary::streaming, Summary::prompt}) {
        Random random(7400 + i);
        Settings settings;
        settings.window = random.pick<std::int64_t>({33, 64, 100});
        settings.sink = kSinks[i % 3];
        settings.summary = summary;
        settings.semantic_pool = random.pick({Pool::weighted, Pool::select});
        settings.mass = static_cast<Mass>(i % 3);
        Plan plan;
        plan.spec = spec_with(shape, settings, random);
        if (entry()) {
          plan.spec.rotation = rotation_plain(shape.d_positional());
          plan.spec.rotation.layout = i % 2 == 0 ? RopeLayout::halves : RopeLayout::adjacent;
        }
        plan.steps = 40;  // two groups leave the window
        plan.options = {.portable = portable, .poison = true};
        plan.chunks = {takes_whole_prompts(settings) ? std::vector<std::int64_t>{271}
                                                     : std::vector<std::int64_t>{130, 1, 140}};
        run_plan(plan, random, fmt::format("case {}", i), tally);
        if (HasFailure()) return;
        ++i;
      }
    }
  }
  finish(tally);
}

TEST_P(CudaLayer, AgreesWithTheReferenceOnBatchesOfManyLengths) {
  LCA_NEEDS_GPU();
  Tally tally = tally_of(7e-3);
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
    run_plan(random_plan(spec_with(shape, settings, random), 9, 230, 24, random), random,
             fmt::format("case {}", i), tally);
  }
  finish(tally);
}

TEST_P(CudaLayer, AgreesWithTheReferenceUnderEveryCombinationOfPools) {
  LCA_NEEDS_GPU();
  Tally tally = tally_of(5e-3);
  std::uint64_t i = 0;
  for (const AttentionShape& shape :
       {AttentionShape::mla(5, 16, 8, 64, 16), AttentionShape::gqa(10, 2, 16, 16),
        AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::gqa(4, 2, 64, 64)}) {
    for (int semantic = 0; semantic < 4; ++semantic) {
      for (int positional = 0; positional < 4; ++positional, ++i) {
        Random random(7600 + i);
        Settings settings;
        settings.group = 8;
        settings.window = 12;
        settings.sink = static_cast<std::int64_t>(i % 4);
        settings.semantic_pool = static_cast<Pool>(semantic);
        settings.positional_pool = static_cast<Pool>(positional);
        settings.mass = static_cast<Mass>(i % 3);
        settings.head_reduce = static_cast<HeadReduce>((i / 3) % 3);
        settings.summary = static_cast<Summary>((i / 2) % 2);
        settings.summary_queries = 8;
        run_plan(random_plan(spec_with(shape, settings, random), 1, 90, 20, random), random,
                 fmt::format("case {}", i), tally);
        if (HasFailure()) return;
      }
    }
  }
  finish(tally);
}

TEST_P(CudaLayer, AgreesWithTheReferenceForWindowAndDense) {
  LCA_NEEDS_GPU();
  Tally tally = tally_of(7e-3);
  std::uint64_t i = 0;
  for (const MethodKind method : {MethodKind::window, MethodKind::dense}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::gqa(6, 2, 64, 64),
          AttentionShape::mla(3, 16, 8, 32, 16)}) {
      Random random(7700 + ++i);
      Settings settings;
      settings.method = method;
      settings.window = 37;
      settings.sink = 5;
      run_plan(random_plan(spec_with(shape, settings, random), 2, 200, 20, random), random,
               fmt::format("case {}", i), tally);
    }
  }
  finish(tally);
}

TEST_P(CudaLayer, GoesOnWithAPromptAfterDecoding) {
  LCA_NEEDS_GPU();
  Tally tally = tally_of(7e-3);
  std::uint64_t seed = 7750;
  for (const AttentionShape& shape :
       {AttentionShape::mla(3, 16, 8, 32, 16), AttentionShape::mla(2, 128, 64, 512, 128),
        AttentionShape::gqa(6, 2, 64, 64)}) {
    Random random(++seed);
    Settings settings;
    settings.group = 4;
    settings.window = 6;
    settings.sink = 2;
    settings.summary_queries = 5;
    settings.mass = Mass::score;
    const LayerSpec spec = spec_with(shape, settings, random);
    const Layer layer = random_layer(spec, random);
    Path path = path_make(layer, 60, 60, random);
    cuda::Layer gpu(spec, layer.weights(), 1, 60, {.poison = true});
    const auto prefill = [&](std::int64_t count) {
      const cuda::HostRun run = path.run(0, count);
      gpu.prefill({&run, 1});
    };
    prefill(21);
    for (int step = 0; step < 9; ++step) {
      const cuda::HostRun run = path.run(0, 1);
      gpu.decode({&run, 1});
    }
    prefill(30);
    path.groups = HostGroups(gpu.to_host(0));
    check_path(spec, path, "two prompts", tally);
  }
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

TEST_P(CudaLayer, QuantisedGroupsChangeOutputsByLittle) {
  LCA_NEEDS_GPU();
  struct Case {
    AttentionShape shape;
    bool outliers;
  };
  for (const auto& [shape, outliers] : {Case{AttentionShape::mla(3, 64, 32, 256, 64), false},
                                        Case{AttentionShape::mla(3, 64, 32, 256, 64), true},
                                        Case{AttentionShape::mla(3, 128, 64, 512, 128), false},
                                        Case{AttentionShape::mla(3, 128, 64, 512, 128), true},
                                        Case{AttentionShape::gqa(4, 2, 64, 64), false},
                                        Case{AttentionShape::gqa(4, 2, 128, 128), false}}) {
    Random random(7800);
    Settings settings;
    settings.window = 64;
    settings.sink = entry() ? 4 : 0;
    const LayerSpec spec = spec_with(shape, settings, random);
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
    const auto run = [&](cuda::GroupStorage groups, bool portable) {
      std::vector<Path> paths = {exact};
      Plan plan;
      plan.chunks = {{100, 200}};
      plan.steps = 40;
      cuda::Layer gpu(spec, layer.weights(), 1, 340,
                      {.portable = portable, .groups = groups, .poison = true});
      feed(gpu, paths, plan);
      return paths[0];
    };
    const Path wide = run(cuda::GroupStorage::bf16, false);
    for (const cuda::GroupStorage groups : {cuda::GroupStorage::fp8, cuda::GroupStorage::int8}) {
      for (const bool portable : {false, true}) {
        const Path narrow = run(groups, portable);
        std::string where;
        const double out = relative_error(wide.out, narrow.out, &where);
        const double latents = relative_error(wide.groups.semantic, narrow.groups.semantic, &where);
        fmt::print("{} {} {} {}: out {:.2e}, representatives {:.2e}\n", describe(spec),
                   outliers ? "outliers" : "normal",
                   groups == cuda::GroupStorage::fp8 ? "fp8" : "int8",
                   portable ? "portable" : "fast", out, latents);
        EXPECT_LE(out, 2e-2);
        EXPECT_GT(latents, 0) << "nothing was quantised";
        EXPECT_LE(latents, 5e-2);
        EXPECT_LE(relative_error(wide.groups.positional, narrow.groups.positional, &where), 5e-2);
      }
    }
  }
}

// A representative's bias is scores alone (mechanism §5), and those are float32 sums over heads of
// absorbed queries: nothing on the way may be rounded to bf16. One query a group and few heads
// leave nothing that a mean could even out.
TEST(CudaLayerCalls, BiasesOfDecodedGroupsHaveTheAccuracyOfFloat32) {
  LCA_NEEDS_GPU();
  double worst = 0;
  for (std::uint64_t i = 0; i < 12; ++i) {
    Random random(7950 + i);
    Settings settings;
    settings.group = 4;
    settings.window = 6;
    settings.summary_queries = 1;
    settings.mass = Mass::score;
    settings.positional_pool = Pool::weighted;
    settings.head_reduce = i % 3 == 2 ? HeadReduce::max : HeadReduce::mean;
    const AttentionShape shape = i % 2 == 0 ? AttentionShape::mla(2, 128, 64, 512, 128)
                                            : AttentionShape::mla(2, 16, 8, 64, 16);
    const LayerSpec spec = spec_of(shape, settings);
    const Layer layer = random_layer(spec, random);
    std::vector<Path> paths;
    paths.push_back(path_make(layer, 2, 60, random));
    Plan plan;
    plan.spec = spec;
    plan.chunks = {{2}};
    plan.steps = 58;
    cuda::Layer gpu(spec, layer.weights(), 1, 60, {.portable = i >= 6, .poison = true});
    feed(gpu, paths, plan);
    std::string where;
    const double error =
        largest_difference(paths[0].expected.rep_bias, paths[0].groups.bias, &where) /
        largest_size(paths[0].expected.rep_top);
    EXPECT_LE(error, 2e-5) << "case " << i << ": " << where;
    worst = std::max(worst, error);
  }
  fmt::print("largest error of a bias {:.1e}\n", worst);
}

TEST(CudaLayerCalls, SaysWhatIsWrongWithARun) {
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
