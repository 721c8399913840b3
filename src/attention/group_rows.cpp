#include "attention/group_rows.h"

#include <algorithm>
#include <cstring>

namespace lca {
namespace {

constexpr std::int64_t kSmallPage = 64;   ///< a row block of decoding
constexpr std::int64_t kLargePage = 192;  ///< three of them, and a chunk of prefill

}  // namespace

const GroupRows::Part& GroupRows::part_of(std::int64_t j) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), j,
                       [](std::int64_t row, const Part& part) { return row < part.first; });
  return *(after - 1);
}

std::int64_t GroupRows::contiguous(std::int64_t j) const {
  const Part& part = part_of(j);
  return part.first + part.rows - j;
}

GroupRows::Run GroupRows::run(std::int64_t j) const {
  const Part& part = part_of(j);
  const Page& page = *part.page;
  const std::int64_t at = j - part.first;
  return {page.semantic + at * bytes_.semantic, page.positional + at * bytes_.positional,
          reinterpret_cast<const float*>(page.bias + at * bytes_.bias),
          reinterpret_cast<const float*>(page.scales + at * bytes_.scales), part.rows - at};
}

std::shared_ptr<GroupRows::Page> GroupRows::page_make() const {
  const std::int64_t unit = rows_ < kLargePage ? kSmallPage : kLargePage;
  auto page = std::make_shared<Page>();
  page->capacity = (rows_ / unit + 1) * unit - rows_;
  Carver count;
  const auto carve = [&](Carver& carver) {
    page->semantic = carver.take<std::byte>(page->capacity * bytes_.semantic);
    page->positional = carver.take<std::byte>(page->capacity * bytes_.positional);
    page->bias = carver.take<std::byte>(page->capacity * bytes_.bias);
    page->scales = carver.take<std::byte>(page->capacity * bytes_.scales);
  };
  carve(count);
  page->memory = session_bytes(count.used());
  Carver carver(page->memory.get());
  carve(carver);
  return page;
}

void GroupRows::grow(std::int64_t count) {
  const std::int64_t before = rows_;
  try {
    for (std::int64_t left = count; left > 0;) {
      std::int64_t some = 0;
      if (!parts_.empty()) {
        Part& part = parts_.back();
        std::int64_t end = part.rows;
        some = std::min(left, part.page->capacity - end);
        // Another holder may have written behind our last row: then the page is closed to us.
        if (some > 0 && part.page->used.compare_exchange_strong(end, end + some)) {
          part.rows += some;
        } else {
          some = 0;
        }
      }
      if (some == 0) {
        parts_.push_back({page_make(), rows_, 0});
        continue;
      }
      rows_ += some;
      left -= some;
    }
  } catch (...) {
    take_back(before);
    throw;
  }
}

void GroupRows::take_back(std::int64_t rows) noexcept {
  while (!parts_.empty() && (rows_ > rows || parts_.back().rows == 0)) {
    Part& part = parts_.back();
    const std::int64_t kept = std::clamp<std::int64_t>(rows - part.first, 0, part.rows);
    // No other holder can have claimed the slots behind ours: those that share the page end before.
    std::int64_t end = part.rows;
    part.page->used.compare_exchange_strong(end, kept);
    rows_ -= part.rows - kept;
    part.rows = kept;
    if (kept == 0) parts_.pop_back();
  }
}

GroupRows GroupRows::share(std::int64_t rows) const {
  GroupRows other = *this;
  while (!other.parts_.empty() && other.parts_.back().first >= rows) other.parts_.pop_back();
  if (!other.parts_.empty()) other.parts_.back().rows = rows - other.parts_.back().first;
  other.rows_ = rows;
  return other;
}

std::size_t GroupRows::shared_bytes() const {
  std::int64_t rows = 0;
  for (const Part& part : parts_) {
    if (part.page.use_count() > 1) rows += part.rows;
  }
  return static_cast<std::size_t>(rows * bytes_.total());
}

std::size_t GroupRows::capacity_bytes() const {
  std::int64_t rows = 0;
  for (const Part& part : parts_) rows += part.page->capacity;
  return static_cast<std::size_t>(rows * bytes_.total());
}

void GroupRows::poison_spare() {
  for (const Part& part : parts_) {
    Page& page = *part.page;
    const std::int64_t used = page.used;
    const auto fill = [&](std::byte* memory, std::int64_t width) {
      if (width == 0) return;
      std::memset(memory + used * width, 0xff,
                  static_cast<std::size_t>((page.capacity - used) * width));
    };
    fill(page.semantic, bytes_.semantic);
    fill(page.positional, bytes_.positional);
    fill(page.bias, bytes_.bias);
    fill(page.scales, bytes_.scales);
  }
}

}  // namespace lca
