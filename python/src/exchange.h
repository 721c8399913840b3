#pragma once
/// Tensors of PyTorch by the C functions that its tensor type offers (DLPack's exchange API): where
/// they lie, the current stream, and scratch of its allocator. No attribute is read through Python,
/// and nothing of PyTorch is linked.

#include "views.h"

namespace lca::python {

/// The type whose tensors later calls take. Throws Error where it has no such functions.
void torch_attach(const nb::object& tensor_type);

/// Whether the object is a tensor of the attached type.
bool torch_is_tensor(nb::handle object);

/// The view of a tensor. Valid as long as the tensor; strides are as they are.
View torch_view(nb::handle tensor);

/// The stream that PyTorch enqueues on, of a GPU.
void* torch_stream(int device);

/// Bytes of a GPU from PyTorch's allocator, which hands them out again in the order of the stream.
class TorchScratch {
 public:
  TorchScratch(int device, std::size_t bytes);
  ~TorchScratch();
  TorchScratch(const TorchScratch&) = delete;
  TorchScratch& operator=(const TorchScratch&) = delete;
  void* data() const { return data_; }

 private:
  void* tensor_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace lca::python
