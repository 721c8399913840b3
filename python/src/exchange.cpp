#include "exchange.h"

#include <nanobind/ndarray.h>

#include <string>

namespace lca::python {
namespace {

// The functions' table as DLPack 1.x lays it out; this much of it is stable within a major version.

struct DlpackVersion {
  std::uint32_t major, minor;
};

struct DlpackManaged {
  DlpackVersion version;
  void* context;
  void (*deleter)(DlpackManaged*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

struct ExchangeTable {
  DlpackVersion version;
  const ExchangeTable* previous;
  int (*allocate)(nb::dlpack::dltensor* like, DlpackManaged** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_of)(void* object, DlpackManaged** out);
  int (*object_of)(DlpackManaged* tensor, void** out);
  int (*tensor_of)(void* object, nb::dlpack::dltensor* out);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** out);
};

constexpr std::uint32_t kMajor = 1;

struct Attached {
  PyTypeObject* type = nullptr;  // a reference that is never given back: torch outlives us
  const ExchangeTable* table = nullptr;
};

Attached& attached() {
  static Attached one;
  return one;
}

[[noreturn]] void exchange_fail(const std::string& text) {
  throw Error(ErrorKind::bad_input, text);
}

const ExchangeTable& table() {
  if (attached().table == nullptr) exchange_fail("tensors of PyTorch need lca's torch part");
  return *attached().table;
}

DType dtype_of(nb::handle tensor, nb::dlpack::dtype dtype) {
  constexpr auto kFloat = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float);
  constexpr auto kBfloat = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  if (dtype.lanes == 1 && dtype.code == kFloat && dtype.bits == 32) return DType::f32;
  if (dtype.lanes == 1 && dtype.code == kFloat && dtype.bits == 64) return DType::f64;
  if (dtype.lanes == 1 && dtype.code == kBfloat && dtype.bits == 16) return DType::bf16;
  const nb::object type = tensor.attr("dtype");
  std::string name = nb::str(nb::handle(type)).c_str();
  name.erase(0, name.rfind('.') + 1);
  exchange_fail("tensors are float32, bfloat16 or float64, not " + name);
}

}  // namespace

void torch_attach(const nb::object& tensor_type) {
  nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  const auto* found = static_cast<const ExchangeTable*>(
      PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")
          ? PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api")
          : nullptr);
  while (found != nullptr && found->version.major != kMajor) found = found->previous;
  if (found == nullptr || found->tensor_of == nullptr) {
    exchange_fail("this PyTorch shares no tensors by DLPack's C functions; 2.11 or newer does");
  }
  attached() = {reinterpret_cast<PyTypeObject*>(tensor_type.inc_ref().ptr()), found};
}

bool torch_is_tensor(nb::handle object) {
  return attached().type != nullptr && PyObject_TypeCheck(object.ptr(), attached().type);
}

View torch_view(nb::handle tensor) {
  nb::dlpack::dltensor found{};
  if (table().tensor_of(tensor.ptr(), &found) != 0) throw nb::python_error();
  View view;
  view.data = static_cast<char*>(found.data) + found.byte_offset;
  view.dtype = dtype_of(tensor, found.dtype);
  view.on_gpu = found.device.device_type == nb::device::cuda::value;
  view.device = found.device.device_id;
  view.resize(static_cast<std::size_t>(found.ndim));
  for (std::size_t i = 0; i < view.dims; ++i) {
    view.shape[i] = found.shape[i];
    view.stride[i] = found.strides[i];
  }
  return view;
}

void* torch_stream(int device) {
  void* stream = nullptr;
  if (table().current_stream(nb::device::cuda::value, device, &stream) != 0) {
    throw nb::python_error();
  }
  return stream;
}

TorchScratch::TorchScratch(int device, std::size_t bytes) {
  auto count = static_cast<std::int64_t>(bytes);
  nb::dlpack::dltensor like{};
  like.device = {nb::device::cuda::value, device};
  like.ndim = 1;
  like.dtype = nb::dtype<std::uint8_t>();
  like.shape = &count;
  std::string failure;
  DlpackManaged* made = nullptr;
  const int code =
      table().allocate(&like, &made, &failure, [](void* context, const char*, const char* message) {
        *static_cast<std::string*>(context) = message;
      });
  if (code != 0) {  // as PyTorch itself says it, for those who catch it and try less
    const nb::object type = nb::module_::import_("torch").attr("OutOfMemoryError");
    PyErr_SetString(type.ptr(), failure.c_str());
    throw nb::python_error();
  }
  tensor_ = made;
  data_ = static_cast<char*>(made->tensor.data) + made->tensor.byte_offset;
}

TorchScratch::~TorchScratch() {
  auto* tensor = static_cast<DlpackManaged*>(tensor_);
  if (tensor != nullptr && tensor->deleter != nullptr) tensor->deleter(tensor);
}

}  // namespace lca::python
