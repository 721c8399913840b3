#pragma once
/// The seam between the layer program (decoder.h) and the devices that run it. A step passes the
/// tokens of some sequences through the model; each stage is a coarse piece of one layer, inside
/// which a device may fuse what it likes. Stages of one step are called in the order of the
/// program; results are complete when `logits` returns.

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
  /// Tokens the prompt will have had at its end; some rope kinds depend on it.
  std::int64_t rope_length = 0;
};

/// Rows of a step's batch, in which the runs' tokens lie one after another.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
};

class Stages {
 public:
  virtual ~Stages() = default;

  /// Ids, rotation angles, embedding of all runs. The spans stay valid until the step ends.
  virtual void begin(std::span<const SequenceRun> runs) = 0;
  /// Norm, products and rotation of rows; their entries go into the caches, and groups that leave
  /// the window are condensed. Where the layer's summary waits for the prompt's end, that is done
  /// with the last rows.
  virtual void entries(std::size_t layer, RowRange rows) = 0;
  /// Attention of rows whose entries are there, output product, residual.
  virtual void attend(std::size_t layer, RowRange rows) = 0;
  /// Norm, dense or expert feed-forward, residual.
  virtual void feed_forward(std::size_t layer, RowRange rows) = 0;
  /// Final norm and head of some rows: [rows of all ranges, vocabulary] in host memory, valid until
  /// the next call. Each range is a run of its own.
  virtual const float* logits(std::span<const RowRange> ranges) = 0;
};

}  // namespace lca
