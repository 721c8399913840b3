#include "attention/cuda/layer.h"

#include <algorithm>

#include "attention/cuda/cache/exchange.h"
#include "attention/cuda/calls.h"
#include "core/error.h"

namespace lca::cuda {

struct Layer::State {
  State(const LayerSpec& spec, const LayerWeights& weights, int sequences, std::int64_t longest,
        const LayerOptions& options)
      : device(Device::at(options.device)),
        poison(options.poison),
        stream(device),
        queue(stream.queue()),
        store(std::make_shared<CacheStore>(
            device, std::span(&spec, 1), static_cast<GroupType>(options.groups),
            StoreLimits{.sequences = sequences, .longest = longest, .poison = poison}, queue)),
        products(device),
        product_scratch(Products::kScratchBytes),
        transfer(queue) {
    layer.spec = spec;
    layer.kernels = options.portable ? Kernels::portable : Kernels::fast;
    layer.cache = store->layer(0);
    if (layer.mla()) {
      layer.w_uk = weight(weights.w_uk, w_uk);
      layer.w_uv = weight(weights.w_uv, w_uv);
    }
    for (int i = 0; i < sequences; ++i) {
      this->sequences.push_back(std::make_unique<CacheSequence>(store));
    }
    stream.wait();
  }

  const bf16* weight(const ConstTensor& from, Buffer& to) {
    to = Buffer(static_cast<std::size_t>(from.shape[0] * from.shape[1] * from.shape[2]) * 2);
    transfer.upload(from, to.as<bf16>());
    return to.as<bf16>();
  }

  /// At least so many bytes; full of NaN where asked for.
  void* prepare(Buffer& buffer, std::size_t bytes, const std::string& what) {
    if (bytes > buffer.bytes()) {
      memory_require(static_cast<double>(bytes) - static_cast<double>(buffer.bytes()), what);
    }
    buffer.require(bytes);
    if (poison) transfer.fill(buffer.as<void>(), buffer.bytes(), 0xff);
    return buffer.as<void>();
  }

  ProductSpace product_space() { return {&products, product_scratch.as<void>()}; }

  void run_check(const HostRun& run) const {
    const AttentionShape& shape = layer.spec.shape;
    const std::int64_t tokens = run.entries.semantic.shape[0];
    const auto is = [&](const ConstTensor& tensor, std::int64_t heads, std::int64_t width) {
      return !tensor.empty() && tensor.shape == std::array<std::int64_t, 3>{tokens, heads, width} &&
             tensor.stride[2] == 1;
    };
    sequence_at(run.sequence);
    if (!is(run.entries.semantic, shape.kv_heads, shape.d_semantic()) ||
        !is(run.entries.positional, shape.kv_heads, shape.d_positional()) ||
        !is(run.queries.rope, shape.heads, shape.d_rope) ||
        (layer.mla() && !is(run.queries.nope, shape.heads, shape.d_nope)) || run.out == nullptr) {
      fail_input("the tensors of sequence {} have not the layer's shape", run.sequence);
    }
  }

  void prefill(std::span<const HostRun> runs);
  void decode(std::span<const HostRun> runs);
  CacheSequence& sequence_at(int number) const {
    if (number < 0 || static_cast<std::size_t>(number) >= sequences.size()) {
      fail_input("there is no sequence {}; the layer has {}", number, sequences.size());
    }
    return *sequences[static_cast<std::size_t>(number)];
  }
  CacheSequence& sequence(const HostRun& run) const { return sequence_at(run.sequence); }
  /// Memory for the runs' tokens. Throws; then all sequences are as before.
  void reserve(std::span<const HostRun> runs);
  void upload(const HostRun& run, bf16* nope, bf16* rope, bf16* semantic, bf16* positional);

  const Device& device;
  const bool poison;
  Stream stream;
  Queue queue;
  std::shared_ptr<CacheStore> store;
  std::vector<std::unique_ptr<CacheSequence>> sequences;
  Products products;
  Buffer product_scratch;
  Transfer transfer;
  Buffer w_uk, w_uv;
  LayerView layer;
  Buffer chunk_memory, step_memory, step_rows, step_views;
  DecodePlan plan;
  StepSpace step;
  bool planned = false;
};

void Layer::State::reserve(std::span<const HostRun> runs) {
  try {
    for (const HostRun& run : runs) sequence(run).prepare(run.entries.semantic.shape[0]);
  } catch (...) {
    for (const HostRun& run : runs) sequence(run).rollback();
    throw;
  }
}

void Layer::State::upload(const HostRun& run, bf16* nope, bf16* rope, bf16* semantic,
                          bf16* positional) {
  if (layer.mla()) transfer.upload(run.queries.nope, nope);
  transfer.upload(run.queries.rope, rope);
  transfer.upload(run.entries.semantic, semantic);
  transfer.upload(run.entries.positional, positional);
}

void Layer::State::prefill(std::span<const HostRun> runs) {
  if (runs.empty()) return;
  std::vector<ChunkRequest> requests;
  for (const HostRun& run : runs) {
    run_check(run);
    for (const HostRun& other : runs) {
      if (&other != &run && other.sequence == run.sequence) {
        fail_input("sequence {} is twice in one call", run.sequence);
      }
    }
  }
  reserve(runs);
  for (const HostRun& run : runs) {
    requests.push_back(sequence(run).chunk(0, run.entries.semantic.shape[0]));
  }
  const ChunkPlan chunk = chunk_plan(*store, 0, requests);
  const std::size_t bytes = chunk_space_bytes(layer.spec, chunk.rows);
  const ChunkSpace space = chunk_space(
      layer.spec, chunk.rows,
      prepare(chunk_memory, bytes, fmt::format("a prompt of {} tokens at once", chunk.rows.query)));
  const AttentionShape& shape = layer.spec.shape;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ChunkPiece& piece = chunk.pieces[i];
    upload(runs[i], space.nope + piece.query_row() * shape.heads * shape.d_nope,
           space.rope + piece.query_row() * shape.heads * shape.d_rope,
           space.exact_semantic + piece.exact_row() * layer.semantic_values(),
           space.exact_positional + piece.exact_row() * layer.positional_values());
  }
  chunk_run(layer, chunk, space, product_space(), queue);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ChunkPiece& piece = chunk.pieces[i];
    sequence(runs[i]).commit();
    transfer.download(space.out + piece.query_row() * shape.heads * shape.d_value,
                      piece.tokens() * shape.heads * shape.d_value, runs[i].out);
    if (runs[i].lse == nullptr) continue;
    transfer.download(space.lse + piece.query_row() * shape.heads, piece.tokens() * shape.heads,
                      runs[i].lse);
  }
  planned = false;  // made for shorter sequences
}

void Layer::State::decode(std::span<const HostRun> runs) {
  if (runs.size() != sequences.size()) {
    fail_input("a decode step takes one token of every sequence; it got {} for {}", runs.size(),
               sequences.size());
  }
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    run_check(runs[i]);
    if (static_cast<std::size_t>(runs[i].sequence) != i) {
      fail_input("a step's runs are not in order");
    }
    if (runs[i].entries.semantic.shape[0] != 1) fail_input("a step's run has more than one token");
    lengths.push_back(sequence(runs[i]).length());
  }
  reserve(runs);
  if (!planned) {
    plan = decode_plan(device, layer.spec.shape, layer.spec.settings, layer.cache.pool.type,
                       lengths.data(), static_cast<int>(runs.size()), store->limits().longest,
                       layer.kernels);
    const std::size_t bytes = step_space_bytes(layer.spec, plan, true);
    step = step_space(layer.spec, plan, true, prepare(step_memory, bytes, "a decode step"));
    transfer.fill(step.kernel_space, plan.workspace_bytes, 0);
    planned = true;
  }
  if (poison) {
    transfer.fill(step_memory.as<char>() + plan.workspace_bytes,
                  step_memory.bytes() - plan.workspace_bytes, 0xff);
  }
  const AttentionShape& shape = layer.spec.shape;
  for (const HostRun& run : runs) {
    upload(run, step.nope + run.sequence * shape.heads * shape.d_nope,
           step.rope + run.sequence * shape.heads * shape.d_rope,
           step.semantic + run.sequence * layer.semantic_values(),
           step.positional + run.sequence * layer.positional_values());
  }
  std::vector<StepRow> rows;
  for (const HostRun& run : runs) rows.push_back(sequence(run).step_row());
  step_rows.require(rows.size() * sizeof(StepRow));
  step_views.require(rows.size() * sizeof(SessionView));
  transfer.upload(std::span<const StepRow>(rows), step_rows.as<StepRow>());
  step.sessions = step_views.as<SessionView>();
  store->views_gather(step_rows.as<StepRow>(), static_cast<int>(rows.size()), step.sessions, queue);
  step_run(layer, plan, step, product_space(), queue);
  for (const HostRun& run : runs) {
    sequence(run).commit();
    const std::int64_t values = shape.heads * shape.d_value;
    if (step.out_float != nullptr) {
      transfer.download(step.out_float + run.sequence * values, values, run.out);
    } else {
      transfer.download(step.out + run.sequence * values, values, run.out);
    }
    if (run.lse == nullptr) continue;
    transfer.download(step.lse + run.sequence * shape.heads, shape.heads, run.lse);
  }
}

Layer::Layer(const LayerSpec& spec, const LayerWeights& weights, int sequences,
             std::int64_t longest, const LayerOptions& options) {
  const DeviceScope scope(Device::at(options.device));
  state_ = std::make_unique<State>(spec, weights, sequences, longest, options);
}

Layer::~Layer() = default;

void Layer::prefill(std::span<const HostRun> runs) {
  const DeviceScope scope(state_->device);
  state_->prefill(runs);
}

void Layer::decode(std::span<const HostRun> runs) {
  const DeviceScope scope(state_->device);
  state_->decode(runs);
}

std::int64_t Layer::length(int sequence) const { return state_->sequence_at(sequence).length(); }

Cache Layer::to_host(int sequence) const {
  const DeviceScope scope(state_->device);
  const CacheSequence& from = state_->sequence_at(sequence);
  return cache_to_host(*state_->store, 0, from.held(), state_->queue);
}

void Layer::from_host(int sequence, const Cache& cache) {
  const DeviceScope scope(state_->device);
  cache_from_host_check(cache, state_->layer.spec);
  CacheSequence& to = state_->sequence_at(sequence);
  to.replace(cache.length(), host_queries_first({&cache, 1}));
  cache_from_host(cache, state_->layer, to.held(), HostPart::all, state_->product_space(),
                  state_->queue);
  state_->planned = false;
}

}  // namespace lca::cuda
