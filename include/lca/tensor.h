#pragma once
/// Non-owning views of strided memory: what every function of the library reads and writes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace lca {

/// Element types that attention reads; caches store the first two. Only the reference kernels of
/// operators (operator.h) take f64.
enum class DType : std::uint8_t { f32 = 0, bf16 = 1, f64 = 2 };

/// Bytes of one element.
constexpr std::size_t dtype_bytes(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

/// Lower-case name: "f32", "bf16", "f64".
constexpr const char* dtype_name(DType dtype) {
  return dtype == DType::f64 ? "f64" : dtype == DType::f32 ? "f32" : "bf16";
}

/// A read-only view of up to three dimensions; strides count elements, the last one is contiguous.
struct ConstTensor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 3> shape{0, 0, 0};
  std::array<std::int64_t, 3> stride{0, 0, 1};

  ConstTensor() = default;

  /// A dense row-major view; a missing leading dimension counts as 1.
  ConstTensor(const void* memory, DType type, std::initializer_list<std::int64_t> dims)
      : data(memory), dtype(type), shape{1, 1, 1} {
    std::size_t at = 3 - dims.size();
    for (std::int64_t dim : dims) shape[at++] = dim;
    stride = {shape[1] * shape[2], shape[2], 1};
  }

  bool empty() const { return data == nullptr; }

  /// Address of element (i, j, 0).
  const void* row(std::int64_t i, std::int64_t j = 0) const {
    return static_cast<const char*>(data) +
           (i * stride[0] + j * stride[1]) * static_cast<std::int64_t>(dtype_bytes(dtype));
  }

  /// The view of rows first … first + count − 1 of the leading dimension.
  ConstTensor slice(std::int64_t first, std::int64_t count) const {
    ConstTensor part = *this;
    part.data = row(first);
    part.shape[0] = count;
    return part;
  }
};

/// A writable view of the same kind.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 3> shape{0, 0, 0};
  std::array<std::int64_t, 3> stride{0, 0, 1};

  Tensor() = default;

  /// A dense row-major view; a missing leading dimension counts as 1.
  Tensor(void* memory, DType type, std::initializer_list<std::int64_t> dims) : data(memory) {
    const ConstTensor view(memory, type, dims);
    dtype = view.dtype;
    shape = view.shape;
    stride = view.stride;
  }

  bool empty() const { return data == nullptr; }

  /// The same memory, to be read.
  operator ConstTensor() const {
    ConstTensor view;
    view.data = data;
    view.dtype = dtype;
    view.shape = shape;
    view.stride = stride;
    return view;
  }

  /// Address of element (i, j, 0).
  void* row(std::int64_t i, std::int64_t j = 0) const {
    return static_cast<char*>(data) +
           (i * stride[0] + j * stride[1]) * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

}  // namespace lca
