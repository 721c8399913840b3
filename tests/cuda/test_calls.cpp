// The calls that a resident model is made of: a store of several layers, chunks and steps that only
// enqueue, and one captured step of all layers that is replayed for token after token.

#include "attention/cuda/calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/cuda/cache/exchange.h"
#include "cuda/layer_path.h"

namespace lca::test {
namespace {

constexpr int kLayers = 2;
constexpr std::int64_t kLongest = 400;

/// A model of attention layers alone on the GPU: every layer has its own weights and tokens.
class Resident {
 public:
  Resident(const LayerSpec& spec, int slots, cuda::Kernels kernels, Random& random)
      : spec_(spec),
        store_(gpu(), spec, cuda::GroupType::bf16,
               {.layers = kLayers, .slots = slots, .longest = kLongest}, stream_, true) {
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back(random_layer(spec, random));
      cuda::LayerView view;
      view.spec = spec;
      view.kernels = kernels;
      view.cache = store_.layer(i);
      if (view.mla()) {
        view.w_uk = weights_up(layers_.back().weights().w_uk);
        view.w_uv = weights_up(layers_.back().weights().w_uv);
      }
      views_.push_back(view);
    }
  }

  const bf16* weights_up(const ConstTensor& from) {
    weights_.emplace_back(static_cast<std::size_t>(from.shape[0] * from.shape[1] * from.shape[2]) *
                          2);
    transfer_.upload(from, weights_.back().as<bf16>());
    return weights_.back().as<bf16>();
  }

  cuda::CacheStore& store() { return store_; }
  const Layer& layer(int i) const { return layers_[static_cast<std::size_t>(i)]; }
  const cuda::LayerView& view(int i) const { return views_[static_cast<std::size_t>(i)]; }
  const cuda::Stream& stream() const { return stream_; }
  cuda::Transfer& transfer() { return transfer_; }
  cuda::ProductSpace products() { return products_.space(); }

  /// A chunk of every path in slots[i], in all layers; paths are [layer][i].
  void chunk(std::vector<std::vector<Path>>& paths, std::span<const int> slots,
             std::int64_t tokens) {
    std::vector<cuda::ChunkRequest> requests;
    std::vector<std::int64_t> lengths;
    for (const int slot : slots) {
      requests.push_back({slot, tokens});
      lengths.push_back(store_.length(slot) + tokens);
    }
    store_.reserve(slots, lengths);
    const cuda::ChunkPlan plan = cuda::chunk_plan(store_, requests);
    // Planned from limits, as a model does it, and no larger than that.
    const cuda::ChunkRows most =
        cuda::chunk_rows_most(spec_, kLongest, tokens * static_cast<std::int64_t>(slots.size()),
                              static_cast<std::int64_t>(slots.size()));
    EXPECT_LE(plan.rows.query, most.query);
    EXPECT_LE(plan.rows.exact, most.exact);
    EXPECT_LE(plan.rows.group, most.group);
    EXPECT_LE(plan.rows.condensed, most.condensed);
    const std::size_t bytes = cuda::chunk_space_bytes(spec_, most);
    chunk_memory_.require(bytes);
    for (int l = 0; l < kLayers; ++l) {
      transfer_.fill(chunk_memory_.as<void>(), bytes, 0xff);
      const cuda::ChunkSpace space = cuda::chunk_space(spec_, most, chunk_memory_.as<void>());
      const AttentionShape& shape = spec_.shape;
      std::vector<cuda::HostRun> runs;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const cuda::ChunkPiece& piece = plan.pieces[i];
        const cuda::HostRun run = paths[static_cast<std::size_t>(l)][i].run(slots[i], tokens);
        if (view(l).mla()) {
          transfer_.upload(run.queries.nope,
                           space.nope + piece.query_row() * shape.heads * shape.d_nope);
        }
        transfer_.upload(run.queries.rope,
                         space.rope + piece.query_row() * shape.heads * shape.d_rope);
        transfer_.upload(run.entries.semantic,
                         space.exact_semantic + piece.exact_row() * view(l).semantic_values());
        transfer_.upload(run.entries.positional,
                         space.exact_positional + piece.exact_row() * view(l).positional_values());
        runs.push_back(run);
      }
      cuda::chunk_run(view(l), plan, space, products(), stream_.queue());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::int64_t row = plan.pieces[i].query_row();
        transfer_.download(space.out + row * shape.heads * shape.d_value,
                           tokens * shape.heads * shape.d_value, runs[i].out);
        transfer_.download(space.lse + row * shape.heads, tokens * shape.heads, runs[i].lse);
      }
    }
    for (const int slot : slots) store_.advance(slot, tokens);
  }

 private:
  LayerSpec spec_;
  cuda::Stream stream_{gpu()};
  cuda::Transfer transfer_{stream_};
  cuda::CacheStore store_;
  TestProducts products_;
  std::vector<Layer> layers_;
  std::vector<cuda::LayerView> views_;
  std::vector<cuda::Buffer> weights_;
  cuda::Buffer chunk_memory_;
};

/// One decode step of all layers as a graph, with the tensors of each layer.
class StepGraph {
 public:
  StepGraph(Resident& model, const cuda::DecodePlan& plan) : model_(model), plan_(plan) {
    const LayerSpec& spec = model.store().spec();
    const std::size_t bytes = cuda::step_space_bytes(spec, plan, true);
    for (int l = 0; l < kLayers; ++l) {
      memory_.emplace_back(bytes);
      model.transfer().fill(memory_.back().as<void>(), bytes, 0xff);
      spaces_.push_back(cuda::step_space(spec, plan, true, memory_.back().as<void>()));
      model.transfer().fill(spaces_.back().kernel_space, plan.workspace_bytes, 0);
    }
    model.stream().wait();
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(model.stream(), cudaStreamCaptureModeGlobal), "capture");
    for (int l = 0; l < kLayers; ++l) {
      cuda::step_run(model.view(l), plan, spaces_[static_cast<std::size_t>(l)], model.products(),
                     model.stream().queue());
    }
    cuda::check(cudaStreamEndCapture(model.stream(), &graph), "capture");
    cuda::check(cudaGraphInstantiate(&replay_, graph, 0), "a graph");
    cudaGraphDestroy(graph);
  }
  ~StepGraph() { cudaGraphExecDestroy(replay_); }

  /// The next token of every path, [layer][slot]; slots without a path get NaN.
  void step(std::vector<std::vector<Path>>& paths, std::span<const int> slots) {
    const AttentionShape& shape = model_.store().spec().shape;
    std::vector<std::vector<cuda::HostRun>> runs(kLayers);
    for (int l = 0; l < kLayers; ++l) {
      const cuda::LayerView& view = model_.view(l);
      const cuda::StepSpace& space = spaces_[static_cast<std::size_t>(l)];
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const cuda::HostRun run = paths[static_cast<std::size_t>(l)][i].run(slots[i], 1);
        cuda::Transfer& transfer = model_.transfer();
        if (view.mla()) {
          transfer.upload(run.queries.nope, space.nope + slots[i] * shape.heads * shape.d_nope);
        }
        transfer.upload(run.queries.rope, space.rope + slots[i] * shape.heads * shape.d_rope);
        transfer.upload(run.entries.semantic, space.semantic + slots[i] * view.semantic_values());
        transfer.upload(run.entries.positional,
                        space.positional + slots[i] * view.positional_values());
        runs[static_cast<std::size_t>(l)].push_back(run);
      }
    }
    cuda::check(cudaGraphLaunch(replay_, model_.stream()), "a graph");
    for (int l = 0; l < kLayers; ++l) {
      const cuda::StepSpace& space = spaces_[static_cast<std::size_t>(l)];
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const cuda::HostRun& run = runs[static_cast<std::size_t>(l)][i];
        const std::int64_t values = shape.heads * shape.d_value;
        if (space.out_float != nullptr) {
          model_.transfer().download(space.out_float + slots[i] * values, values, run.out);
        } else {
          model_.transfer().download(space.out + slots[i] * values, values, run.out);
        }
        model_.transfer().download(space.lse + slots[i] * shape.heads, shape.heads, run.lse);
      }
    }
    for (const int slot : slots) model_.store().advance(slot, 1);
  }

 private:
  Resident& model_;
  cuda::DecodePlan plan_;
  std::vector<cuda::Buffer> memory_;
  std::vector<cuda::StepSpace> spaces_;
  cudaGraphExec_t replay_ = nullptr;
};

Settings small_settings() {
  Settings settings;
  settings.group = 3;
  settings.window = 7;
  settings.sink = 2;
  settings.summary_queries = 5;
  settings.mass = Mass::score;
  return settings;
}

/// Chunks, then one captured step replayed, then a chunk and the same graph again; everything
/// against the reference and, where `same`, bit for bit against steps that were not captured.
void expect_replays_right(const AttentionShape& shape, cuda::Kernels kernels, HeadReduce reduce,
                          std::uint64_t seed, Tally& tally,
                          Positions positions = Positions::token) {
  Random random(seed);
  Settings settings = small_settings();
  settings.head_reduce = reduce;
  settings.positions = positions;
  LayerSpec spec = spec_of(shape, settings);
  if (positions == Positions::entry) spec.rotation = random_rotation(random, shape.d_positional());
  const std::vector<int> slots = {0, 2};
  Resident model(spec, 3, kernels, random);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(model.store().open(), i);
  model.store().close(1);  // a gap: the step must leave it alone

  constexpr std::int64_t kFirst = 40, kSteps = 230, kSecond = 25, kMore = 20;
  constexpr std::int64_t kAll = kFirst + kSteps + kSecond + kMore;
  std::vector<std::vector<Path>> paths(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      paths[static_cast<std::size_t>(l)].push_back(path_make(model.layer(l), kFirst, kAll, random));
    }
  }
  model.chunk(paths, slots, kFirst - 15);
  model.chunk(paths, slots, 15);

  // Pages for every step to come, more than one each: 230 tokens are 76 groups.
  const std::vector<std::int64_t> ahead(slots.size(), kAll);
  model.store().reserve(slots, ahead);
  const std::vector<std::int64_t> lengths(3, kFirst);
  const cuda::DecodePlan plan = cuda::decode_plan(gpu(), shape, settings, cuda::GroupType::bf16,
                                                  lengths.data(), 3, kLongest, kernels);
  StepGraph graph(model, plan);
  for (std::int64_t i = 0; i < kSteps; ++i) graph.step(paths, slots);
  model.chunk(paths, slots, kSecond);
  for (std::int64_t i = 0; i < kMore; ++i) graph.step(paths, slots);

  for (int l = 0; l < kLayers; ++l) {
    std::vector<cuda::SessionView> views(3);
    model.transfer().download(model.view(l).cache.sessions, 3, views.data());
    EXPECT_EQ(views[0].length, kAll);
    EXPECT_EQ(views[1].length, -1) << "a closed slot was advanced";
    EXPECT_EQ(views[2].length, kAll);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Path& path = paths[static_cast<std::size_t>(l)][i];
      path.groups =
          HostGroups(cuda::cache_to_host(model.store(), l, slots[i], model.stream().queue()));
      check_path(spec, path, fmt::format("layer {} slot {}", l, slots[i]), tally);
    }
  }
}

TEST(CudaCalls, OneCapturedStepOfAllLayersIsReplayedForEveryToken) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 7e-3};
  std::uint64_t seed = 9000;
  for (const cuda::Kernels kernels : {cuda::Kernels::fast, cuda::Kernels::portable}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
          AttentionShape::mla(4, 16, 8, 40, 24), AttentionShape::gqa(6, 2, 64, 64)}) {
      expect_replays_right(shape, kernels, HeadReduce::mean, ++seed, tally);
      if (HasFailure()) return;
    }
  }
  expect_replays_right(AttentionShape::mla(4, 16, 8, 64, 24), cuda::Kernels::fast, HeadReduce::max,
                       ++seed, tally);
  finish(tally);
}

TEST(CudaCalls, OneCapturedStepFollowsEntryPositions) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.2e-2};
  std::uint64_t seed = 9050;
  for (const cuda::Kernels kernels : {cuda::Kernels::fast, cuda::Kernels::portable}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
          AttentionShape::mla(4, 16, 8, 40, 24), AttentionShape::gqa(6, 2, 64, 64)}) {
      expect_replays_right(shape, kernels, HeadReduce::mean, ++seed, tally, Positions::entry);
      if (HasFailure()) return;
    }
  }
  finish(tally);
}

TEST(CudaCalls, ReplaysEqualStepsOneByOneBitForBit) {
  LCA_NEEDS_GPU();
  Random random(9100);
  const LayerSpec spec = spec_of(AttentionShape::mla(3, 128, 64, 512, 128), small_settings());
  constexpr std::int64_t kPrompt = 50, kSteps = 60;
  Resident model(spec, 1, cuda::Kernels::fast, random);
  model.store().open();
  const std::vector<int> slots = {0};
  std::vector<std::vector<Path>> paths(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    paths[static_cast<std::size_t>(l)].push_back(
        path_make(model.layer(l), kPrompt, kPrompt + kSteps, random));
  }
  std::vector<std::vector<Path>> alone = paths;
  model.chunk(paths, slots, kPrompt);
  const std::vector<std::int64_t> lengths = {kPrompt};
  const std::vector<std::int64_t> ahead = {kPrompt + kSteps};
  model.store().reserve(slots, ahead);
  const cuda::DecodePlan plan =
      cuda::decode_plan(gpu(), spec.shape, spec.settings, cuda::GroupType::bf16, lengths.data(), 1,
                        kLongest, cuda::Kernels::fast);
  StepGraph graph(model, plan);
  for (std::int64_t i = 0; i < kSteps; ++i) graph.step(paths, slots);
  for (int l = 0; l < kLayers; ++l) {
    Path& path = alone[static_cast<std::size_t>(l)][0];
    cuda::Layer layer(spec, model.layer(l).weights(), 1, kLongest, {.poison = true});
    const cuda::HostRun prompt = path.run(0, kPrompt);
    layer.prefill({&prompt, 1});
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const cuda::HostRun run = path.run(0, 1);
      layer.decode({&run, 1});
    }
    EXPECT_EQ(std::memcmp(path.out.data(), paths[static_cast<std::size_t>(l)][0].out.data(),
                          path.out.size() * sizeof(float)),
              0)
        << "layer " << l;
  }
}

TEST(CudaStore, SlotsAndPagesComeBack) {
  LCA_NEEDS_GPU();
  const LayerSpec spec = spec_of(AttentionShape::gqa(2, 1, 8, 8), small_settings());
  const cuda::Stream stream(gpu());
  cuda::CacheStore store(gpu(), spec, cuda::GroupType::bf16,
                         {.layers = 3, .slots = 2, .longest = kLongest, .pages = 4}, stream);
  EXPECT_EQ(store.pages_free(), 4);
  EXPECT_EQ(store.open(), 0);
  EXPECT_EQ(store.open(), 1);
  EXPECT_THROW(store.open(), Error);
  const int slot = 1;
  const std::int64_t length = kLongest, longer = kLongest + 1;
  store.reserve({&slot, 1}, {&length, 1});
  EXPECT_EQ(store.pages_free(), 1) << "130 groups and one more are three pages";
  store.reserve({&slot, 1}, {&length, 1});
  EXPECT_EQ(store.pages_free(), 1);
  EXPECT_THROW(store.reserve({&slot, 1}, {&longer, 1}), Error);
  const int both[] = {0, 1};
  const std::int64_t lengths[] = {kLongest, kLongest};
  EXPECT_THROW(store.reserve(both, lengths), Error) << "three more pages where one is free";
  EXPECT_EQ(store.pages_free(), 1);
  store.close(1);
  EXPECT_EQ(store.pages_free(), 4);
  EXPECT_THROW(store.length(1), Error);
  EXPECT_EQ(store.open(), 1);
  EXPECT_EQ(store.length(1), 0);
}

TEST(CudaStore, CountsItsBytesBeforeItAllocatesThem) {
  LCA_NEEDS_GPU();
  const LayerSpec spec = spec_of(AttentionShape::mla(16, 128, 64, 512, 128), Settings{});
  const auto bytes = [&](int layers, int slots, std::int64_t longest, cuda::GroupType type) {
    return cuda::CacheStore::bytes(spec, type,
                                   {.layers = layers, .slots = slots, .longest = longest});
  };
  const cuda::StoreBytes one = bytes(1, 1, 131072, cuda::GroupType::bf16);
  const cuda::StoreBytes many = bytes(27, 4, 131072, cuda::GroupType::bf16);
  EXPECT_EQ(many.groups, 27 * 4 * one.groups);
  EXPECT_LT(bytes(1, 1, 131072, cuda::GroupType::fp8).groups, one.groups * 6 / 10);
  std::size_t before = 0, after = 0, all = 0;
  const cuda::Stream stream(gpu());
  cuda::check(cudaMemGetInfo(&before, &all), "memory");
  const cuda::CacheStore store(gpu(), spec, cuda::GroupType::bf16,
                               {.layers = 27, .slots = 4, .longest = 131072}, stream);
  cuda::check(cudaMemGetInfo(&after, &all), "memory");
  EXPECT_NEAR(static_cast<double>(before - after), static_cast<double>(many.total()), 4 << 20);
  try {
    bytes(1, 1, std::int64_t{1} << 33, cuda::GroupType::bf16);
    ADD_FAILURE() << "sequences of any length";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
  }
}

}  // namespace
}  // namespace lca::test
