// Prompts whose groups wait for their end, layer by layer on the GPU, against the CPU.

#include <gtest/gtest.h>

#include "cuda/resident.h"
#include "cuda/resident_specs.h"

namespace lca::test {
namespace {

/// The same turns on the CPU, layer by layer: what a prompt-mode cache holds after several prompts.
struct CpuTurns {
  explicit CpuTurns(const Layer& layer, const Path& path)
      : layer(layer), path(path), cache(layer.spec) {
    std::fill(this->path.out.begin(), this->path.out.end(), kNan);
  }
  void take(std::int64_t count, bool one_by_one) {
    Context context(1);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t some = one_by_one ? 1 : count;
      const cuda::HostRun part = path.run(0, some);
      const Run run{&cache, part.queries, part.entries, part.out, part.lse};
      method_for(layer.spec.settings.method).forward(context, layer.weights(), {&run, 1});
      done += some;
    }
  }

  const Layer& layer;
  Path path;
  Cache cache;
};

TEST(CudaCaches, PromptsThatWaitForTheirEndComeInChunksAndInTurns) {
  LCA_NEEDS_GPU();
  double worst = 0;
  for (const CachesShape& shaped : caches_shapes()) {
    for (const std::int64_t chunk : {7, 64, 1000}) {
      Random random(9950);
      std::vector<LayerSpec> specs = mixed_specs(shaped.shape);
      for (LayerSpec& spec : specs) {
        if (spec.settings.method == MethodKind::window) continue;
        spec.settings.summary = Summary::prompt;
        // No representative depends on which row is best: near ties do not matter.
        spec.settings.positional_pool = Pool::weighted;
      }
      specs[2].settings.sink = 40;  // a whole first prompt may fit into the sink
      specs[3].settings.summary = Summary::streaming;
      Resident model(specs, random);
      Talk talk = model.talk(1, 330, random);
      std::vector<CpuTurns> cpu;
      for (std::size_t l = 0; l < specs.size(); ++l)
        cpu.emplace_back(model.layer(l), talk.paths[l]);
      // Prompts shorter and longer than the queries that score, replies in between.
      for (const auto& [prompt, reply] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {30, 5}, {120, 11}, {3, 4}, {60, 30}, {2, 20}}) {
        model.prompt(talk, prompt + 9, chunk, false);  // rolled back
        model.prompt(talk, prompt, chunk);
        model.decode(talk, reply);
        for (CpuTurns& one : cpu) {
          one.take(prompt, false);
          one.take(reply, true);
        }
      }
      const std::int64_t length = talk.position();
      const std::vector<Cache> held = talk.caches->to_host();
      for (std::size_t l = 0; l < specs.size(); ++l) {
        const std::string what = fmt::format("{} chunks of {} layer {}", shaped.name, chunk, l);
        const HostGroups expected(cpu[l].cache), got(held[l]);
        EXPECT_EQ(got.count, expected.count) << what;
        const auto near = [&](const char* name, const std::vector<float>& right,
                              const std::vector<float>& given) {
          std::string where;
          const double error = relative_error(right, given, &where);
          EXPECT_LE(error, 1e-2) << what << ": " << name << " " << where;
          worst = std::max(worst, error);
        };
        near("semantic", expected.semantic, got.semantic);
        near("positional", expected.positional, got.positional);
        const auto values =
            static_cast<std::ptrdiff_t>(length * shaped.shape.heads * shaped.shape.d_value);
        near("out", std::vector(cpu[l].path.out.begin(), cpu[l].path.out.begin() + values),
             std::vector(talk.paths[l].out.begin(), talk.paths[l].out.begin() + values));
      }
      if (HasFailure()) return;
    }
  }
  fmt::print("largest relative error {:.1e}\n", worst);
}

}  // namespace
}  // namespace lca::test
