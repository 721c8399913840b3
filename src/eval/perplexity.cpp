#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/context_state.h"
#include "core/error.h"
#include "core/text.h"
#include "eval/logit_rows.h"

namespace lca::eval {

std::vector<TextWindow> text_windows(std::span<const std::int64_t> sizes, std::int64_t length,
                                     std::int64_t stride, std::int64_t most) {
  std::vector<TextWindow> windows;
  bool more = true;
  for (std::int64_t number = 0; more && (most == 0 || number < most); ++number) {
    more = false;
    for (std::size_t document = 0; document < sizes.size(); ++document) {
      // Counted by division: a product could exceed 64 bits.
      if (sizes[document] < length || number > (sizes[document] - length) / stride) continue;
      windows.push_back({document, number * stride});
      more = true;
    }
  }
  return windows;
}

std::vector<PositionRange> position_ranges(std::span<const std::int64_t> ends,
                                           std::int64_t length) {
  std::vector<PositionRange> ranges;
  std::int64_t from = 1;
  const auto add = [&](std::int64_t end) {
    const std::int64_t to = std::min(end, length);
    if (to > from) ranges.push_back({from, to});
    from = std::max(from, to);
  };
  for (const std::int64_t end : ends) add(end);
  add(length);
  return ranges;
}

void rows_nll(Context& context, const float* logits, std::int64_t vocabulary,
              std::span<const std::int32_t> targets, std::span<double> nll) {
  context.state().pool.run(std::ssize(targets), [&](std::int64_t row, int) {
    const std::span<const float> values(logits + row * vocabulary,
                                        static_cast<std::size_t>(vocabulary));
    const auto at = static_cast<std::size_t>(row);
    nll[at] = log_sum_exp(values) - double{values[static_cast<std::size_t>(targets[at])]};
  });
}

void perplexity_run(const std::shared_ptr<const Model>& model, Context& context,
                    std::span<const std::vector<std::int32_t>> documents,
                    std::span<const TextWindow> windows, std::int64_t length,
                    std::span<const PositionRange> ranges,
                    const std::function<void(std::size_t, WindowScore, const Session&)>& done,
                    const ReadOptions& options) {
  const auto tokens_of = [&](std::size_t index) {
    const TextWindow& window = windows[index];
    return std::span(documents[window.document])
        .subspan(static_cast<std::size_t>(window.from), static_cast<std::size_t>(length));
  };
  std::map<std::size_t, std::vector<double>> open;  // −ln p of each token; of the first 0
  ReadCallbacks callbacks;
  callbacks.make = [&](std::size_t index) {
    const auto tokens = tokens_of(index);
    open[index].assign(tokens.size(), 0.0);
    return std::vector<std::int32_t>(tokens.begin(), tokens.end());
  };
  callbacks.rows = [&](std::size_t index, std::int64_t first, std::int64_t count,
                       const float* logits) {
    const auto rows = static_cast<std::size_t>(std::min(count, length - 1 - first));
    const auto next = static_cast<std::size_t>(first + 1);
    rows_nll(context, logits, model->info().vocabulary, tokens_of(index).subspan(next, rows),
             std::span(open[index]).subspan(next, rows));
  };
  callbacks.done = [&](std::size_t index, const Session& session) {
    const std::vector<double> nll = std::move(open.extract(index).mapped());
    WindowScore score;
    for (const PositionRange& range : ranges) {
      score.sums.push_back(std::accumulate(nll.begin() + range.from, nll.begin() + range.to, 0.0));
      if (!std::isfinite(score.sums.back())) {
        fail_input("{}: the model computes NaN or infinite logits: its weights are damaged",
                   path_printable(model->info().path));
      }
    }
    done(index, std::move(score), session);
  };
  std::vector<std::size_t> which(windows.size());
  std::iota(which.begin(), which.end(), 0u);
  logits_read(model, context, which, callbacks, options);
}

}  // namespace lca::eval
