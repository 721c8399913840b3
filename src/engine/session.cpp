#include <lca/session.h>

#include <lca/method.h>

#include <algorithm>
#include <utility>

#include "attention/layout.h"
#include "attention/settings_kind.h"
#include "core/error.h"
#include "engine/session_state.h"
#include "engine/step.h"
#include "models/model_state.h"

namespace lca {
namespace {

std::int64_t chunk_rows(const Model& model, const SessionOptions& options) {
  if (options.chunk < 0) fail_input("chunk must be 0 or more, not {}", options.chunk);
  return options.chunk == 0 ? model.state().backend->chunk_rows() : options.chunk;
}

const LogitsSink* sink_of(const LogitsSink& sink) { return sink ? &sink : nullptr; }

/// Kept from call to call, so that decoding a batch allocates nothing.
std::vector<StepPart>& parts_scratch() {
  thread_local std::vector<StepPart> parts;
  parts.clear();
  return parts;
}

}  // namespace

std::vector<Settings> settings_per_layer(const Model& model, const SessionOptions& options) {
  const auto layers = static_cast<std::size_t>(model.info().layers);
  if (options.settings.empty()) return model.settings();
  if (options.settings.size() == layers) return options.settings;
  if (options.settings.size() != 1) {
    fail_input("settings for {} layers given; the model has {}", options.settings.size(), layers);
  }
  return std::vector<Settings>(layers, options.settings[0]);
}

LayerSpec layer_spec(const Model& model, const Settings& settings, std::int64_t positions) {
  LayerSpec spec;
  spec.shape = model.info().attention;
  spec.settings = settings;
  spec.dtype = model.cache_dtype();
  spec.scale = model.info().softmax_scale;
  spec.storage = model.info().cache;
  if (settings.positions == Positions::entry) {
    const Model::State& state = model.state();
    spec.rotation = {state.config().rope.layout, state.rope.frequencies(positions)};
  }
  spec.validate();
  return spec;
}

bool waits_for_prompt(std::span<const Settings> settings) {
  return std::ranges::any_of(settings, summary_waits);
}

std::unique_ptr<SequenceCaches> Session::State::empty_caches() const {
  std::vector<LayerSpec> layers;
  layers.reserve(settings.size());
  for (const Settings& layer : settings) {
    layers.push_back(layer_spec(*model, layer, std::max<std::int64_t>(1, rope_positions)));
  }
  return model->state().backend->caches_open(layers);
}

std::int64_t Session::State::positions_spanned(std::int64_t count) const {
  std::int64_t most = 0;
  for (const Settings& layer : settings) {
    const bool entry = layer.positions == Positions::entry;
    most = std::max(most, entry ? Layout(layer).entries(count) : count);
  }
  return most;
}

void Session::State::rope_decide(std::int64_t count) {
  if (!entry_positions || length() > 0 || rope_inherited) return;
  rope_positions = positions_spanned(count);
  if (model->state().rope.depends_on_length()) caches = empty_caches();
}

bool Session::State::rotates_as_prompt(std::int64_t count) const {
  if (!entry_positions) return rotates_as_short(std::max(count, length()));
  const Rope& rope = model->state().rope;
  return !rope.depends_on_length() ||
         rope.frequencies(rope_positions) == rope.frequencies(positions_spanned(count));
}

void Session::State::check(std::span<const std::int32_t> run) const { tokens_check(*model, run); }

void tokens_check(const Model& model, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) fail_input("a prompt needs at least one token");
  const std::int64_t vocabulary = model.info().vocabulary;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      fail_input("token {} is not in the vocabulary of {}", token, vocabulary);
    }
  }
}

Session::Session(std::shared_ptr<const Model> model, Context& context,
                 const SessionOptions& options) {
  guarded([&] {
    state_ = std::make_unique<State>();
    state_->settings = settings_per_layer(*model, options);
    state_->chunk = chunk_rows(*model, options);
    state_->most_marks = options.marks;
    state_->layer_by_layer = waits_for_prompt(state_->settings);
    state_->entry_positions = std::ranges::any_of(state_->settings, [](const Settings& layer) {
      return layer.positions == Positions::entry && layer.method != MethodKind::dense;
    });
    state_->model = std::move(model);
    state_->context = &context;
    state_->caches = state_->empty_caches();
  });
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Model& Session::model() const { return *state_->model; }
std::shared_ptr<const Model> Session::shared_model() const { return state_->model; }
void Session::set_context(Context& context) { state_->context = &context; }
const std::vector<Settings>& Session::settings() const { return state_->settings; }
const std::vector<std::int32_t>& Session::tokens() const { return state_->tokens; }
std::int64_t Session::length() const { return state_->length(); }
std::int64_t Session::prompt_end() const { return state_->prompt_end; }
std::span<const float> Session::logits() const { return state_->logits; }
const std::vector<std::string>& Session::notices() const { return state_->notices; }

void Session::prefill(std::span<const std::int32_t> tokens,
                      const std::function<bool(PrefillProgress)>& progress,
                      const LogitsSink& logits, const std::stop_token& stop) {
  guarded([&] {
    State& state = *state_;
    state.check(tokens);
    const auto total = static_cast<std::int64_t>(tokens.size());
    const auto report = [&](std::int64_t done) {
      if (progress && !progress({done, total})) {
        throw Error(ErrorKind::cancelled, "reading the prompt was cancelled");
      }
    };
    report(0);
    const ModelBackend& backend = *state.model->state().backend;
    state.rope_decide(total);
    StepPart part;
    part.session = &state;
    part.prompt = true;
    part.logits = sink_of(logits);
    part.rope_length = state.rope_length(length() + total);
    StepOptions options;
    options.stop = stop;
    if (state.layer_by_layer) {
      part.tokens = tokens;
      options.layer_by_layer = true;
      options.progress = [&](double done) {
        report(static_cast<std::int64_t>(done * static_cast<double>(total)));
      };
      options.before_commit = [&] { report(total); };
      step_run({&part, 1}, options);
      backend.trim(*state.context);
      return;
    }
    for (std::int64_t first = 0; first < total; first += state.chunk) {
      const std::int64_t rows = std::min(state.chunk, total - first);
      part.tokens = tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows));
      part.wants_logits = part.logits != nullptr || first + rows == total;
      step_run({&part, 1}, options);
      if (first + rows == total) backend.trim(*state.context);
      report(first + rows);
    }
  });
}

void Session::decode(std::int32_t token, const std::stop_token& stop) {
  Session* self = this;
  sessions_decode({&self, 1}, {&token, 1}, stop);
}

void sessions_forward(std::span<const Step> steps, const std::stop_token& stop) {
  guarded([&] {
    if (steps.empty()) return;
    std::vector<StepPart>& parts = parts_scratch();
    StepOptions options;
    options.stop = stop;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      if (step.session == nullptr) fail_input("step {} of the batch has no session", i);
      Session::State& state = step.session->state();
      const Session::State& lead = steps[0].session->state();
      state.check(step.tokens);
      if (state.model != lead.model || state.context != lead.context) {
        fail_input("sessions 0 and {} of one batch have different models or contexts", i);
      }
      for (std::size_t other = 0; other < i; ++other) {
        if (steps[other].session == step.session) fail_input("session {} is in the batch twice", i);
      }
      if (!step.prompt && step.tokens.size() != 1) {
        fail_input("step {} takes {} generated tokens; one at a time can be decoded", i,
                   step.tokens.size());
      }
      if (step.prompt && state.layer_by_layer) {
        if (steps.size() > 1) {
          fail_input(
              "session {} is in summary mode `prompt`, where a prompt must be the only step; it "
              "can only decode in a step with others",
              i);
        }
        options.layer_by_layer = true;
      }
      if (step.prompt_left < 0 || (step.prompt_left > 0 && !step.prompt)) {
        fail_input("step {} has {} more tokens of a prompt to come; 0 or more can, of a prompt", i,
                   step.prompt_left);
      }
      const std::int64_t count = std::ssize(step.tokens) + step.prompt_left;
      state.rope_decide(count);
      parts.push_back({&state, step.tokens, step.prompt, sink_of(step.logits),
                       step.wants_logits || step.logits, state.rope_length(state.length() + count),
                       step.greedy});
    }
    step_run(parts, options);
  });
}

void sessions_decode(std::span<Session* const> sessions, std::span<const std::int32_t> tokens,
                     const std::stop_token& stop) {
  if (sessions.size() != tokens.size()) {
    fail_input("{} sessions were given {} tokens", sessions.size(), tokens.size());
  }
  guarded([&] {
    thread_local std::vector<Step> steps;  // kept from call to call
    steps.resize(sessions.size());
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      steps[i].session = sessions[i];
      steps[i].tokens = tokens.subspan(i, 1);
    }
    sessions_forward(steps, stop);
  });
}

SessionLayout session_layout(std::span<const Settings> settings, std::int64_t length) {
  SessionLayout most;
  for (const Settings& layer : settings) {
    const Visible seen = Layout(layer).visible(length - 1);
    const bool dense = layer.method == MethodKind::dense;
    SessionLayout made;
    made.tokens = length;
    made.sink = dense ? 0 : seen.sink.size();
    made.groups = seen.groups;
    made.group = layer.method == MethodKind::lca ? layer.group : 0;
    made.window = dense ? length : seen.window.size();
    if (&layer == &settings.front() || made.groups > most.groups) most = made;
  }
  return most;
}

SessionLayout Session::layout() const { return session_layout(state_->settings, length()); }

std::size_t Session::cache_bytes() const { return state_->caches->bytes(); }

std::size_t Session::dense_bytes() const {
  Settings dense;
  dense.method = MethodKind::dense;
  return static_cast<std::size_t>(model().info().layers) *
         lca::cache_bytes(layer_spec(model(), dense), length());
}

Memory Session::memory() const {
  const State& state = *state_;
  Memory memory;
  memory.shared = state.caches->shared_bytes();
  memory.caches = state.caches->bytes() - memory.shared;
  memory.spare = state.caches->workspace_bytes() +
                 (state.tokens.capacity() + state.pending.capacity()) * sizeof(std::int32_t) +
                 state.logits.capacity() * sizeof(float);
  for (const SessionMark& mark : state.marks) {
    memory.marks += mark.caches->bytes() + mark.logits.capacity() * sizeof(float);
  }
  const ContextMemory context = state.context->memory();
  memory.activations = context.activations;
  memory.scratch = context.scratch;
  return memory;
}

Memory session_memory(const Model& model, const SessionOptions& options, std::int64_t length,
                      int threads) {
  const std::vector<Settings> settings = settings_per_layer(model, options);
  const std::int64_t chunk = std::min(chunk_rows(model, options), length);
  Memory memory;
  std::vector<LayerSpec> layers;
  for (const Settings& layer : settings) layers.push_back(layer_spec(model, layer));
  const ModelBackend& backend = *model.state().backend;
  memory.caches = backend.cache_bytes(layers, length);
  memory.activations = backend.activation_bytes(chunk) + step_logit_bytes(model);
  memory.scratch = backend.scratch_bytes(layers, length, chunk, threads);
  if (waits_for_prompt(settings)) {
    // One layer at a time holds the entries of all tokens; hidden states and angles of all tokens
    // are kept.
    Settings dense = settings.front();
    dense.method = MethodKind::dense;
    memory.scratch += lca::cache_bytes(layer_spec(model, dense), length);
    memory.activations += static_cast<std::size_t>(
                              length * (model.info().hidden + 2 * model.info().attention.d_rope)) *
                          sizeof(float);
  }
  return memory;
}

}  // namespace lca
