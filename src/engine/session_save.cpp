// Session::save and Session::load: a session and its file.

#include <lca/session.h>
#include <lca/version.h>

#include <filesystem>

#include "core/error.h"
#include "core/text.h"
#include "engine/session_file.h"
#include "engine/session_state.h"
#include "models/fingerprint.h"
#include "models/model_state.h"

namespace lca {
namespace {

std::string_view precision_name(Precision precision) {
  return precision == Precision::bf16 ? "bf16" : "f32";
}

SessionHead head_of(const Session& session) {
  const Session::State& state = session.state();
  const Model& model = *state.model;
  const ModelInfo& info = model.info();
  SessionHead head;
  head.program = version();
  head.fingerprint = model.fingerprint();
  head.model = std::filesystem::path(info.path).filename().string();
  if (model.state().adapter) head.model += " with " + model.state().adapter->name();
  head.architecture = info.architecture;
  head.weights = model_weight_type(model);
  head.layers = info.layers;
  head.hidden = info.hidden;
  head.vocabulary = info.vocabulary;
  head.shape = info.attention;
  head.dtype = model.cache_dtype();
  head.precision = info.precision;
  head.scale = info.softmax_scale;
  head.settings = state.settings;
  head.truncate_floor = session.truncate_floor();
  head.prompt_end = state.prompt_end;
  head.tokens = state.tokens;
  head.pending = state.pending;
  head.logits = state.logits;
  return head;
}

/// In the order in which people want to know: another model, another way to compute, other weights.
void check_model(const SessionHead& head, const Model& model, std::string_view path) {
  const ModelInfo& info = model.info();
  const std::string name = path_printable(path);
  if (head.architecture != info.architecture || head.layers != info.layers ||
      head.hidden != info.hidden || head.vocabulary != info.vocabulary ||
      head.shape != info.attention) {
    fail_input(
        "{}: is a session of another model, {} ({}, {} layers of width {}); this one is {}, {} "
        "layers of width {}",
        name, text_printable(head.model), text_printable(head.architecture), head.layers,
        head.hidden, info.architecture, info.layers, info.hidden);
  }
  if (head.precision != info.precision || head.dtype != model.cache_dtype()) {
    const std::string_view kept = precision_name(head.precision);
    fail_input("{}: was computed in {} and the model is loaded in {}; use --precision {}", name,
               kept, precision_name(info.precision), kept);
  }
  if (head.fingerprint != model.fingerprint()) {
    fail_input(
        "{}: is a session of a model with other weights, {} ({}); take that one, with the adapter "
        "and the flags it was loaded with, or start a new session",
        name, text_printable(head.model), text_printable(head.weights));
  }
}

}  // namespace

void Session::save(const std::string& path) const {
  if (state_->broken) {
    fail_internal("{}: is not saved: the session stopped in the middle of a step", path_printable(path));
  }
  session_write(path, head_of(*this), state_->caches);
}

Session Session::load(std::shared_ptr<const Model> model, Context& context, const std::string& path,
                      const SessionOptions& options) {
  return session_resume(session_read(path), std::move(model), context, options, path);
}

Session session_resume(SessionRecord record, std::shared_ptr<const Model> model, Context& context,
                       const SessionOptions& options, std::string_view name) {
  check_model(record.head, *model, name);
  session_check_settings(record.head, options.settings, name);
  Session session(std::move(model), context, {record.head.settings, options.chunk});
  Session::State& state = session.state();
  for (std::size_t layer = 0; layer < record.caches.size(); ++layer) {
    if (record.caches[layer].spec() != state.caches[layer].spec()) {
      fail_input("{}: is a session of another model: the caches of layer {} differ",
                 path_printable(name), layer);
    }
  }
  state.caches = std::move(record.caches);
  state.tokens = std::move(record.head.tokens);
  state.pending = std::move(record.head.pending);
  state.logits = std::move(record.head.logits);
  state.prompt_end = record.head.prompt_end;
  return session;
}

}  // namespace lca
