#include "attention/cuda/cache/sequence.h"

#include <algorithm>
#include <utility>

#include "attention/settings_kind.h"
#include "core/error.h"

namespace lca::cuda {

// --- pages and windows -------------------------------------------------------------------------

PageList::~PageList() {
  if (store_) cut(0);
}

PageList::PageList(const PageList& other) : store_(other.store_), pages_(other.pages_) {
  for (const std::int32_t page : pages_) store_->page_hold(page);
}

PageList& PageList::operator=(PageList other) noexcept {
  std::swap(store_, other.store_);
  std::swap(pages_, other.pages_);
  return *this;
}

void PageList::take() {
  pages_.reserve(pages_.size() + 1);
  pages_.push_back(store_->page_take());
}

void PageList::replace(std::int64_t i) {
  std::int32_t& page = pages_[static_cast<std::size_t>(i)];
  const std::int32_t fresh = store_->page_take();
  store_->page_copy(page, fresh);
  store_->page_drop(std::exchange(page, fresh));
}

void PageList::cut(std::int64_t size) noexcept {
  // In reverse, so that the lowest page is given back last.
  while (this->size() > size) {
    store_->page_drop(pages_.back());
    pages_.pop_back();
  }
}

std::vector<std::int32_t> PageList::entries(std::int64_t first) const {
  std::vector<std::int32_t> entries;
  for (std::int64_t i = first; i < size(); ++i) entries.push_back(store_->table_entry((*this)[i]));
  return entries;
}

WindowHandle::~WindowHandle() {
  if (store_) store_->window_close(number_);
}

WindowHandle& WindowHandle::operator=(WindowHandle&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(number_, other.number_);
  return *this;
}

// --- sequences ---------------------------------------------------------------------------------

CacheSequence::CacheSequence(std::shared_ptr<CacheStore> store)
    : store_(std::move(store)), window_(store_, 1), pages_(store_) {
  slot_ = store_->slot_open();
}

CacheSequence::~CacheSequence() { store_->slot_close(slot_); }

/// Pages for representatives up to `length` tokens; the one that is written next is this sequence's
/// alone, since others may have gone on in it, or may still.
void CacheSequence::writable(std::int64_t length) {
  const std::int64_t needed = store_->pages_for(length);
  const std::int64_t held = pages_.size();
  store_->pages_expect(needed - held);
  try {
    if (store_->groups_grow(length_, length)) {
      // Layers may stand at different representatives; nobody writes before the first of them.
      for (std::int64_t i = store_->groups_fewest(length_) / kPageRows; i < held; ++i) {
        if (!store_->page_shared(pages_[i])) continue;
        pages_.replace(i);
        const std::int32_t entry = store_->table_entry(pages_[i]);
        store_->table_write(slot_, i, {&entry, 1});
      }
    }
    while (pages_.size() < needed) pages_.take();
  } catch (...) {
    pages_.cut(held);
    throw;
  }
  store_->table_write(slot_, held, pages_.entries(held));
}

void CacheSequence::prepare(std::int64_t tokens) {
  const std::int64_t after = length_ + tokens;
  if (tokens < 1 || after > store_->limits().longest) {
    fail_input("a run of {} tokens after {} does not fit a cache of {}", tokens, length_,
               store_->limits().longest);
  }
  rollback();
  pages_before_ = pages_.size();
  try {
    writable(after);
    store_->dense_require(slot_, after);
    if (tokens == 1) {
      store_->window_require(window_.number(), after);
    } else {
      spare_ = std::make_unique<WindowHandle>(store_, after);
    }
  } catch (...) {
    pages_.cut(pages_before_);
    throw;
  }
  tokens_ = tokens;
}

StepRow CacheSequence::step_row() const {
  if (tokens_ != 1) fail_input("a decode step takes one token; {} were prepared", tokens_);
  return {slot_, window_.number(), static_cast<std::int32_t>(length_), 0};
}

ChunkRequest CacheSequence::chunk(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 1 || first + count > tokens_) {
    fail_input("tokens {} to {} are not in a step of {}", first, first + count - 1, tokens_);
  }
  const int after = spare_ ? spare_->number() : window_.number();
  return {{slot_, first == 0 ? window_.number() : after},
          {slot_, after},
          length_ + first,
          count,
          queries_first_};
}

void CacheSequence::commit() noexcept {
  if (tokens_ == 0) return;
  length_ += tokens_;
  tokens_ = 0;
  if (!spare_) return;
  std::swap(window_, *spare_);
  spare_.reset();
}

void CacheSequence::rollback() noexcept {
  if (tokens_ == 0) return;
  tokens_ = 0;
  spare_.reset();
  pages_.cut(pages_before_);
}

std::int64_t CacheSequence::truncate_floor() const {
  std::int64_t floor = 0;
  for (const LayerSpec& spec : store_->specs()) {
    const Layout layout(spec.settings);
    floor = std::max(floor, summary_waits(spec.settings)
                                ? length_
                                : layout.shortest_prefix(layout.dropped(length_)));
  }
  return floor;
}

void CacheSequence::truncate(std::int64_t length) {
  if (length < 0 || length > length_) {
    fail_input("cannot cut a cache of {} tokens to {}", length_, length);
  }
  if (length == length_) return;
  if (length < truncate_floor()) {
    fail_input(
        "cannot cut a cache of {} tokens to {}: tokens its window needs are condensed or dropped; "
        "the shortest prefix is {}",
        length_, length, truncate_floor());
  }
  // What is cut off lies behind what stays, in pages, rings and dense rows alike. Of the queries
  // those stay that the old length still needed: the next group to leave needs no others.
  std::int64_t kept = 0;
  for (const LayerSpec& spec : store_->specs()) {
    if (spec.settings.method == MethodKind::lca) {
      kept = std::max(kept, spec.settings.summary_queries - 1);
    }
  }
  queries_first_ = std::min(std::max(queries_first_, length_ - kept), length);
  length_ = length;
}

void CacheSequence::replace(std::int64_t length, std::int64_t queries_first) {
  if (length > store_->limits().longest) {
    fail_input("{} tokens do not fit a cache of {}", length, store_->limits().longest);
  }
  rollback();
  store_->window_require(window_.number(), length);
  store_->dense_require(slot_, length);
  PageList pages(store_);
  store_->pages_expect(store_->pages_for(length));
  while (pages.size() < store_->pages_for(length)) pages.take();
  pages_ = std::move(pages);
  store_->table_write(slot_, 0, pages_.entries());
  length_ = length;
  queries_first_ = queries_first;
}

/// Stands where `window` and `pages` are, in an own window.
void CacheSequence::become(std::int64_t length, std::int64_t queries_first, int window,
                           const PageList& pages) {
  store_->window_require(window_.number(), length);
  store_->window_copy(window, window_.number(), length);
  pages_ = pages;
  store_->table_write(slot_, 0, pages_.entries());
  length_ = length;
  queries_first_ = queries_first;
}

std::unique_ptr<CacheSequence> CacheSequence::fork() const {
  auto other = std::make_unique<CacheSequence>(store_);
  other->store_->dense_require(other->slot_, length_);
  other->store_->dense_copy(slot_, other->slot_, length_);
  other->become(length_, queries_first_, window_.number(), pages_);
  return other;
}

CacheMark CacheSequence::mark() const {
  CacheMark mark{length_, queries_first_, WindowHandle(store_, length_), pages_};
  store_->window_copy(window_.number(), mark.window.number(), length_);
  return mark;
}

void CacheSequence::rewind(const CacheMark& mark) {
  become(mark.length, mark.queries_first, mark.window.number(), mark.pages);
}

std::unique_ptr<CacheSequence> CacheSequence::fork_at(const CacheMark& mark) const {
  auto other = std::make_unique<CacheSequence>(store_);
  other->store_->dense_require(other->slot_, mark.length);
  other->store_->dense_copy(slot_, other->slot_, mark.length);
  other->become(mark.length, mark.queries_first, mark.window.number(), mark.pages);
  return other;
}

}  // namespace lca::cuda
