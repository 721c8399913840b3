#pragma once
/// The caches of one sequence on whatever device its model runs, behind one interface: what the
/// engine does with them does not depend on where they lie.

#include <lca/cache.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lca {

/// A position of a sequence that it can return to. It holds the exact tokens (window and sink) and
/// recent queries at that position; representatives are shared with the sequence.
class SequenceMark {
 public:
  virtual ~SequenceMark() = default;
  virtual std::int64_t position() const = 0;
  /// Bytes it holds that the sequence does not.
  virtual std::size_t bytes() const = 0;
};

/// All layers' caches of one sequence. Functions with the name of one of `Cache` do the same for
/// all layers.
class SequenceCaches {
 public:
  virtual ~SequenceCaches() = default;

  virtual std::int64_t length() const = 0;
  virtual std::size_t bytes() const = 0;
  virtual std::size_t shared_bytes() const = 0;
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::int64_t truncate_floor() const = 0;
  virtual void truncate(std::int64_t length) = 0;

  /// A step appends to the caches; until it is committed it can be rolled back without a trace. A
  /// staged step may condense and drop a whole prompt on the way.
  virtual void step_begin(bool staged) = 0;
  virtual void step_commit() noexcept = 0;
  virtual void step_rollback() noexcept = 0;

  /// Another sequence at the same position; representatives are shared.
  virtual std::unique_ptr<SequenceCaches> fork() const = 0;
  virtual std::shared_ptr<const SequenceMark> mark() const = 0;
  /// Back to a mark made at a position of this sequence that it still holds.
  virtual void rewind(const SequenceMark& mark) = 0;
  /// Another sequence at a mark of this one.
  virtual std::unique_ptr<SequenceCaches> fork_at(const SequenceMark& mark) const = 0;

  /// The caches in host memory, layer by layer: the form in which they are saved and exchanged.
  virtual std::vector<Cache> to_host() const = 0;
  /// A mark in host memory: empty for layers that can be cut back to it.
  virtual std::vector<std::optional<Cache>> mark_to_host(const SequenceMark& mark) const = 0;
  /// The mark that `mark_to_host` gave, on this device again.
  virtual std::shared_ptr<const SequenceMark> mark_from_host(
      std::int64_t position, std::vector<std::optional<Cache>> caches) const = 0;
};

}  // namespace lca
