#include "eval/everyday.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/context_state.h"
#include "core/error.h"
#include "core/text.h"
#include "eval/logit_rows.h"

namespace lca::eval {
namespace {

/// Values of the base's logits that are kept until the other model has read the same replies.
constexpr std::int64_t kKeptLogits = std::int64_t{1} << 26;

/// The rows that predict a reply: [tokens, vocabulary].
struct ReplyRows {
  std::int64_t first = 0, count = 0;
  std::vector<std::int32_t> tokens;
  std::vector<float> base;
  EverydayScore score;
};

/// The part of rows `first` … of a sequence that predicts its reply.
struct RowsPart {
  std::int64_t skipped = 0;  ///< rows before it
  std::int64_t place = 0;    ///< its first row among the reply's
  std::int64_t count = 0;
};

RowsPart part_of(const ReplyRows& reply, std::int64_t first, std::int64_t count) {
  const std::int64_t from = std::max(first, reply.first);
  const std::int64_t to = std::min(first + count, reply.first + reply.count);
  return {from - first, from - reply.first, std::max<std::int64_t>(0, to - from)};
}

class EverydayReader {
 public:
  EverydayReader(const EverydayArm& base, const EverydayArm& other,
                 const std::function<const EverydayText&(std::size_t)>& text,
                 const std::stop_token& stop)
      : base_(base), other_(other), text_(text), stop_(stop) {}

  void read(std::span<const std::size_t> which) {
    for (const std::size_t index : which) {
      const EverydayText& text = text_(index);
      ReplyRows& reply = replies_[index];
      reply.first = text.prompt - 1;
      reply.count = std::ssize(text.ids) - text.prompt + (text.ended ? 1 : 0);
      reply.tokens.assign(text.ids.begin() + text.prompt, text.ids.end());
      reply.base.resize(static_cast<std::size_t>(reply.count * vocabulary()));
    }
    read_with(base_, which, [this](ReplyRows& reply, const RowsPart& part, const float* rows) {
      std::copy_n(rows, part.count * vocabulary(), reply.base.data() + part.place * vocabulary());
    });
    read_with(other_, which, [this](ReplyRows& reply, const RowsPart& part, const float* rows) {
      compare(reply, part, rows);
    });
  }

  EverydayScore take(std::size_t index) {
    const EverydayScore score = replies_.extract(index).mapped().score;
    if (!std::isfinite(score.kl) || !std::isfinite(score.other_nll)) {
      fail_input("{}: the model computes NaN or infinite logits: its weights are damaged",
                 path_printable(other_.model->info().path));
    }
    return score;
  }

 private:
  std::int64_t vocabulary() const { return base_.model->info().vocabulary; }

  template <typename Take>
  void read_with(const EverydayArm& arm, std::span<const std::size_t> which, const Take& take) {
    ReadCallbacks callbacks;
    callbacks.make = [this](std::size_t index) { return text_(index).ids; };
    callbacks.rows = [&](std::size_t index, std::int64_t first, std::int64_t count,
                         const float* logits) {
      ReplyRows& reply = replies_.at(index);
      const RowsPart part = part_of(reply, first, count);
      if (part.count > 0) take(reply, part, logits + part.skipped * vocabulary());
    };
    callbacks.done = [](std::size_t, const Session&) {};
    ReadOptions options;
    options.session = arm.session;
    options.stop = stop_;
    logits_read(arm.model, arm.context, which, callbacks, options);
  }

  /// Adds up rows of the reply. The token that ends it is the one the base finds likeliest.
  void compare(ReplyRows& reply, const RowsPart& part, const float* rows) {
    std::vector<EverydayScore> scores(static_cast<std::size_t>(part.count));
    const auto width = static_cast<std::size_t>(vocabulary());
    other_.context.state().pool.run(part.count, [&](std::int64_t row, int) {
      const std::span p(reply.base.data() + (part.place + row) * vocabulary(), width);
      const std::span q(rows + row * vocabulary(), width);
      const RowDivergence divergence = divergence_of(p, q);
      const std::int64_t place = part.place + row;
      const std::int32_t token = place < std::ssize(reply.tokens)
                                     ? reply.tokens[static_cast<std::size_t>(place)]
                                     : likeliest(p);
      EverydayScore& score = scores[static_cast<std::size_t>(row)];
      score.kl = divergence.kl;
      score.base_nll = divergence.p_shift - double{p[static_cast<std::size_t>(token)]};
      score.other_nll = divergence.q_shift - double{q[static_cast<std::size_t>(token)]};
      score.agreed = likeliest(q) == token ? 1 : 0;
    });
    for (const EverydayScore& score : scores) {  // in order: the same whatever the threads
      ++reply.score.tokens;
      reply.score.kl += score.kl;
      reply.score.base_nll += score.base_nll;
      reply.score.other_nll += score.other_nll;
      reply.score.agreed += score.agreed;
    }
  }

  const EverydayArm& base_;
  const EverydayArm& other_;
  const std::function<const EverydayText&(std::size_t)>& text_;
  const std::stop_token& stop_;
  std::map<std::size_t, ReplyRows> replies_;
};

}  // namespace

void everyday_run(const EverydayArm& base, const EverydayArm& other,
                  std::span<const std::size_t> which,
                  const std::function<const EverydayText&(std::size_t)>& text,
                  const std::function<void(std::size_t, const EverydayScore&)>& done,
                  const std::stop_token& stop) {
  const std::int64_t vocabulary = base.model->info().vocabulary;
  if (other.model->info().vocabulary != vocabulary) {
    fail_incompatible("the two models have {} and {} tokens: they cannot be compared", vocabulary,
                      other.model->info().vocabulary);
  }
  EverydayReader reader(base, other, text, stop);
  while (!which.empty()) {
    std::size_t count = 0;
    for (std::int64_t kept = 0; count < which.size(); ++count) {
      const EverydayText& next = text(which[count]);
      kept += (std::ssize(next.ids) - next.prompt + 1) * vocabulary;
      if (count > 0 && kept > kKeptLogits) break;
    }
    reader.read(which.first(count));
    for (const std::size_t index : which.first(count)) done(index, reader.take(index));
    which = which.subspan(count);
  }
}

}  // namespace lca::eval
