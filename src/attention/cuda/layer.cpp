// The device caches of a layer, decoding, and what the cache has condensed. Prompts are in
// layer_prefill.cpp.

#include "attention/cuda/layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cuda/layer_state.h"
#include "attention/cuda/product.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

std::int64_t longest_checked(std::int64_t longest) {
  if (longest < 1 || longest > std::numeric_limits<std::int32_t>::max() - 64) {
    fail_input("a sequence of {} tokens is too long for the GPU's cache, which counts in 32 bits",
               longest);
  }
  return longest;
}

}  // namespace

std::string unavailable() { return device_missing(); }

Layer::State::State(const LayerSpec& spec, const LayerWeights& weights, int sequences,
                    std::int64_t longest, const LayerOptions& options)
    : spec_(spec),
      shape_(spec.shape),
      layout_(spec.settings),
      options_(options),
      kernels_(options.portable ? Kernels::portable : Kernels::fast),
      scale_(static_cast<float>(spec.softmax_scale())),
      longest_(longest_checked(longest)),
      ring_(ring_rows(spec.settings, longest)),
      recent_(condensing() ? std::min(spec.settings.summary_queries - 1, longest) : 0),
      summary_width_(shape_.kv_heads * summary_width(shape_, spec.settings.head_reduce)),
      transfer_(stream_, options.poison) {
  spec_.validate();
  const std::int64_t pages_each = pages_needed(spec_.settings, longest_);
  memory_require(bytes_planned(sequences, pages_each),
                 fmt::format("a cache of {} sequences of {} tokens", sequences, longest_));
  if (is_mla()) {
    transfer_.upload(weights.w_uk,
                     transfer_.room<bf16>(w_uk_, shape_.heads * shape_.d_nope * shape_.d_latent));
    transfer_.upload(weights.w_uv,
                     transfer_.room<bf16>(w_uv_, shape_.heads * shape_.d_value * shape_.d_latent));
  }
  pool_make(sequences, pages_each);
  sequences_make(sequences, pages_each);
  stream_.wait();
}

double Layer::State::bytes_planned(int sequences, std::int64_t pages_each) const {
  const auto of = [](std::int64_t values, double bytes) {
    return static_cast<double>(values) * bytes;
  };
  const std::int64_t exact = exact_rows(spec_.settings, longest_);
  const double one = of(exact * shape_.entry_values(), 2) +
                     of(pages_each * kPageRows * shape_.entry_values(), 2) +
                     of(std::min(layout_.summary_queries, longest_) * summary_width_, 4) +
                     of(recent_ * shape_.heads * shape_.d_score(), 2);
  return one * sequences + of(shape_.heads * (shape_.d_nope + shape_.d_value) * shape_.d_latent, 2);
}

void Layer::State::pool_make(int sequences, std::int64_t pages_each) {
  const std::int64_t pages = pages_each * sequences;
  if (pages > std::numeric_limits<std::int32_t>::max()) {
    fail_input("{} pages of representatives are too many; use a smaller batch", pages);
  }
  pool_ = pool_memory_.make(shape_, static_cast<GroupType>(options_.groups), spec_.settings.mass,
                            pages * kPageRows, [&](Buffer& buffer, std::int64_t bytes) {
                              return static_cast<void*>(transfer_.room<char>(buffer, bytes));
                            });
  pages_left_ = static_cast<std::int32_t>(pages);
}

void Layer::State::sequences_make(int sequences, std::int64_t pages_each) {
  const std::int64_t exact = exact_rows(spec_.settings, longest_);
  const std::int64_t query_values = recent_ * shape_.heads;
  sequences_.resize(static_cast<std::size_t>(sequences));
  rings_.rows = sequences * exact;
  rings_.semantic = transfer_.room<bf16>(ring_semantic_, rings_.rows * semantic_values());
  rings_.positional = transfer_.room<bf16>(ring_positional_, rings_.rows * positional_values());
  std::vector<SessionView> views;
  for (Sequence& sequence : sequences_) {
    const auto first_row = static_cast<std::int64_t>(views.size()) * exact;
    sequence.semantic = rings_.semantic + first_row * semantic_values();
    sequence.positional = rings_.positional + first_row * positional_values();
    SessionView view;
    view.semantic = sequence.semantic;
    view.positional = sequence.positional;
    view.pages = static_cast<const std::int32_t*>(transfer_.room_of_zeros(
        sequence.pages, static_cast<std::size_t>(pages_each) * sizeof(std::int32_t)));
    if (condensing()) {
      const std::int64_t rows = std::min(layout_.summary_queries, longest_);
      view.summary = transfer_.room<float>(sequence.summary, rows * summary_width_);
      transfer_.room<bf16>(sequence.recent_nope, query_values * shape_.d_nope);
      transfer_.room<bf16>(sequence.recent_rope, query_values * shape_.d_rope);
    }
    view.ring = static_cast<int>(ring_);
    views.push_back(view);
  }
  views_.require(views.size() * sizeof(SessionView));
  check(cudaMemcpyAsync(views_.as<void>(), views.data(), views.size() * sizeof(SessionView),
                        cudaMemcpyHostToDevice, stream_),
        "copying to the GPU");
}

void Layer::State::pages_require(std::span<Sequence* const> list,
                                 std::span<const std::int64_t> lengths) {
  // Round by round and from the highest page down: no sequence has neighbouring pages in order.
  std::vector<bool> changed(list.size());
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::int64_t rows = layout_.groups(lengths[i]) + 1;
      const auto held = static_cast<std::int64_t>(list[i]->page_list.size());
      if (held * kPageRows >= rows) continue;
      list[i]->page_list.push_back(--pages_left_);
      changed[i] = more = true;
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (changed[i]) transfer_.upload(list[i]->page_list, list[i]->pages.as<std::int32_t>());
  }
}

void Layer::State::check_run(const HostRun& run, std::int64_t longest_run) const {
  if (run.sequence < 0 || static_cast<std::size_t>(run.sequence) >= sequences_.size()) {
    fail_input("there is no sequence {}; the layer has {}", run.sequence, sequences_.size());
  }
  const std::int64_t length = sequences_[static_cast<std::size_t>(run.sequence)].length;
  const std::int64_t tokens = run.entries.semantic.shape[0];
  const auto is = [&](const ConstTensor& tensor, std::int64_t heads, std::int64_t width) {
    return !tensor.empty() && tensor.shape == std::array<std::int64_t, 3>{tokens, heads, width} &&
           tensor.stride[2] == 1;
  };
  if (tokens < 1 || tokens > longest_run || tokens > longest_ - length) {
    fail_input("a run of {} tokens after {} does not fit a cache of {}", tokens, length, longest_);
  }
  if (!is(run.entries.semantic, shape_.kv_heads, shape_.d_semantic()) ||
      !is(run.entries.positional, shape_.kv_heads, shape_.d_positional()) ||
      !is(run.queries.rope, shape_.heads, shape_.d_rope) ||
      (is_mla() && !is(run.queries.nope, shape_.heads, shape_.d_nope)) || run.out == nullptr) {
    fail_input("the tensors of sequence {} have not the layer's shape", run.sequence);
  }
}

void Layer::State::decode(std::span<const HostRun> runs) {
  if (runs.size() != sequences_.size()) {
    fail_input("a decode step takes one token of every sequence; it got {} for {}", runs.size(),
               sequences_.size());
  }
  const auto batch = static_cast<std::int64_t>(runs.size());
  const std::int64_t heads = shape_.heads;
  std::vector<Sequence*> list;
  std::vector<std::int64_t> after;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    check_run(runs[i], 1);
    if (static_cast<std::size_t>(runs[i].sequence) != i)
      fail_input("a step's runs are not in order");
    list.push_back(&sequences_[i]);
    after.push_back(sequences_[i].length + 1);
  }
  pages_require(list, after);

  const std::int64_t d_query = is_mla() ? shape_.d_latent + shape_.d_rope : shape_.d_rope;
  bf16* nope = transfer_.room<bf16>(nope_, batch * heads * shape_.d_nope);
  bf16* rope = transfer_.room<bf16>(rope_, batch * heads * shape_.d_rope);
  bf16* semantic = transfer_.room<bf16>(exact_semantic_, batch * semantic_values());
  bf16* positional = transfer_.room<bf16>(exact_positional_, batch * positional_values());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (is_mla()) transfer_.upload(runs[i].queries.nope, nope + row * heads * shape_.d_nope);
    transfer_.upload(runs[i].queries.rope, rope + row * heads * shape_.d_rope);
    transfer_.upload(runs[i].entries.semantic, semantic + row * semantic_values());
    transfer_.upload(runs[i].entries.positional, positional + row * positional_values());
  }

  bf16* queries = rope;
  if (is_mla()) {
    // Head by head W_ukᵀ q, beside which the RoPE part is laid.
    queries = transfer_.room<bf16>(absorbed_, batch * heads * d_query);
    Product absorb;
    absorb.a = nope;
    absorb.b = w_uk_.as<bf16>();
    absorb.c = queries;
    absorb.rows = batch;
    absorb.columns = shape_.d_latent;
    absorb.inner = shape_.d_nope;
    absorb.a_stride = heads * shape_.d_nope;
    absorb.b_stride = shape_.d_latent;
    absorb.c_stride = heads * d_query;
    absorb.b_transposed = false;
    absorb.batch = static_cast<int>(heads);
    absorb.a_batch = shape_.d_nope;
    absorb.b_batch = shape_.d_nope * shape_.d_latent;
    absorb.c_batch = d_query;
    product(absorb, stream_);
    check(cudaMemcpy2DAsync(queries + shape_.d_latent, static_cast<std::size_t>(d_query) * 2, rope,
                            static_cast<std::size_t>(shape_.d_rope) * 2,
                            static_cast<std::size_t>(shape_.d_rope) * 2,
                            static_cast<std::size_t>(batch * heads), cudaMemcpyDeviceToDevice,
                            stream_),
          "copying on the GPU");
  }

  if (!planned_) {
    std::vector<std::int64_t> lengths;
    for (const Sequence& sequence : sequences_) lengths.push_back(sequence.length);
    plan_ = decode_plan(shape_, spec_.settings, pool_.type, lengths.data(), static_cast<int>(batch),
                        longest_, kernels_);
    transfer_.room_of_zeros(workspace_, plan_.workspace_bytes);
    planned_ = true;
  }
  Decode step;
  step.shape = shape_;
  step.settings = spec_.settings;
  step.scale = scale_;
  step.pool = pool_;
  step.exact = rings_;
  step.sessions = views_.as<SessionView>();
  step.batch = static_cast<int>(batch);
  step.queries = queries;
  step.semantic = semantic;
  step.positional = positional;
  step.out = transfer_.room<bf16>(latent_, batch * heads * shape_.d_semantic());
  step.lse = transfer_.room<float>(lse_, batch * heads);
  cuda::decode(step, plan_, workspace_.as<void>(), kernels_, stream_);

  std::vector<float> out(static_cast<std::size_t>(batch * heads * shape_.d_value));
  if (is_mla()) {
    Product project;
    project.a = step.out;
    project.b = w_uv_.as<bf16>();
    project.c = transfer_.room<float>(step_out_, batch * heads * shape_.d_value);
    project.rows = batch;
    project.columns = shape_.d_value;
    project.inner = shape_.d_latent;
    project.a_stride = heads * shape_.d_latent;
    project.b_stride = shape_.d_latent;
    project.c_stride = heads * shape_.d_value;
    project.c_float = true;
    project.batch = static_cast<int>(heads);
    project.a_batch = shape_.d_latent;
    project.b_batch = shape_.d_value * shape_.d_latent;
    project.c_batch = shape_.d_value;
    product(project, stream_);
    transfer_.download(step_out_.as<float>(), batch * heads * shape_.d_value, out.data());
  } else {
    transfer_.download(step.out, batch * heads * shape_.d_value, out.data());
  }
  std::vector<float> lse(static_cast<std::size_t>(batch * heads));
  transfer_.download(step.lse, batch * heads, lse.data());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    std::copy_n(out.data() + row * heads * shape_.d_value, heads * shape_.d_value, runs[i].out);
    if (runs[i].lse != nullptr) std::copy_n(lse.data() + row * heads, heads, runs[i].lse);
    Sequence& sequence = sequences_[i];
    recent_keep(sequence, sequence.length, sequence.length + 1, nope + row * heads * shape_.d_nope,
                rope + row * heads * shape_.d_rope);
    ++sequence.length;
  }
}

HostGroups Layer::State::groups(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= sequences_.size()) {
    fail_input("there is no sequence {}; the layer has {}", index, sequences_.size());
  }
  const Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
  HostGroups groups;
  groups.count = layout_.groups(sequence.length);
  if (groups.count == 0) return groups;
  const std::int64_t biases = groups.count * shape_.kv_heads;
  bf16* semantic = transfer_.room<bf16>(group_semantic_, groups.count * semantic_values());
  bf16* positional = transfer_.room<bf16>(group_positional_, groups.count * positional_values());
  float* bias = pool_.bias == nullptr ? nullptr : transfer_.room<float>(group_bias_, biases);
  groups_gather(shape_, pool_, sequence.pages.as<std::int32_t>(), 0, groups.count, semantic,
                positional, bias, stream_);
  groups.semantic.resize(static_cast<std::size_t>(groups.count * semantic_values()));
  groups.positional.resize(static_cast<std::size_t>(groups.count * positional_values()));
  const auto all = spec_.settings.mass == Mass::count
                       ? static_cast<float>(std::log(static_cast<double>(layout_.group)))
                       : 0.0f;
  groups.bias.assign(static_cast<std::size_t>(biases), all);
  transfer_.download(semantic, groups.count * semantic_values(), groups.semantic.data());
  transfer_.download(positional, groups.count * positional_values(), groups.positional.data());
  if (bias != nullptr) transfer_.download(bias, biases, groups.bias.data());
  return groups;
}

Layer::Layer(const LayerSpec& spec, const LayerWeights& weights, int sequences,
             std::int64_t longest, const LayerOptions& options) {
  if (!unavailable().empty()) fail_input("{}", unavailable());
  if (sequences < 1) fail_input("a layer needs at least one sequence");
  state_ = std::make_unique<State>(spec, weights, sequences, longest, options);
}

Layer::~Layer() = default;

void Layer::prefill(std::span<const HostRun> runs) { state_->prefill(runs); }

void Layer::decode(std::span<const HostRun> runs) { state_->decode(runs); }

HostGroups Layer::groups(int sequence) const { return state_->groups(sequence); }

}  // namespace lca::cuda
