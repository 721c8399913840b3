#pragma once
/// Numbers that were seen, the newest of them: a set that takes its memory once.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lca::server {

/// Holds at least the newest `most` numbers, and at most twice as many, in two flat tables. Nodes,
/// each allocated by itself and kept for minutes, would grow the heap for as long, and hold the
/// memory between them.
class HashRing {
 public:
  explicit HashRing(std::size_t most) : most_(most) {}

  bool contains(std::uint64_t number) const {
    return now_.contains(number) || old_.contains(number);
  }
  void insert(std::uint64_t number) {
    if (now_.slots.empty()) {
      std::size_t slots = 2;
      while (slots < 2 * most_) slots *= 2;  // at least every other one stays empty
      now_.slots.resize(slots);
      old_.slots.resize(slots);
    }
    if (now_.used == most_) {
      std::swap(now_, old_);
      now_.clear();
    }
    now_.insert(number);
  }
  std::size_t size() const { return now_.used + old_.used; }

 private:
  struct Table {
    std::vector<std::uint64_t> slots;  ///< 0: empty
    std::size_t used = 0;

    /// Where a number is, or where it would be.
    std::size_t slot_of(std::uint64_t number) const {
      const std::size_t mask = slots.size() - 1;
      std::size_t at = static_cast<std::size_t>(number) & mask;
      while (slots[at] != 0 && slots[at] != number) at = (at + 1) & mask;
      return at;
    }
    static std::uint64_t written(std::uint64_t number) { return number == 0 ? 1 : number; }
    bool contains(std::uint64_t number) const {
      return !slots.empty() && slots[slot_of(written(number))] != 0;
    }
    void insert(std::uint64_t number) {
      std::uint64_t& slot = slots[slot_of(written(number))];
      if (slot == 0) ++used;
      slot = written(number);
    }
    void clear() {
      slots.assign(slots.size(), 0);
      used = 0;
    }
  };

  Table now_, old_;
  std::size_t most_;
};

}  // namespace lca::server
