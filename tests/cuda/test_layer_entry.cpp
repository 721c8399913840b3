// What is true of a layer on the GPU with entry positions alone (mechanism §10); test_layer.cpp has
// all that both kinds of positions do.

#include <cstring>

#include "cuda/layer_path.h"

namespace lca::test {
namespace {

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

}  // namespace
}  // namespace lca::test
