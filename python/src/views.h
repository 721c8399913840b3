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

/// The floats of a dense tensor of `count` values; null where there is none.
float* dense_floats(std::string_view name, const std::optional<View>& view, std::int64_t count);

}  // namespace lca::python
