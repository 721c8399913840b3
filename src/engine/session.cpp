#include <lca/session.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "engine/session_state.h"
#include "models/decoder.h"
#include "models/model_state.h"

#include <lca/method.h>

namespace lca {
namespace {

/// Long enough for products to run at full rate, short enough to stay in cache and to keep the
/// feed-forward's activations small.
constexpr std::int64_t kTunedChunk = 1024;
/// Sessions that decode in one pass.
constexpr std::size_t kBatch = 8;
/// Logits of a prompt are handed out in pieces of at most so many values.
constexpr std::int64_t kLogitValues = std::int64_t{1} << 22;

std::vector<Settings> settings_per_layer(const Model& model, const SessionOptions& options) {
  const auto layers = static_cast<std::size_t>(model.info().layers);
  if (options.settings.empty()) return model.settings();
  if (options.settings.size() == layers) return options.settings;
  if (options.settings.size() != 1) {
    fail_input("settings for {} layers given; the model has {}", options.settings.size(), layers);
  }
  return std::vector<Settings>(layers, options.settings[0]);
}

LayerSpec layer_spec(const Model& model, const Settings& settings) {
  LayerSpec spec;
  spec.shape = model.info().attention;
  spec.settings = settings;
  spec.dtype = model.cache_dtype();
  spec.scale = model.info().softmax_scale;
  spec.validate();
  return spec;
}

bool waits_for_prompt(const std::vector<Settings>& settings) {
  return std::ranges::any_of(settings, [](const Settings& layer) {
    return layer.method == MethodKind::lca && layer.summary == Summary::prompt;
  });
}

std::int64_t chunk_rows(const SessionOptions& options) {
  if (options.chunk < 0) fail_input("chunk must be 0 or more, not {}", options.chunk);
  return options.chunk == 0 ? kTunedChunk : options.chunk;
}

}  // namespace

std::vector<Cache> Session::State::empty_caches() const {
  std::vector<Cache> fresh;
  fresh.reserve(settings.size());
  for (const Settings& layer : settings) fresh.emplace_back(layer_spec(*model, layer));
  return fresh;
}

void Session::State::check(std::span<const std::int32_t> run) const {
  if (broken) fail_internal("this session stopped in the middle of a step and cannot go on");
  if (run.empty()) fail_input("a prompt needs at least one token");
  const std::int64_t vocabulary = model->info().vocabulary;
  for (const std::int32_t token : run) {
    if (token < 0 || token >= vocabulary) {
      fail_input("token {} is not in the vocabulary of {}", token, vocabulary);
    }
  }
}

void Session::State::require_intact() {
  try {
    model->state().require_intact();
  } catch (...) {
    broken = true;
    logits.clear();
    throw;
  }
}

void Session::State::advance(std::span<const std::int32_t> run, std::int64_t rope_length) {
  const SequenceRun part = sequence(run, rope_length);
  broken = true;
  decoder_forward(*context, *model, activations, {&part, 1});
  require_intact();
  broken = false;
  tokens.insert(tokens.end(), run.begin(), run.end());
}

void Session::State::emit(const float* hidden, std::int64_t first, std::int64_t rows,
                          const LogitsSink& sink) {
  const ModelInfo& info = model->info();
  if (sink) {
    const std::int64_t most = std::max<std::int64_t>(1, kLogitValues / info.vocabulary);
    for (std::int64_t at = 0; at < rows; at += most) {
      const std::int64_t some = std::min(most, rows - at);
      float* out = logit_rows.prepare(some * info.vocabulary);
      decoder_logits(*context, *model, activations, hidden + at * info.hidden, some, out);
      require_intact();
      sink(first + at, some, out);
      if (at + some == rows) {
        logits.assign(out + (some - 1) * info.vocabulary, out + some * info.vocabulary);
      }
    }
  } else {
    logits.resize(static_cast<std::size_t>(info.vocabulary));
    decoder_logits(*context, *model, activations, hidden + (rows - 1) * info.hidden, 1,
                   logits.data());
    require_intact();
  }
}

Session::Session(std::shared_ptr<const Model> model, Context& context,
                 const SessionOptions& options)
    : state_(std::make_unique<State>()) {
  state_->settings = settings_per_layer(*model, options);
  state_->chunk = chunk_rows(options);
  state_->layer_by_layer = waits_for_prompt(state_->settings);
  state_->model = std::move(model);
  state_->context = &context;
  state_->caches = state_->empty_caches();
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Model& Session::model() const { return *state_->model; }
const std::vector<Settings>& Session::settings() const { return state_->settings; }
const std::vector<std::int32_t>& Session::tokens() const { return state_->tokens; }
std::int64_t Session::length() const { return static_cast<std::int64_t>(state_->tokens.size()); }
std::span<const float> Session::logits() const { return state_->logits; }

void Session::prefill(std::span<const std::int32_t> tokens,
                      const std::function<bool(PrefillProgress)>& progress,
                      const LogitsSink& logits) {
  State& state = *state_;
  state.check(tokens);
  const auto total = static_cast<std::int64_t>(tokens.size());
  const std::int64_t before = length();
  const auto report = [&](std::int64_t done) {
    if (progress && !progress({done, total})) {
      throw Error(ErrorKind::cancelled, "reading the prompt was cancelled");
    }
  };
  report(0);

  if (!state.layer_by_layer) {
    state.logits.clear();  // whoever stops half way must not go on from those of another token
    for (std::int64_t first = 0; first < total; first += state.chunk) {
      const std::int64_t rows = std::min(state.chunk, total - first);
      state.advance(tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
                    before + total);
      if (logits || first + rows == total) {
        state.emit(state.activations.hidden.data(), before + first, rows, logits);
      }
      if (first + rows == total) {
        state.shrink();
        state.prompt_end = length();
      }
      report(first + rows);
    }
    return;
  }

  // Between the layers the caches disagree: whoever stops there gets the session back as it was.
  std::vector<Cache> kept;
  kept.reserve(state.caches.size());
  for (const Cache& cache : state.caches) kept.push_back(cache.clone());
  try {
    const SequenceRun run = state.sequence(tokens, before + total);
    decoder_forward_prompt(
        *state.context, *state.model, state.activations, run, state.chunk,
        [&](double done) { report(static_cast<std::int64_t>(done * static_cast<double>(total))); });
    const std::int64_t from = logits ? 0 : total - 1;
    state.emit(state.activations.hidden.data() + from * state.model->info().hidden, before + from,
               total - from, logits);
  } catch (...) {
    state.caches = std::move(kept);
    throw;
  }
  state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
  state.prompt_end = length();
  state.shrink();
  report(total);
}

void Session::decode(std::int32_t token) {
  State& state = *state_;
  state.check({&token, 1});
  state.advance({&token, 1}, length() + 1);
  state.emit(state.activations.hidden.data(), length() - 1, 1, {});
}

void sessions_decode(std::span<Session* const> sessions, std::span<const std::int32_t> tokens) {
  if (sessions.size() != tokens.size()) {
    fail_input("{} sessions were given {} tokens", sessions.size(), tokens.size());
  }
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    const Session::State& state = sessions[i]->state();
    state.check({&tokens[i], 1});
    const Session::State& first = sessions[0]->state();
    if (state.model != first.model || state.context != first.context) {
      fail_input("sessions 0 and {} of one batch have different models or contexts", i);
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (sessions[other] == sessions[i]) fail_input("session {} is in the batch twice", i);
    }
  }
  // Together in few enough rows that every product is the one a single row gets.
  for (std::size_t at = 0; at < sessions.size(); at += kBatch) {
    const std::size_t count = std::min(kBatch, sessions.size() - at);
    Session::State& lead = sessions[at]->state();
    std::array<SequenceRun, kBatch> runs;
    for (std::size_t i = 0; i < count; ++i) {
      Session::State& state = sessions[at + i]->state();
      runs[i] = state.sequence({&tokens[at + i], 1}, sessions[at + i]->length() + 1);
      state.broken = true;
    }
    decoder_forward(*lead.context, *lead.model, lead.activations, std::span(runs).first(count));
    const auto vocabulary = static_cast<std::size_t>(lead.model->info().vocabulary);
    float* rows = lead.logit_rows.prepare(static_cast<std::int64_t>(count * vocabulary));
    decoder_logits(*lead.context, *lead.model, lead.activations, lead.activations.hidden.data(),
                   static_cast<std::int64_t>(count), rows);
    lead.require_intact();  // the others of the batch stay marked as broken
    for (std::size_t i = 0; i < count; ++i) {
      Session::State& state = sessions[at + i]->state();
      state.tokens.push_back(tokens[at + i]);
      state.logits.assign(rows + i * vocabulary, rows + (i + 1) * vocabulary);
      state.broken = false;
    }
  }
}

std::size_t Session::cache_bytes() const {
  std::size_t bytes = 0;
  for (const Cache& cache : state_->caches) bytes += cache.bytes();
  return bytes;
}

std::size_t Session::dense_bytes() const {
  Settings dense;
  dense.method = MethodKind::dense;
  return static_cast<std::size_t>(model().info().layers) *
         lca::cache_bytes(layer_spec(model(), dense), length());
}

SessionMemory session_memory(const Model& model, const SessionOptions& options, std::int64_t length,
                             int threads) {
  const std::vector<Settings> settings = settings_per_layer(model, options);
  const std::int64_t chunk = std::min(chunk_rows(options), length);
  SessionMemory memory;
  std::size_t attention = 0;
  std::size_t staged = 0;
  for (const Settings& layer : settings) {
    const LayerSpec spec = layer_spec(model, layer);
    memory.cache += lca::cache_bytes(spec, length);
    attention = std::max(attention, attention_workspace_bytes(spec, length, chunk, threads));
    // In `prompt` mode one layer at a time holds every token's entry.
    if (layer.method == MethodKind::lca && layer.summary == Summary::prompt) {
      Settings dense = layer;
      dense.method = MethodKind::dense;
      staged = std::max(staged, lca::cache_bytes(layer_spec(model, dense), length));
    }
  }
  memory.scratch = attention + staged + activations_bytes(model, chunk);
  if (waits_for_prompt(settings)) {
    memory.scratch += static_cast<std::size_t>(
                          length * (model.info().hidden + 2 * model.info().attention.d_rope)) *
                      sizeof(float);
  }
  memory.scratch +=
      static_cast<std::size_t>(std::max(kLogitValues, model.info().vocabulary)) * sizeof(float);
  return memory;
}

}  // namespace lca
