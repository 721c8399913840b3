#pragma once
/// The caches of one sequence on any device, behind one interface, so that the engine does not
/// depend on where they are stored.

#include <lca/cache.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace lca {

/// A position that a sequence can return to. A mark holds the exact tokens (window and sink) and
/// recent queries at that position; representatives are shared with the sequence.
class SequenceMark {
 public:
  virtual ~SequenceMark() = default;
  virtual std::int64_t position() const = 0;
  /// Bytes that are not shared with the sequence.
  virtual std::size_t bytes() const = 0;
};

class SequenceCaches;

/// Memory of frozen caches that several of them hold, counted once.
struct FrozenBytes;

/// The caches of a sequence that is kept and not in use.
class FrozenCaches {
 public:
  virtual ~FrozenCaches() = default;
  /// The same caches, to go on with.
  virtual std::unique_ptr<SequenceCaches> thaw() const = 0;
  /// Bytes that it alone holds, without what is in FrozenBytes.
  virtual std::size_t bytes() const = 0;
  /// Of representatives, which others may hold too.
  virtual std::size_t shared_bytes() const = 0;
};

/// The caches of all layers of one sequence. Functions named like one of `Cache` do the same for
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

  /// A step appends to the caches; until it is committed it can be rolled back completely. A staged
  /// step may condense and drop tokens before it is committed, for a whole prompt in one step.
  virtual void step_begin(bool staged) = 0;
  virtual void step_commit() noexcept = 0;
  virtual void step_rollback() noexcept = 0;

  /// Another sequence at the same position; representatives are shared.
  virtual std::unique_ptr<SequenceCaches> fork() const = 0;
  /// What is needed to go on from here later. `alike` are frozen caches of the same model and
  /// settings, the most similar first: exact tokens that they have too are shared with them where
  /// the device can. `count` receives what is shareable.
  virtual std::unique_ptr<FrozenCaches> freeze(std::span<const FrozenCaches* const> alike,
                                               const std::shared_ptr<FrozenBytes>& count) const;
  virtual std::shared_ptr<const SequenceMark> mark() const = 0;
  /// Returns to a mark of this sequence. The position of the mark must not have been truncated
  /// since.
  virtual void rewind(const SequenceMark& mark) = 0;
  /// Another sequence at a mark of this one.
  virtual std::unique_ptr<SequenceCaches> fork_at(const SequenceMark& mark) const = 0;

  /// Replaces what the caches hold by random numbers, as if `length` tokens had been read; for
  /// measurements. Throws Error (incompatible) where the device does not have it.
  virtual void fill(std::int64_t length, std::uint32_t seed);

  /// The caches in host memory, layer by layer: the form in which they are saved and exchanged.
  virtual std::vector<Cache> to_host() const = 0;
  /// A mark in host memory: empty for layers that can be cut back to it.
  virtual std::vector<std::optional<Cache>> mark_to_host(const SequenceMark& mark) const = 0;
  /// The inverse of `mark_to_host`.
  virtual std::shared_ptr<const SequenceMark> mark_from_host(
      std::int64_t position, std::vector<std::optional<Cache>> caches) const = 0;
};

}  // namespace lca
