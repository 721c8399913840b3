#pragma once
/// A model of attention layers alone on the GPU, run as a backend runs one: sequences that join and
/// leave, chunks, captured decode steps, prompts layer by layer. Every layer has its own settings,
/// weights and tokens, so that every layer of every sequence can be checked by itself.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "attention/settings_kind.h"
#include "cuda/layer_path.h"
#include "models/cuda/device_caches.h"
#include "ops/cuda/rows.h"

namespace lca::test {

/// One sequence: its caches, and a path for each layer.
struct Talk {
  std::unique_ptr<cuda::DeviceCaches> caches;
  std::vector<Path> paths;
  std::int64_t position() const { return paths.front().position; }
  /// The next run starts at `position` again.
  void back_to(std::int64_t position) {
    for (Path& path : paths) path.position = position;
  }
};

class Resident {
 public:
  Resident(std::vector<LayerSpec> specs, Random& random,
           const cuda::StoreLimits& limits = {.sequences = 64, .longest = 400, .poison = true},
           cuda::Kernels kernels = cuda::Kernels::fast,
           cuda::GroupType type = cuda::GroupType::bf16)
      : specs_(std::move(specs)) {
    std::vector<cuda::DeviceStores::Weights> weights;
    for (const LayerSpec& spec : specs_) {
      layers_.push_back(random_layer(spec, random));
      weights.emplace_back();
      if (spec.shape.form == Form::mla) {
        weights.back() = {weights_up(layers_.back().weights().w_uk),
                          weights_up(layers_.back().weights().w_uv)};
      }
    }
    stores_ = std::make_unique<cuda::DeviceStores>(stream_.queue(), weights, type, limits,
                                                   products_.space(), kernels);
    kernels_ = kernels;
    stream_.wait();
  }
  ~Resident() {
    for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph.exec);
  }

  /// Steps from now on read up-projections as thin products do.
  void turn() {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const AttentionShape& shape = specs_[i].shape;
      const bf16* const w_uk = weights_up(layers_[i].weights().w_uk);
      weights_.emplace_back(static_cast<std::size_t>(shape.heads * shape.d_nope * shape.d_latent) *
                            sizeof(bf16));
      cuda::matrices_turn(w_uk, shape.heads, shape.d_nope, shape.d_latent,
                          weights_.back().as<bf16>(), stream_.queue());
      turned_.push_back(weights_.back().as<bf16>());
    }
    stream_.wait();
  }

  std::span<const LayerSpec> specs() const { return specs_; }
  const Layer& layer(std::size_t i) const { return layers_[i]; }
  cuda::DeviceStores& stores() { return *stores_; }
  const cuda::Stream& stream() const { return stream_; }
  cuda::Transfer& transfer() { return transfer_; }
  std::size_t graphs() const { return graphs_.size(); }

  std::unique_ptr<cuda::DeviceCaches> open() {
    return std::make_unique<cuda::DeviceCaches>(*stores_, specs_);
  }
  Talk talk(std::int64_t prompt, std::int64_t count, Random& random) {
    Talk talk{open(), {}};
    for (const Layer& layer : layers_) {
      talk.paths.push_back(path_make(layer, prompt, count, random));
    }
    return talk;
  }

  /// The next counts[i] tokens of every sequence, in one chunk.
  void chunk(std::span<Talk* const> talks, std::span<const std::int64_t> counts,
             bool commit = true) {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < talks.size(); ++i) {
      talks[i]->caches->step_begin(false);
      talks[i]->caches->sequence().prepare(counts[i]);
      tokens += counts[i];
    }
    const cuda::CacheStore& store = talks[0]->caches->store();
    for (int l = 0; l < store.layers(); ++l) {
      std::vector<cuda::ChunkRequest> requests;
      for (std::size_t i = 0; i < talks.size(); ++i) {
        requests.push_back(talks[i]->caches->sequence().chunk(0, counts[i]));
      }
      layer_chunk(store, l, talks, requests);
    }
    for (std::size_t i = 0; i < talks.size(); ++i) finish(*talks[i], counts[i], commit);
  }
  void chunk(Talk& talk, std::int64_t count, bool commit = true) {
    Talk* const one = &talk;
    chunk({&one, 1}, {&count, 1}, commit);
  }

  /// The next token of every sequence by a captured step; one graph serves all batches of a size,
  /// rounded up, in any order.
  void decode(std::span<Talk* const> talks, bool commit = true, bool captured = true) {
    std::vector<cuda::StepRow> rows;
    for (Talk* talk : talks) {
      talk->caches->step_begin(false);
      talk->caches->sequence().prepare(1);
      rows.push_back(talk->caches->sequence().step_row());
    }
    cuda::CacheStore& store = talks[0]->caches->store();
    const int batch = static_cast<int>(talks.size() + 3) / 4 * 4;
    rows.resize(static_cast<std::size_t>(batch));
    Graph& graph = graph_for(store, batch);
    transfer_.upload(std::span<const cuda::StepRow>(rows), graph.table.as<cuda::StepRow>());
    std::vector<std::vector<cuda::HostRun>> runs(specs_.size());
    for (std::size_t l = 0; l < specs_.size(); ++l) {
      const cuda::StepSpace& space = graph.spaces[l];
      const AttentionShape& shape = specs_[l].shape;
      transfer_.fill(space.lse, static_cast<std::size_t>(batch * shape.heads) * 4, 0xff);
      for (std::size_t i = 0; i < talks.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        const cuda::HostRun run = talks[i]->paths[l].run(0, 1);
        upload(run, l, space.nope == nullptr ? nullptr : space.nope + row * nope_values(l),
               space.rope + row * shape.heads * shape.d_rope,
               space.semantic + row * semantic_values(l),
               space.positional + row * positional_values(l));
        runs[l].push_back(run);
      }
    }
    if (captured) {
      cuda::check(cudaGraphLaunch(graph.exec, stream_), "a graph");
    } else {
      enqueue(store, graph);
    }
    for (std::size_t l = 0; l < specs_.size(); ++l) {
      const cuda::StepSpace& space = graph.spaces[l];
      const AttentionShape& shape = specs_[l].shape;
      const std::int64_t values = shape.heads * shape.d_value;
      for (std::size_t i = 0; i < talks.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        if (space.out_float != nullptr) {
          transfer_.download(space.out_float + row * values, values, runs[l][i].out);
        } else {
          transfer_.download(space.out + row * values, values, runs[l][i].out);
        }
        transfer_.download(space.lse + row * shape.heads, shape.heads, runs[l][i].lse);
      }
    }
    for (Talk* talk : talks) finish(*talk, 1, commit);
  }
  void decode(Talk& talk, std::int64_t steps = 1, bool commit = true) {
    Talk* const one = &talk;
    for (std::int64_t i = 0; i < steps; ++i) decode({&one, 1}, commit);
  }

  /// The next tokens as one prompt in chunks, layer by layer, as decoder_prompt does.
  void prompt(Talk& talk, std::int64_t tokens, std::int64_t chunk, bool commit = true) {
    talk.caches->step_begin(true);
    cuda::CacheSequence& sequence = talk.caches->sequence();
    sequence.prepare(tokens);
    const cuda::CacheStore& store = talk.caches->store();
    for (int l = 0; l < store.layers(); ++l) {
      if (summary_waits(store.spec(l).settings)) {
        layer_prompt(store, l, talk, tokens, chunk);
        continue;
      }
      for (std::int64_t first = 0; first < tokens; first += chunk) {
        Talk* const one = &talk;
        const cuda::ChunkRequest request = sequence.chunk(first, std::min(chunk, tokens - first));
        layer_chunk(store, l, {&one, 1}, {&request, 1});
      }
    }
    finish(talk, tokens, commit);
  }

  /// Compares all that a talk has fed with the reference.
  void check(Talk& talk, const std::string& what, Tally& tally) {
    std::vector<Cache> held = talk.caches->to_host();
    for (std::size_t l = 0; l < specs_.size(); ++l) {
      talk.paths[l].groups = HostGroups(held[l]);
      check_path(specs_[l], talk.paths[l], fmt::format("{} layer {}", what, l), tally);
    }
  }

 private:
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    cuda::Buffer table, views;
    std::vector<cuda::Buffer> memory;
    std::vector<cuda::StepSpace> spaces;
    std::vector<cuda::DecodePlan> plans;
    int batch = 0;
  };

  std::int64_t nope_values(std::size_t l) const {
    return specs_[l].shape.heads * specs_[l].shape.d_nope;
  }
  std::int64_t semantic_values(std::size_t l) const {
    return specs_[l].shape.kv_heads * specs_[l].shape.d_semantic();
  }
  std::int64_t positional_values(std::size_t l) const {
    return specs_[l].shape.kv_heads * specs_[l].shape.d_positional();
  }

  const bf16* weights_up(const ConstTensor& from) {
    weights_.emplace_back(static_cast<std::size_t>(from.shape[0] * from.shape[1] * from.shape[2]) *
                          2);
    transfer_.upload(from, weights_.back().as<bf16>());
    return weights_.back().as<bf16>();
  }

  static void finish(Talk& talk, std::int64_t count, bool commit) {
    if (commit) {
      talk.caches->step_commit();
    } else {
      talk.caches->step_rollback();
      talk.back_to(talk.position() - count);
    }
  }

  void upload(const cuda::HostRun& run, std::size_t l, bf16* nope, bf16* rope, bf16* semantic,
              bf16* positional) {
    if (specs_[l].shape.form == Form::mla) transfer_.upload(run.queries.nope, nope);
    transfer_.upload(run.queries.rope, rope);
    if (semantic == nullptr) return;
    transfer_.upload(run.entries.semantic, semantic);
    transfer_.upload(run.entries.positional, positional);
  }

  cuda::ChunkSpace space_for(std::size_t l, const cuda::ChunkRows& rows) {
    const std::size_t bytes = cuda::chunk_space_bytes(specs_[l], rows);
    chunk_memory_.require(bytes);
    transfer_.fill(chunk_memory_.as<void>(), bytes, 0xff);
    return cuda::chunk_space(specs_[l], rows, chunk_memory_.as<void>());
  }

  void results_down(const cuda::ChunkSpace& space, std::size_t l, const cuda::ChunkPiece& piece,
                    const cuda::HostRun& run) {
    const AttentionShape& shape = specs_[l].shape;
    transfer_.download(space.out + piece.query_row() * shape.heads * shape.d_value,
                       piece.tokens() * shape.heads * shape.d_value, run.out);
    transfer_.download(space.lse + piece.query_row() * shape.heads, piece.tokens() * shape.heads,
                       run.lse);
  }

  void layer_chunk(const cuda::CacheStore& store, int index, std::span<Talk* const> talks,
                   std::span<const cuda::ChunkRequest> requests) {
    const auto l = static_cast<std::size_t>(index);
    const AttentionShape& shape = specs_[l].shape;
    const cuda::ChunkPlan plan = cuda::chunk_plan(store, index, requests);
    std::int64_t tokens = 0;
    for (const cuda::ChunkRequest& request : requests) tokens += request.tokens;
    // Planned from limits, as a model does it, and no larger than that.
    const cuda::ChunkRows most =
        cuda::chunk_rows_most(specs_[l], store.limits().longest, tokens, plan.rows.runs);
    EXPECT_LE(plan.rows.query, most.query);
    EXPECT_LE(plan.rows.exact, most.exact);
    EXPECT_LE(plan.rows.group, most.group);
    EXPECT_LE(plan.rows.condensed, most.condensed);
    const cuda::ChunkSpace space = space_for(l, most);
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < talks.size(); ++i) {
      const cuda::ChunkPiece& piece = plan.pieces[i];
      runs.push_back(talks[i]->paths[l].run(0, requests[i].tokens));
      upload(runs.back(), l,
             space.nope == nullptr ? nullptr : space.nope + piece.query_row() * nope_values(l),
             space.rope + piece.query_row() * shape.heads * shape.d_rope,
             space.exact_semantic + piece.exact_row() * semantic_values(l),
             space.exact_positional + piece.exact_row() * positional_values(l));
    }
    cuda::chunk_run(stores_->view(store, index), plan, space, products_.space(), stream_.queue());
    for (std::size_t i = 0; i < talks.size(); ++i) results_down(space, l, plan.pieces[i], runs[i]);
  }

  void layer_prompt(const cuda::CacheStore& store, int index, Talk& talk, std::int64_t tokens,
                    std::int64_t chunk) {
    const auto l = static_cast<std::size_t>(index);
    const AttentionShape& shape = specs_[l].shape;
    const cuda::LayerView view = stores_->view(store, index);
    const cuda::PromptPlan plan =
        cuda::prompt_plan(store.spec(index), talk.caches->sequence().chunk(0, tokens));
    cuda::Buffer memory(cuda::prompt_rows_bytes(specs_[l], plan));
    transfer_.fill(memory.as<void>(), memory.bytes(), 0xff);
    const cuda::PromptRows rows = cuda::prompt_rows(specs_[l], plan, memory.as<void>());
    cuda::prompt_begin(view, plan, rows, stream_.queue());
    Path& path = talk.paths[l];
    const std::int64_t start = path.position;
    for (std::int64_t first = 0; first < tokens; first += chunk) {
      const std::int64_t count = std::min(chunk, tokens - first);
      const cuda::HostRun run = path.run(0, count);
      const std::int64_t row = plan.row(plan.before + first);
      transfer_.upload(run.entries.semantic, rows.semantic + row * semantic_values(l));
      transfer_.upload(run.entries.positional, rows.positional + row * positional_values(l));
      // The queries that score, if some are in this chunk.
      const std::int64_t from = std::max(plan.tail_first(), plan.before + first);
      const std::int64_t some = plan.before + first + count - from;
      if (some <= 0) continue;
      const std::int64_t tail = from - plan.tail_first();
      if (view.mla()) {
        transfer_.upload(run.queries.nope.slice(count - some, some),
                         rows.tail_nope + tail * nope_values(l));
      }
      transfer_.upload(run.queries.rope.slice(count - some, some),
                       rows.tail_rope + tail * shape.heads * shape.d_rope);
    }
    path.position = start;
    for (std::int64_t first = 0; first < tokens; first += chunk) {
      const std::int64_t count = std::min(chunk, tokens - first);
      const cuda::ChunkPlan part = cuda::prompt_chunk(store, index, plan, first, count);
      const cuda::ChunkSpace space = space_for(l, part.rows);
      if (first == 0) {
        cuda::prompt_condense(view, plan, rows, space, products_.space(), stream_.queue());
      }
      const cuda::ChunkPiece& piece = part.pieces[0];
      const cuda::HostRun run = path.run(0, count);
      upload(run, l,
             space.nope == nullptr ? nullptr : space.nope + piece.query_row() * nope_values(l),
             space.rope + piece.query_row() * shape.heads * shape.d_rope, nullptr, nullptr);
      cuda::prompt_attend(view, plan, rows, part, space, products_.space(), stream_.queue());
      results_down(space, l, piece, run);
      if (first + count == tokens) {
        cuda::prompt_end(view, plan, rows, space, products_.space(), stream_.queue());
        stream_.wait();  // before `memory` goes
      }
    }
  }

  void enqueue(const cuda::CacheStore& store, const Graph& graph) {
    store.views_gather(graph.table.as<cuda::StepRow>(), graph.batch,
                       graph.views.as<cuda::SessionView>(), stream_.queue());
    for (std::size_t l = 0; l < specs_.size(); ++l) {
      cuda::LayerView view = stores_->view(store, static_cast<int>(l));
      if (!turned_.empty()) view.w_uk_turned = turned_[l];
      cuda::step_run(view, graph.plans[l], graph.spaces[l], products_.space(), stream_.queue());
    }
  }

  Graph& graph_for(cuda::CacheStore& store, int batch) {
    Graph& graph = graphs_[{store.id(), batch}];
    if (graph.exec != nullptr) return graph;
    graph.table = cuda::Buffer(static_cast<std::size_t>(batch) * sizeof(cuda::StepRow));
    graph.views =
        cuda::Buffer(specs_.size() * static_cast<std::size_t>(batch) * sizeof(cuda::SessionView));
    graph.batch = batch;
    std::vector<cuda::DecodePlan>& plans = graph.plans;
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch),
                                            store.limits().longest / 2);
    for (std::size_t l = 0; l < specs_.size(); ++l) {
      plans.push_back(cuda::decode_plan(gpu(), specs_[l].shape, specs_[l].settings, store.type(),
                                        lengths.data(), batch, store.limits().longest, kernels_));
      const std::size_t bytes = cuda::step_space_bytes(specs_[l], plans[l], true);
      graph.memory.emplace_back(bytes);
      transfer_.fill(graph.memory.back().as<void>(), bytes, 0xff);
      graph.spaces.push_back(
          cuda::step_space(specs_[l], plans[l], true, graph.memory.back().as<void>()));
      graph.spaces[l].sessions =
          graph.views.as<cuda::SessionView>() + static_cast<std::int64_t>(l) * batch;
      transfer_.fill(graph.spaces[l].kernel_space, plans[l].workspace_bytes, 0);
    }
    stream_.wait();
    cudaGraph_t recorded = nullptr;
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    enqueue(store, graph);
    cuda::check(cudaStreamEndCapture(stream_, &recorded), "capture");
    cuda::check(cudaGraphInstantiate(&graph.exec, recorded, 0), "a graph");
    cudaGraphDestroy(recorded);
    return graph;
  }

  std::vector<LayerSpec> specs_;
  cuda::Stream stream_{gpu()};
  cuda::Transfer transfer_{stream_};
  TestProducts products_;
  std::vector<Layer> layers_;
  std::vector<const bf16*> turned_;
  std::vector<cuda::Buffer> weights_;
  cuda::Kernels kernels_ = cuda::Kernels::fast;
  cuda::Buffer chunk_memory_;
  std::unique_ptr<cuda::DeviceStores> stores_;
  std::map<std::pair<std::uint64_t, int>, Graph> graphs_;
};

}  // namespace lca::test
