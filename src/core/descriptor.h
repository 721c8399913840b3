#pragma once
/// A file descriptor that closes itself.

#include <unistd.h>

#include <utility>

namespace lca {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  /// The number, no longer closed here.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace lca
