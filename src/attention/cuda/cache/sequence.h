#pragma once
/// One sequence in a CacheStore. Its length and pages are known on the host alone; kernels get them
/// with every call.

#include <memory>

#include "attention/cuda/cache/store.h"

namespace lca::cuda {

/// Pages of representatives that are held while the list exists.
class PageList {
 public:
  explicit PageList(std::shared_ptr<CacheStore> store) : store_(std::move(store)) {}
  ~PageList();
  PageList(const PageList& other);
  PageList(PageList&& other) noexcept = default;
  PageList& operator=(PageList other) noexcept;

  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int32_t operator[](std::int64_t i) const { return pages_[static_cast<std::size_t>(i)]; }
  void take();
  /// A page of its own with the same contents in place of page i.
  void replace(std::int64_t i);
  void cut(std::int64_t size) noexcept;
  /// Numbers as device tables have them.
  std::vector<std::int32_t> entries(std::int64_t first = 0) const;

 private:
  std::shared_ptr<CacheStore> store_;
  std::vector<std::int32_t> pages_;
};

/// A window that is closed with the object.
class WindowHandle {
 public:
  WindowHandle(std::shared_ptr<CacheStore> store, std::int64_t tokens)
      : store_(std::move(store)), number_(store_->window_open(tokens)) {}
  ~WindowHandle();
  WindowHandle(WindowHandle&& other) noexcept = default;
  WindowHandle& operator=(WindowHandle&& other) noexcept;
  int number() const { return number_; }

 private:
  std::shared_ptr<CacheStore> store_;
  int number_;
};

/// A sequence or a mark, as its contents are read and written from outside.
struct HeldCache {
  CachePlace place;  ///< a mark has no slot
  const PageList* pages = nullptr;
  std::int64_t length = 0;
  std::int64_t queries_first = 0;  ///< earlier queries are not held
};

/// A position that a sequence can return to: a copy of its window, and its representatives, shared.
/// Dense layers are cut back instead.
struct CacheMark {
  std::int64_t length = 0;
  std::int64_t queries_first = 0;
  WindowHandle window;
  PageList pages;

  HeldCache held() const { return {{0, window.number()}, &pages, length, queries_first}; }
};

/// What a chunk of a prompt reads and writes.
struct ChunkRequest {
  CachePlace from;
  CachePlace to;  ///< another window, or the same one where nothing can be rolled back
  std::int64_t before = 0;
  std::int64_t tokens = 0;
  std::int64_t queries_first = 0;  ///< earlier queries are not held
};

/// A step goes: prepare(tokens), the calls of all layers, commit. A single token is written in
/// place, behind what the sequence holds; more tokens leave their window in a spare one. Either way
/// nothing has changed until `commit`.
class CacheSequence {
 public:
  explicit CacheSequence(std::shared_ptr<CacheStore> store);
  ~CacheSequence();
  CacheSequence(const CacheSequence&) = delete;
  CacheSequence& operator=(const CacheSequence&) = delete;

  CacheStore& store() const { return *store_; }
  std::int64_t length() const { return length_; }
  HeldCache held() const { return {{slot_, window_.number()}, &pages_, length_, queries_first_}; }

  /// Memory for the step's tokens: pages (those that others share too are copied before they are
  /// written), dense rows, a spare window. Enqueues changes of the page table; must not be called
  /// while the stream is captured. Throws Error (out of memory); the sequence is as before.
  void prepare(std::int64_t tokens);
  /// The step's row in a table of decode steps, for a step of one token.
  StepRow step_row() const;
  /// Tokens [first, first + count) of the step as a chunk. The chunks of a step run in order in
  /// each layer.
  ChunkRequest chunk(std::int64_t first, std::int64_t count) const;
  void commit() noexcept;
  void rollback() noexcept;

  /// The shortest prefix `truncate` accepts.
  std::int64_t truncate_floor() const;
  void truncate(std::int64_t length);
  /// Becomes a sequence of `length` tokens in memory of its own, which the caller then writes.
  void replace(std::int64_t length, std::int64_t queries_first);

  /// Enqueue device copies.
  std::unique_ptr<CacheSequence> fork() const;
  CacheMark mark() const;
  void rewind(const CacheMark& mark);
  std::unique_ptr<CacheSequence> fork_at(const CacheMark& mark) const;

 private:
  void become(std::int64_t length, std::int64_t queries_first, int window, const PageList& pages);
  void writable(std::int64_t length);

  std::shared_ptr<CacheStore> store_;
  int slot_;
  WindowHandle window_;
  std::unique_ptr<WindowHandle> spare_;
  PageList pages_;
  std::int64_t pages_before_ = 0;  // of a step
  std::int64_t length_ = 0;
  std::int64_t tokens_ = 0;         // of the prepared step
  std::int64_t queries_first_ = 0;  // earlier queries are not held; later ones may be gone too
};

}  // namespace lca::cuda
