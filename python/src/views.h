#pragma once
/// Tensors of other libraries, as they lie in memory.

#include "binding.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lca::python {

/// A tensor of any number of dimensions; strides count elements. It holds on to `owner`.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;
  nb::object owner;
};

/// A tensor [batch, rows, heads, width] or [batch, rows, width], as one view or a view for each
/// entry of the batch.
class BatchedView {
 public:
  BatchedView() = default;
  /// Throws Error naming the tensor where dimensions or batch do not fit.
  BatchedView(std::string_view name, const std::optional<View>& view, std::int64_t batch);

  /// Whether the rows of the batch are equally far apart, so that they are one tensor.
  bool is_packed() const { return packed_; }
  /// The view of entry `at`; of all of them where `at` is negative.
  Tensor entry(std::int64_t at) const;

 private:
  Tensor first_;
  std::int64_t batch_ = 1;
  std::int64_t batch_stride_ = 0;
  bool packed_ = true;
};

/// A tensor [a, b, c] that the whole batch shares; empty where there is none.
Tensor shared_view(std::string_view name, const std::optional<View>& view);

/// The values of a dense tensor, float32 or (reference) float64; null where there is none.
struct DenseValues {
  /// Throws Error naming the tensor where it does not have `batch` times `count` values.
  DenseValues(std::string_view name, const std::optional<View>& view, std::int64_t batch,
              std::int64_t count);

  /// Those of entry `at` of the batch; of all where `at` is negative.
  float* floats(std::int64_t at) const { return f32 && at > 0 ? f32 + at * count : f32; }
  double* doubles(std::int64_t at) const { return f64 && at > 0 ? f64 + at * count : f64; }

  float* f32 = nullptr;
  double* f64 = nullptr;
  std::int64_t count = 0;
};

}  // namespace lca::python
