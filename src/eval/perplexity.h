#pragma once
/// How well a model predicts texts, by windows of them and ranges of positions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/cluster_mean.h"
#include "eval/logits_read.h"

namespace lca::eval {

/// A window of a document: its tokens `from` … `from` + length − 1.
struct TextWindow {
  std::size_t document = 0;
  std::int64_t from = 0;

  auto operator<=>(const TextWindow&) const = default;
};

/// Windows of `length` tokens that begin every `stride` tokens, at most `most` of each document
/// (0: all), the first ones of all documents first. `sizes` are the documents' tokens.
std::vector<TextWindow> text_windows(std::span<const std::int64_t> sizes, std::int64_t length,
                                     std::int64_t stride, std::int64_t most);

/// A range of positions in a window, without the first token, which is not predicted.
struct PositionRange {
  std::int64_t from = 0, to = 0;
};
/// One up to each of `ends`, which ascend, as far as `length` goes, and one for what lies beyond.
std::vector<PositionRange> position_ranges(std::span<const std::int64_t> ends, std::int64_t length);

/// Σ −ln p of a window in each range.
struct WindowScore {
  std::vector<double> sums;
};

/// Reads windows of documents and scores them; `done` is called on the calling thread. Throws Error
/// (bad input) where the model computes NaN.
void perplexity_run(const std::shared_ptr<const Model>& model, Context& context,
                    std::span<const std::vector<std::int32_t>> documents,
                    std::span<const TextWindow> windows, std::int64_t length,
                    std::span<const PositionRange> ranges,
                    const std::function<void(std::size_t, WindowScore, const Session&)>& done,
                    const ReadOptions& options);

/// −ln p of each of `targets`, from as many rows of logits.
void rows_nll(Context& context, const float* logits, std::int64_t vocabulary,
              std::span<const std::int32_t> targets, std::span<double> nll);

}  // namespace lca::eval
