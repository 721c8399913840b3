// A whole layer on the GPU against the reference: prompts in chunks, batches, decoding, every
// option, both kinds of kernels.

#include "cuda/layer_path.h"

namespace lca::test {
namespace {

TEST(CudaLayer, AgreesWithTheReferenceOnRandomLayers) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 9e-3};
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
  Tally tally{.tolerance = 7e-3};
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
  paths[0].groups = HostGroups(gpu.to_host(0));
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

// A representative's bias is scores alone (mechanism §5), and those are float32 sums over heads of
// absorbed queries: nothing on the way may be rounded to bf16. One query a group and few heads
// leave nothing that a mean could even out.
TEST(CudaLayer, BiasesOfDecodedGroupsHaveTheAccuracyOfFloat32) {
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
