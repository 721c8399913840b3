#include "eval/logits_read.h"

#include <algorithm>
#include <deque>

#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca::eval {
namespace {

/// A sequence on its way.
struct ReadItem {
  std::size_t index = 0;
  std::vector<std::int32_t> ids;
};

class Reader {
 public:
  Reader(const std::shared_ptr<const Model>& model, Context& context,
         const ReadCallbacks& callbacks, const ReadOptions& options)
      : model_(model), context_(context), callbacks_(callbacks), options_(options) {
    chunk_ = options.session.chunk;
    if (chunk_ == 0) chunk_ = model->state().backend->chunk_rows();
    whole_ = waits_for_prompt(settings_per_layer(*model, options.session));
  }

  /// Whether `item` can be read in one step together with `tokens` others.
  bool fits(const ReadItem& item, std::int64_t tokens) const {
    return !whole_ && tokens + std::ssize(item.ids) <= chunk_;
  }

  void read(std::span<const ReadItem> items) {
    if (items.size() == 1) {
      read_alone(items.front());
    } else {
      read_together(items);
    }
    for (const ReadItem& item : items) read_ += std::ssize(item.ids);
    report(0);
  }

 private:
  LogitsSink sink(const ReadItem& item) const {
    return [this, index = item.index](std::int64_t first, std::int64_t count, const float* logits) {
      callbacks_.rows(index, first, count, logits);
    };
  }

  void report(std::int64_t tokens) const {
    if (options_.progress) options_.progress(read_ + tokens);
  }

  void read_alone(const ReadItem& item) {
    Session session(model_, context_, options_.session);
    session.prefill(
        item.ids,
        [&](PrefillProgress at) {
          report(at.done);
          return true;
        },
        sink(item), options_.stop);
    callbacks_.done(item.index, session);
  }

  void read_together(std::span<const ReadItem> items) {
    std::deque<Session> sessions;
    std::vector<Step> steps;
    for (const ReadItem& item : items) {
      Session& session = sessions.emplace_back(model_, context_, options_.session);
      Step step;
      step.session = &session;
      step.tokens = item.ids;
      step.prompt = true;
      step.logits = sink(item);
      steps.push_back(std::move(step));
    }
    sessions_forward(steps, options_.stop);
    for (std::size_t i = 0; i < items.size(); ++i) callbacks_.done(items[i].index, sessions[i]);
  }

  const std::shared_ptr<const Model>& model_;
  Context& context_;
  const ReadCallbacks& callbacks_;
  const ReadOptions& options_;
  std::int64_t chunk_ = 0;
  bool whole_ = false;  // prompts are steps of their own
  std::int64_t read_ = 0;
};

}  // namespace

void logits_read(const std::shared_ptr<const Model>& model, Context& context,
                 std::span<const std::size_t> which, const ReadCallbacks& callbacks,
                 const ReadOptions& options) {
  Reader reader(model, context, callbacks, options);
  std::vector<ReadItem> together;
  std::int64_t tokens = 0;
  const auto flush = [&] {
    if (!together.empty()) reader.read(together);
    together.clear();
    tokens = 0;
  };
  for (const std::size_t index : which) {
    ReadItem item{index, callbacks.make(index)};
    if (!together.empty() && !reader.fits(item, tokens)) flush();
    tokens += std::ssize(item.ids);
    together.push_back(std::move(item));
    if (options.stop.stop_requested()) {
      throw Error(ErrorKind::cancelled, "stopped before all texts were read");
    }
  }
  flush();
}

}  // namespace lca::eval
