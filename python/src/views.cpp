#include "views.h"

#include "exchange.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

namespace lca::python {
namespace {

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorKind::bad_input, text); }

using AnyArray = nb::ndarray<nb::ro>;

constexpr nb::dlpack::dtype kBfloat{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16,
                                    1};

DType dtype_of(const AnyArray& array) {
  if (array.dtype() == nb::dtype<float>()) return DType::f32;
  if (array.dtype() == nb::dtype<double>()) return DType::f64;
  if (array.dtype() == kBfloat) return DType::bf16;
  fail("arrays are float32, float64 or bfloat16");
}

/// Anything with __dlpack__ or a buffer, in host memory.
View view_of_array(const nb::object& object) {
  AnyArray array;
  if (!nb::try_cast(object, array)) {
    fail(std::string("expected an array or a tensor, not ") + Py_TYPE(object.ptr())->tp_name);
  }
  if (array.device_type() != nb::device::cpu::value) {
    fail("arrays lie in host memory; a GPU's are taken as torch tensors");
  }
  View view;
  view.dtype = dtype_of(array);
  view.resize(array.ndim());
  for (std::size_t i = 0; i < view.dims; ++i) {
    view.shape[i] = static_cast<std::int64_t>(array.shape(i));
    view.stride[i] = array.stride(i);
  }
  view.data = const_cast<void*>(array.data());  // outputs are arrays that the package itself made
  view.owner = object;
  return view;
}

/// Memory for a bfloat16 result, which numpy has no type for.
nb::object empty_bfloat16(const std::vector<std::size_t>& shape) {
  std::size_t count = 1;
  for (const std::size_t dim : shape) count *= dim;
  auto memory = std::make_unique<std::uint16_t[]>(count + 1);
  std::uint16_t* data = memory.get();
  const nb::capsule owner(memory.release(), [](void* values) noexcept {
    delete[] static_cast<std::uint16_t*>(values);
  });
  return nb::cast(
      nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, nullptr, kBfloat));
}

/// A float32 copy of a view, dense.
nb::object to_float32(const View& view) {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < view.dims; ++d) count *= view.shape[d];
  auto memory = std::make_unique<float[]>(static_cast<std::size_t>(count) + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, at = 0;
    for (std::size_t d = view.dims; d-- > 0;) {
      at += rest % view.shape[d] * view.stride[d];
      rest /= view.shape[d];
    }
    switch (view.dtype) {
      case DType::f32:
        memory[static_cast<std::size_t>(i)] = static_cast<const float*>(view.data)[at];
        break;
      case DType::f64:
        memory[static_cast<std::size_t>(i)] =
            static_cast<float>(static_cast<const double*>(view.data)[at]);
        break;
      case DType::bf16: {
        const std::uint32_t bits =
            static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(view.data)[at]) << 16;
        std::memcpy(&memory[static_cast<std::size_t>(i)], &bits, sizeof bits);
        break;
      }
    }
  }
  const std::vector<std::size_t> shape(view.shape.data(), view.shape.data() + view.dims);
  float* data = memory.get();
  const nb::capsule owner(memory.release(),
                          [](void* values) noexcept { delete[] static_cast<float*>(values); });
  return nb::cast(nb::ndarray<nb::numpy, float>(data, shape.size(), shape.data(), owner));
}

std::vector<std::int64_t> dims_list(const View& view,
                                    const std::array<std::int64_t, View::kMostDims>& values) {
  return {values.begin(), values.begin() + view.dims};
}

}  // namespace

void View::resize(std::size_t count) {
  if (count > kMostDims) {
    fail("tensors have up to 8 dimensions, not " + std::to_string(count));
  }
  dims = count;
}

std::string view_dims_text(const View& view) {
  std::string text = "[";
  for (std::size_t i = 0; i < view.dims; ++i) {
    text += (i ? ", " : "") + std::to_string(view.shape[i]);
  }
  return text + "]";
}

MaybeView view_of(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  const View* known = nullptr;
  if (nb::try_cast(object, known, false) && known != nullptr) return *known;
  if (!torch_is_tensor(object)) {
    fail(std::string("expected a tensor, not ") + Py_TYPE(object.ptr())->tp_name);
  }
  View view = torch_view(object);
  if (view.dims == 0 || view.last() <= 1 || view.stride[view.dims - 1] == 1) return view;
  const nb::object copy = object.attr("contiguous")();
  view = torch_view(copy);
  view.owner = copy;
  return view;
}

BatchedView::BatchedView(std::string_view name, const MaybeView& view, std::int64_t batch)
    : batch_(batch) {
  if (!view) return;
  owner_ = view->owner;
  const std::size_t dims = view->dims;
  if (dims != 3 && dims != 4) {
    fail(std::string(name) + " has shape " + view_dims_text(*view) +
         "; it begins with batch and tokens and has 3 or 4 dimensions");
  }
  if (view->shape[0] != batch) {
    fail(std::string(name) + " has batch " + std::to_string(view->shape[0]) + ", not " +
         std::to_string(batch));
  }
  const bool heads = dims == 4;
  first_.data = view->data;
  first_.dtype = view->dtype;
  first_.shape = {view->shape[1], heads ? view->shape[2] : 1, view->shape[dims - 1]};
  first_.stride = {view->stride[1], heads ? view->stride[2] : first_.shape[2],
                   first_.shape[2] == 1 ? 1 : view->stride[dims - 1]};
  batch_stride_ = view->stride[0];
  const std::int64_t rows = first_.shape[0];
  if (rows == 1 && batch > 1) first_.stride[0] = batch_stride_;
  packed_ = batch == 1 || rows == 0 || batch_stride_ == rows * first_.stride[0];
}

Tensor BatchedView::entry(std::int64_t at) const {
  Tensor tensor = first_;
  if (tensor.empty()) return tensor;
  if (at < 0) {
    tensor.shape[0] *= batch_;
  } else {
    tensor.data = static_cast<char*>(tensor.data) +
                  at * batch_stride_ * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  }
  return tensor;
}

SharedView::SharedView(std::string_view name, const MaybeView& view) {
  if (!view) return;
  owner = view->owner;
  if (view->dims != 3) {
    fail(std::string(name) + " has shape " + view_dims_text(*view) + "; it has 3 dimensions");
  }
  tensor.data = view->data;
  tensor.dtype = view->dtype;
  std::copy_n(view->shape.begin(), 3, tensor.shape.begin());
  std::copy_n(view->stride.begin(), 3, tensor.stride.begin());
}

DenseValues::DenseValues(std::string_view name, const MaybeView& view, std::int64_t batch,
                         std::int64_t count_)
    : count(count_) {
  if (!view) return;
  owner = view->owner;
  std::int64_t values = 1;
  for (std::size_t i = view->dims; i-- > 0;) {
    if (view->shape[i] > 1 && view->stride[i] != values) fail(std::string(name) + " is not dense");
    values *= view->shape[i];
  }
  if (values != batch * count) {
    fail(std::string(name) + " has shape " + view_dims_text(*view) + ", which is not " +
         std::to_string(batch * count) + " values");
  }
  if (view->dtype == DType::f32) {
    f32 = static_cast<float*>(view->data);
  } else if (view->dtype == DType::f64) {
    f64 = static_cast<double*>(view->data);
  } else {
    fail(std::string(name) + " must be float32");
  }
}

void views_bind(nb::module_& module) {
  nb::class_<View>(module, "View", "A tensor as it lies in memory; nothing is copied.")
      .def_prop_ro("shape", [](const View& view) { return dims_list(view, view.shape); })
      .def_prop_ro(
          "stride", [](const View& view) { return dims_list(view, view.stride); }, "In elements.")
      .def_prop_ro("address",
                   [](const View& view) { return reinterpret_cast<std::uintptr_t>(view.data); })
      .def_prop_ro("dtype", [](const View& view) { return dtype_name(view.dtype); });
  module.def("view_of_array", &view_of_array, nb::arg("array"),
             "The view of an array in host memory, by DLPack or the buffer protocol.");
  module.def("torch_attach", &torch_attach, nb::arg("tensor_type"),
             "The type of tensors that operators take, torch.Tensor.");
  module.def("empty_bfloat16", &empty_bfloat16, nb::arg("shape"),
             "A new bfloat16 array for __dlpack__.");
  module.def("to_float32", &to_float32, nb::arg("view"), "A float32 numpy copy.");
}

}  // namespace lca::python
