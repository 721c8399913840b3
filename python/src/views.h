#pragma once
/// Tensors of other libraries, as they lie in memory.

#include "binding.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca::python {

/// A tensor of up to eight dimensions; strides count elements. It holds on to `owner`.
struct View {
  static constexpr std::size_t kMostDims = 8;

  /// Throws Error where there are too many.
  void resize(std::size_t count);
  std::int64_t last() const { return dims ? shape[dims - 1] : 1; }

  void* data = nullptr;
  DType dtype = DType::f32;
  bool on_gpu = false;
  int device = 0;  ///< of a GPU
  std::size_t dims = 0;
  std::array<std::int64_t, kMostDims> shape{};
  std::array<std::int64_t, kMostDims> stride{};
  nb::object owner;
};

using MaybeView = std::optional<View>;

/// The view of None, of a View or of a tensor of PyTorch. A tensor whose last dimension is not
/// contiguous is copied (and the view owns the copy).
MaybeView view_of(nb::handle object);

/// "[2, 45, 4, 8]"
std::string view_dims_text(const View& view);

/// A tensor [batch, rows, heads, width] or [batch, rows, width], as one view or a view for each
/// entry of the batch.
class BatchedView {
 public:
  BatchedView() = default;
  /// Throws Error naming the tensor where dimensions or batch do not fit.
  BatchedView(std::string_view name, const MaybeView& view, std::int64_t batch);

  /// Whether the rows of the batch are equally far apart, so that they are one tensor.
  bool is_packed() const { return packed_; }
  /// The view of entry `at`; of all of them where `at` is negative.
  Tensor entry(std::int64_t at) const;

 private:
  Tensor first_;
  std::int64_t batch_ = 1;
  std::int64_t batch_stride_ = 0;
  bool packed_ = true;
  nb::object owner_;
};

/// A tensor [a, b, c] that the whole batch shares; empty where there is none.
struct SharedView {
  /// Throws Error naming the tensor where it has other dimensions.
  SharedView(std::string_view name, const MaybeView& view);

  Tensor tensor;
  nb::object owner;
};

/// The values of a dense tensor, float32 or (reference) float64; null where there is none.
struct DenseValues {
  /// Throws Error naming the tensor where it does not have `batch` times `count` values.
  DenseValues(std::string_view name, const MaybeView& view, std::int64_t batch, std::int64_t count);

  /// Those of entry `at` of the batch; of all where `at` is negative.
  float* floats(std::int64_t at) const { return f32 && at > 0 ? f32 + at * count : f32; }
  double* doubles(std::int64_t at) const { return f64 && at > 0 ? f64 + at * count : f64; }

  float* f32 = nullptr;
  double* f64 = nullptr;
  std::int64_t count = 0;
  nb::object owner;
};

}  // namespace lca::python
