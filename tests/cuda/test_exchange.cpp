// Caches exchanged between the GPU and the host: a round trip changes nothing, and a sequence
// continues on the other device as if it had been there from the start.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/cache_state.h"
#include "cuda/layer_path.h"

namespace lca::test {
namespace {

struct Shaped {
  const char* name;
  AttentionShape shape;
};

std::vector<Shaped> shapes() {
  return {{"mla 5 x 64", AttentionShape::mla(5, 16, 8, 64, 16)},
          {"mla 3 x 512+64", AttentionShape::mla(3, 128, 64, 512, 128)},
          {"gqa 6/2 x 64", AttentionShape::gqa(6, 2, 64, 64)}};
}

Settings settings_small(Mass mass, HeadReduce reduce) {
  Settings settings;
  settings.group = 4;
  settings.window = 9;
  settings.sink = 3;
  settings.summary_queries = 6;
  settings.mass = mass;
  settings.head_reduce = reduce;
  return settings;
}

void entry_positions(LayerSpec& spec, Random& random) {
  spec.settings.positions = Positions::entry;
  spec.rotation = random_rotation(random, spec.shape.d_positional());
}

void run_prefill(cuda::Layer& gpu, Path& path, std::int64_t count) {
  const cuda::HostRun run = path.run(0, count);
  gpu.prefill({&run, 1});
}

void run_decode(cuda::Layer& gpu, Path& path, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const cuda::HostRun run = path.run(0, 1);
    gpu.decode({&run, 1});
  }
}

/// Tokens [path.position, + count) by the CPU, in one run or one by one, on `cache`.
void run_cpu(const Layer& layer, Path& path, Cache& cache, std::int64_t count, bool one_by_one) {
  Context context(1);
  const Method& method = method_for(layer.spec.settings.method);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t some = one_by_one ? 1 : count;
    const cuda::HostRun part = path.run(0, some);
    const Run run{&cache, part.queries, part.entries, part.out, part.lse};
    method.forward(context, layer.weights(), {&run, 1});
    done += some;
  }
}

TEST(CudaExchange, ARoundTripChangesNothing) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8100;
  for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    for (const Shaped& shaped : shapes()) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        Random random(++seed);
        Settings settings = settings_small(Mass::score, HeadReduce::mean);
        settings.method = method;
        LayerSpec spec = spec_of(shaped.shape, settings);
        spec.dtype = dtype;
        if (seed % 2 == 0) entry_positions(spec, random);
        SCOPED_TRACE(std::string(shaped.name) + " seed " + std::to_string(seed));
        const Layer layer = random_layer(spec, random, DType::bf16);
        Path path = path_make(layer, 77, 77, random);
        cuda::Layer gpu(spec, layer.weights(), 1, 100, {.poison = true});
        run_prefill(gpu, path, 60);
        run_decode(gpu, path, 17);
        const Cache first = gpu.to_host(0);
        EXPECT_EQ(first.length(), 77);
        EXPECT_EQ(first.bytes(), cache_bytes(spec, 77));
        cuda::Layer other(spec, layer.weights(), 2, 100, {.poison = true});
        other.from_host(1, first);
        EXPECT_EQ(other.length(1), 77);
        EXPECT_EQ(other.to_host(1).save(), first.save());
      }
    }
  }
}

/// One sequence over two layers on the GPU, by way of the host.
void expect_goes_on(bool entry, std::uint64_t seed, Tally& tally) {
  for (const HeadReduce reduce : {HeadReduce::mean, HeadReduce::max}) {
    for (const Shaped& shaped : shapes()) {
      for (const bool portable : {false, true}) {
        Random random(++seed);
        LayerSpec spec = spec_of(shaped.shape, settings_small(Mass::score, reduce));
        if (entry) entry_positions(spec, random);
        const Layer layer = random_layer(spec, random);
        Path path = path_make(layer, 50, 120, random);
        cuda::Layer first(spec, layer.weights(), 1, 120, {.portable = portable, .poison = true});
        run_prefill(first, path, 50);
        run_decode(first, path, 3);
        cuda::Layer second(spec, layer.weights(), 1, 120, {.portable = portable, .poison = true});
        second.from_host(0, first.to_host(0));
        run_decode(second, path, 21);
        run_prefill(second, path, 20);
        run_decode(second, path, 26);
        path.groups = HostGroups(second.to_host(0));
        check_path(spec, path, shaped.name, tally);
      }
    }
  }
}

TEST(CudaExchange, ASequenceContinuesAfterARoundTrip) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 7e-3};
  expect_goes_on(false, 8200, tally);
  finish(tally);
}

TEST(CudaExchange, ASequenceWithEntryPositionsContinuesAfterARoundTrip) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.2e-2};
  expect_goes_on(true, 8250, tally);
  finish(tally);
}

/// One sequence on the GPU and on the CPU, in either order.
void expect_other_goes_on(bool entry, std::uint64_t seed, Tally& tally) {
  for (const Shaped& shaped : shapes()) {
    for (const bool from_cpu : {true, false}) {
      Random random(++seed);
      LayerSpec spec = spec_of(shaped.shape, settings_small(Mass::score, HeadReduce::mean));
      if (entry) entry_positions(spec, random);
      const Layer layer = random_layer(spec, random);
      Path path = path_make(layer, 70, 130, random);
      cuda::Layer gpu(spec, layer.weights(), 1, 130, {.poison = true});
      Cache cache(spec);
      if (from_cpu) {
        run_cpu(layer, path, cache, 70, false);
        run_cpu(layer, path, cache, 5, true);
        gpu.from_host(0, cache);
        run_decode(gpu, path, 55);
        path.groups = HostGroups(gpu.to_host(0));
      } else {
        run_prefill(gpu, path, 70);
        run_decode(gpu, path, 5);
        cache = gpu.to_host(0);
        run_cpu(layer, path, cache, 30, false);
        run_cpu(layer, path, cache, 25, true);
        path.groups = HostGroups(cache);
      }
      check_path(spec, path, std::string(shaped.name) + (from_cpu ? " cpu first" : " gpu first"),
                 tally);
    }
  }
}

TEST(CudaExchange, TheOtherDeviceGoesOnWithIt) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 7e-3};
  expect_other_goes_on(false, 8300, tally);
  finish(tally);
}

TEST(CudaExchange, TheOtherDeviceGoesOnWithEntryPositions) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.2e-2};
  expect_other_goes_on(true, 8350, tally);
  finish(tally);
}

TEST(CudaExchange, WhatDoesNotFitIsRefused) {
  LCA_NEEDS_GPU();
  Random random(8400);
  const LayerSpec spec = spec_of(shapes()[0].shape, settings_small(Mass::none, HeadReduce::mean));
  const Layer layer = random_layer(spec, random);
  cuda::Layer gpu(spec, layer.weights(), 1, 40, {});
  LayerSpec other = spec;
  other.settings.group = 5;
  EXPECT_THROW(gpu.from_host(0, Cache(other)), Error);
  Cache longer(spec);
  Path path = path_make(layer, 60, 60, random);
  run_cpu(layer, path, longer, 60, false);
  EXPECT_THROW(gpu.from_host(0, longer), Error);
  EXPECT_THROW(gpu.from_host(1, Cache(spec)), Error);
  EXPECT_THROW(gpu.to_host(1), Error);
}

}  // namespace
}  // namespace lca::test
