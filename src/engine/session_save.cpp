// Session::save and Session::load: a session and its file.

#include <lca/session.h>
#include <lca/version.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "attention/cache_state.h"
#include "core/error.h"
#include "core/text.h"
#include "engine/session_file.h"
#include "engine/session_state.h"
#include "models/fingerprint.h"
#include "models/model_state.h"
#include "models/precision.h"

namespace lca {
namespace {

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
  head.device = info.device;
  head.layers = info.layers;
  head.hidden = info.hidden;
  head.vocabulary = info.vocabulary;
  head.shape = info.attention;
  head.dtype = model.cache_dtype();
  head.storage = info.cache;
  head.precision = info.precision;
  head.scale = info.softmax_scale;
  head.settings = state.settings;
  head.truncate_floor = session.truncate_floor();
  head.prompt_end = state.prompt_end;
  head.rope_positions = state.rope_positions;
  head.tokens = state.tokens;
  head.pending = state.pending;
  head.logits = state.logits;
  return head;
}

void check_model(const SessionHead& head, const Model& model, std::string_view path) {
  const ModelInfo& info = model.info();
  const std::string name = path_printable(path);
  if (head.architecture != info.architecture || head.layers != info.layers ||
      head.hidden != info.hidden || head.vocabulary != info.vocabulary ||
      head.shape != info.attention || head.scale != info.softmax_scale) {
    fail_incompatible(
        "{}: is a session of another model, {} ({}, {} layers of width {}); this one is {}, {} "
        "layers of width {}",
        name, text_printable(head.model), text_printable(head.architecture), head.layers,
        head.hidden, info.architecture, info.layers, info.hidden);
  }
  const std::string expected = head.version > 1
                                   ? model.fingerprint()
                                   : fingerprint_version1(model, head.precision, head.dtype);
  if (head.fingerprint != expected) {
    fail_incompatible(
        "{}: is a session of a model with other weights, {} ({}); use that one, with the adapter "
        "it was loaded with, or start a new session",
        name, text_printable(head.model), text_printable(head.weights));
  }
}

/// Rows of 8 bits are not what they were rounded from, and rounding others changes them.
void check_storage(const SessionHead& head, const Model& model, std::string_view path) {
  if (head.storage == model.info().cache) return;
  const bool int8 = head.storage == CacheStorage::int8;
  fail_incompatible(
      "{}: this session has {}: a session keeps the kind of its cache; {}, or start a new session",
      path_printable(path), int8 ? "a cache of 8 bits" : "no cache of 8 bits",
      int8 ? "load the model on the CPU with --cache int8" : "load the model without --cache int8");
}

/// Frequencies follow from the model and the first prompt; a file with others was not written here.
void check_rotations(const SessionRecord& record, const Model& model, std::string_view path) {
  const SessionHead& head = record.head;
  for (std::size_t layer = 0; layer < record.caches.size(); ++layer) {
    const LayerSpec spec =
        layer_spec(model, head.settings[layer], std::max<std::int64_t>(1, head.rope_positions));
    if (record.caches[layer].spec().rotation != spec.rotation) {
      fail_input("{}: is not a session this program wrote: its RoPE frequencies",
                 path_printable(path));
    }
  }
}

/// What differs from how the session was computed, as text; empty: nothing.
std::string difference(const SessionHead& head, const Model& model) {
  const ModelInfo& info = model.info();
  std::vector<std::string> parts;
  const auto compare = [&](std::string_view what, std::string_view was, std::string_view is) {
    if (was != is)
      parts.push_back(fmt::format("{} {} instead of {}", what, is, text_printable(was)));
  };
  compare("precision", precision_name(head.precision), precision_name(info.precision));
  compare("cache type", dtype_name(head.dtype), dtype_name(model.cache_dtype()));
  compare("weights", head.weights, model_weight_type(model));
  compare("device", head.device, info.device);
  return fmt::format("{}", fmt::join(parts, ", "));
}

void convert(SessionRecord& record, DType dtype) {
  if (record.head.dtype == dtype) return;
  for (Cache& cache : record.caches) cache = cache_converted(cache, dtype);
  for (SavedMark& mark : record.marks) {
    for (std::size_t layer = 0; layer < mark.caches.size(); ++layer) {
      if (!mark.caches[layer]) continue;
      // The mark shares the representatives of the whole cache again.
      const Cache own = cache_converted(*mark.caches[layer], dtype);
      mark.caches[layer] = cache_mark_load(cache_mark_save(own), record.caches[layer]);
    }
  }
  record.head.dtype = dtype;
}

}  // namespace

void Session::save(const std::string& path) const {
  guarded([&] {
    SessionRecord record;
    record.head = head_of(*this);
    record.caches = state_->caches->to_host();
    const bool useful = state_->rotates_as_short(length());
    for (const SessionMark& mark : state_->marks) {
      if (!useful) break;
      record.marks.push_back({mark.position(), mark.prompt_end, mark.logits,
                              state_->caches->mark_to_host(*mark.caches)});
    }
    session_write(path, record);
  });
}

Session Session::load(std::shared_ptr<const Model> model, Context& context, const std::string& path,
                      const SessionOptions& options) {
  return guarded([&] {
    SessionRecord record = session_read(path, model->state().access);
    return session_resume(std::move(record), std::move(model), context, options, path);
  });
}

Session session_resume(SessionRecord record, std::shared_ptr<const Model> model, Context& context,
                       const SessionOptions& options, std::string_view name) {
  check_model(record.head, *model, name);
  check_storage(record.head, *model, name);
  check_rotations(record, *model, name);
  session_check_settings(record.head, options.settings, name);
  std::string changed = difference(record.head, *model);
  convert(record, model->cache_dtype());
  Session session(std::move(model), context, {record.head.settings, options.chunk, options.marks});
  Session::State& state = session.state();
  state.caches = state.model->state().backend->caches_load(std::move(record.caches));
  state.tokens = std::move(record.head.tokens);
  state.pending = std::move(record.head.pending);
  state.logits = std::move(record.head.logits);
  state.prompt_end = record.head.prompt_end;
  state.rope_positions = record.head.rope_positions;
  for (SavedMark& mark : record.marks) {
    state.marks.push_back({state.caches->mark_from_host(mark.position, std::move(mark.caches)),
                           std::move(mark.logits), mark.prompt_end});
  }
  if (state.marks.size() > state.most_marks) {
    state.marks.erase(state.marks.begin(),
                      state.marks.end() - static_cast<std::ptrdiff_t>(state.most_marks));
  }
  if (!changed.empty()) {
    state.notices.push_back(
        fmt::format("{}: continues with {}: the text may differ from what it would have been",
                    path_printable(name), changed));
  }
  return session;
}

}  // namespace lca
