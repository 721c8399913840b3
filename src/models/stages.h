#pragma once
/// The interface between the layer program (decoder.h) and the devices that run it. A step runs
/// tokens of one or more sequences through the model; each stage is a coarse piece of one layer,
/// inside which a device may fuse freely. The stages of a step are called in the order of the
/// program; results are complete when `logits` or `picks` returns.

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/sequence.h"

namespace lca {

/// One sequence's part of a step: tokens at positions first …, and where their entries go.
struct SequenceRun {
  SequenceCaches* caches = nullptr;
  std::span<const std::int32_t> tokens;
  std::int64_t first = 0;
  /// Length of the sequence at the end of this prompt; some kinds of RoPE depend on it.
  std::int64_t rope_length = 0;
};

/// A range of rows of a step; the tokens of its runs are consecutive rows.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
};

class Stages {
 public:
  virtual ~Stages() = default;

  /// Token ids, RoPE angles and embedding of all runs. The spans must stay valid until the step
  /// ends.
  virtual void begin(std::span<const SequenceRun> runs) = 0;
  /// Norm, projections and RoPE of rows; their entries are appended to the caches, and groups that
  /// leave the window are condensed. Where the layer's summary waits for the end of the prompt,
  /// groups are condensed with the last rows.
  virtual void entries(std::size_t layer, RowRange rows) = 0;
  /// Attention of rows whose entries are in the caches, output projection, residual.
  virtual void attend(std::size_t layer, RowRange rows) = 0;
  /// Norm, dense or expert feed-forward, residual.
  virtual void feed_forward(std::size_t layer, RowRange rows) = 0;
  /// Final norm and head of the rows of all ranges: [rows, vocabulary] in host memory, valid until
  /// the next call. Each range counts as a run of its own.
  virtual const float* logits(std::span<const RowRange> ranges) = 0;
  /// The same without the logits: the likeliest token of each row, the lowest id on ties, −1 where
  /// a logit is NaN. `out` has one place per row. In a step it is called before `logits`. Here it
  /// is made from `logits` on the host; a device saves the transfer.
  virtual void picks(std::span<const RowRange> ranges, std::span<std::int32_t> out);
  /// Width of a row of logits.
  virtual std::int64_t vocabulary() const = 0;
};

}  // namespace lca
