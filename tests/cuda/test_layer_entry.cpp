// A whole layer on the GPU with entry positions (mechanism §10) against the reference.

#include <cstring>

#include "attention/rotate.h"
#include "cuda/layer_path.h"

namespace lca::test {
namespace {

// The rotated form of a query is rounded to bf16 once more than with token positions.
constexpr double kToleranceWide = 8e-3;
constexpr double kToleranceNarrow = 1.2e-2;

LayerSpec entry_spec(const AttentionShape& shape, const Settings& settings, Random& random) {
  LayerSpec spec = spec_of(shape, settings);
  spec.settings.positions = Positions::entry;
  spec.rotation = random_rotation(random, shape.d_positional());
  return spec;
}

TEST(CudaLayerEntry, AgreesWithTheReferenceOnRandomLayers) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = kToleranceNarrow};
  int entries = 0;
  for (std::uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    Random random(17000 + i);
    const std::int64_t most = random.pick(
        {std::int64_t{1}, random.integer(1, 9), random.integer(2, 60), random.integer(40, 110)});
    const std::int64_t steps =
        random.pick({std::int64_t{0}, std::int64_t{1}, random.integer(1, 30)});
    const AttentionShape shape = random_shape(random);
    const Settings settings = random_settings(random, most + steps);
    if (shape.d_positional() < 2) continue;
    ++entries;
    run_plan(random_plan(entry_spec(shape, settings, random),
                         static_cast<int>(random.integer(1, 3)), most, steps, random),
             random, fmt::format("case {}", i), tally);
  }
  EXPECT_GE(entries, 75);
  finish(tally);
}

TEST(CudaLayerEntry, AgreesWithTheReferenceAtTheWidthsOfModels) {
  LCA_NEEDS_GPU();
  const std::vector<AttentionShape> shapes = {
      AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
      AttentionShape::gqa(7, 1, 128, 128), AttentionShape::gqa(6, 2, 64, 64)};
  constexpr std::int64_t kSinks[] = {0, 4, 16};
  Tally tally{.tolerance = kToleranceWide};
  std::uint64_t i = 0;
  for (const AttentionShape& shape : shapes) {
    for (const bool portable : {false, true}) {
      for (const Summary summary : {Summary::streaming, Summary::prompt}) {
        Random random(17400 + i);
        Settings settings;
        settings.window = random.pick<std::int64_t>({33, 64, 100});
        settings.sink = kSinks[i % 3];
        settings.summary = summary;
        settings.semantic_pool = random.pick({Pool::weighted, Pool::select});
        settings.mass = static_cast<Mass>(i % 3);
        Plan plan;
        plan.spec = entry_spec(shape, settings, random);
        plan.spec.rotation = rotation_plain(shape.d_positional());
        plan.spec.rotation.layout = i % 2 == 0 ? RopeLayout::halves : RopeLayout::adjacent;
        plan.steps = 40;
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

TEST(CudaLayerEntry, AgreesWithTheReferenceUnderEveryPoolAndMass) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = kToleranceNarrow};
  std::uint64_t i = 0;
  for (const AttentionShape& shape :
       {AttentionShape::mla(5, 16, 8, 64, 16), AttentionShape::gqa(10, 2, 16, 16),
        AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::gqa(4, 2, 64, 64)}) {
    for (int semantic = 0; semantic < 4; ++semantic) {
      for (int positional = 0; positional < 4; ++positional) {
        for (int mass = 0; mass < 3; ++mass, ++i) {
          if (shape.heads < 5 && i % 3 != 0) continue;
          Random random(17600 + i);
          Settings settings;
          settings.group = 8;
          settings.window = 12;
          settings.sink = static_cast<std::int64_t>(i % 4);
          settings.semantic_pool = static_cast<Pool>(semantic);
          settings.positional_pool = static_cast<Pool>(positional);
          settings.mass = static_cast<Mass>(mass);
          settings.summary = static_cast<Summary>((i / 2) % 2);
          settings.summary_queries = 8;
          run_plan(random_plan(entry_spec(shape, settings, random), 1, 90, 20, random), random,
                   fmt::format("case {}", i), tally);
          if (HasFailure()) return;
        }
      }
    }
  }
  finish(tally);
}

TEST(CudaLayerEntry, WindowAndDenseFollowTheSameRule) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = kToleranceNarrow};
  std::uint64_t i = 0;
  for (const MethodKind method : {MethodKind::window, MethodKind::dense}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::gqa(6, 2, 64, 64),
          AttentionShape::mla(3, 16, 8, 32, 16)}) {
      Random random(17700 + ++i);
      Settings settings;
      settings.method = method;
      settings.window = 37;
      settings.sink = 5;
      run_plan(random_plan(entry_spec(shape, settings, random), 2, 200, 20, random), random,
               fmt::format("case {}", i), tally);
    }
  }
  finish(tally);
}

TEST(CudaLayerEntry, QuantisedGroupsChangeOutputsByLittle) {
  LCA_NEEDS_GPU();
  for (const AttentionShape& shape :
       {AttentionShape::mla(3, 64, 32, 256, 64), AttentionShape::mla(3, 128, 64, 512, 128),
        AttentionShape::gqa(4, 2, 64, 64), AttentionShape::gqa(4, 2, 128, 128)}) {
    Random random(17800);
    Settings settings;
    settings.window = 64;
    settings.sink = 4;
    const LayerSpec spec = entry_spec(shape, settings, random);
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
        EXPECT_LE(relative_error(wide.out, narrow.out, &where), 2e-2) << where;
        const double latents = relative_error(wide.groups.semantic, narrow.groups.semantic, &where);
        EXPECT_GT(latents, 0) << "nothing was quantised";
        EXPECT_LE(latents, 5e-2);
        EXPECT_LE(relative_error(wide.groups.positional, narrow.groups.positional, &where), 5e-2);
      }
    }
  }
}

TEST(CudaLayerEntry, NothingCondensedEqualsTokenPositionsBitForBit) {
  LCA_NEEDS_GPU();
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
        AttentionShape::gqa(7, 1, 128, 128), AttentionShape::gqa(6, 2, 64, 64),
        AttentionShape::mla(3, 16, 8, 32, 16)}) {
    for (const bool portable : {false, true}) {
      Random random(17900);
      Settings settings;
      settings.window = 200;
      settings.sink = 16;
      settings.mass = Mass::score;
      const LayerSpec entry = entry_spec(shape, settings, random);
      LayerSpec token = entry;
      token.settings.positions = Positions::token;
      const Layer layer = random_layer(token, random);
      const Path given = path_make(layer, 190, 215, random);
      const auto run = [&](const LayerSpec& spec) {
        std::vector<Path> paths = {given};
        Plan plan;
        plan.chunks = {{130, 60}};
        plan.steps = 25;
        cuda::Layer gpu(spec, layer.weights(), 1, 215, {.portable = portable, .poison = true});
        feed(gpu, paths, plan);
        return paths[0].out;
      };
      const std::vector<float> a = run(entry);
      const std::vector<float> b = run(token);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
          << describe(entry) << (portable ? " portable" : " fast");
    }
  }
}

TEST(CudaLayerEntry, GoesOnWithAPromptAfterDecoding) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = kToleranceNarrow};
  std::uint64_t seed = 17950;
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
    const LayerSpec spec = entry_spec(shape, settings, random);
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

}  // namespace
}  // namespace lca::test
