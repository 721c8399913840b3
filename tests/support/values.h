#pragma once
/// Arrays that own their memory, in any type that operators take.

#include <lca/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/random.h"

namespace lca::test {

/// Three dimensions; indices count values in row-major order, whatever lies between the rows.
class Values {
 public:
  Values() = default;
  /// Filled with NaN, so that what is not written fails every comparison. With `gaps` rows and
  /// heads lie apart, a random number of NaN between them.
  Values(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2, Random* gaps = nullptr);

  std::int64_t size() const { return shape_[0] * shape_[1] * shape_[2]; }
  const std::array<std::int64_t, 3>& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  double get(std::int64_t i) const { return read(place(i)); }
  /// Rounds to the type.
  void set(std::int64_t i, double value) { write(place(i), value); }
  std::vector<double> doubles() const;
  void fill_normal(double deviation, Random& random);
  /// The same values in another type, without gaps.
  Values rounded(DType dtype) const;

  /// Without values they have the shape and no memory.
  Tensor tensor();
  ConstTensor view() const;

  /// Whether all that lies between the rows is still NaN.
  bool gaps_are_intact() const;
  /// The gaps too.
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::int64_t place(std::int64_t i) const {
    if (dense_) return i;
    const std::int64_t row = i / shape_[2];
    return row / shape_[1] * stride_[0] + row % shape_[1] * stride_[1] + i % shape_[2];
  }
  double read(std::int64_t at) const;
  void write(std::int64_t at, double value);

  DType dtype_ = DType::f64;
  std::array<std::int64_t, 3> shape_{0, 0, 0};
  std::array<std::int64_t, 2> stride_{0, 0};
  bool dense_ = true;
  std::vector<std::byte> bytes_;
};

}  // namespace lca::test
