/// Errors of the library as Python's own exceptions, with the same line of text.

#include "binding.h"

namespace lca::python {
namespace {

PyObject* exception_type(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input:
      return PyExc_ValueError;
    case ErrorKind::not_found:
      return PyExc_FileNotFoundError;
    case ErrorKind::out_of_memory:
      return PyExc_MemoryError;
    case ErrorKind::io:
      return PyExc_OSError;
    case ErrorKind::cancelled:
      return PyExc_InterruptedError;
    case ErrorKind::incompatible:
    case ErrorKind::busy:
    case ErrorKind::internal:
      break;
  }
  return PyExc_RuntimeError;
}

}  // namespace

void errors_bind(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pending, void*) {
    try {
      std::rethrow_exception(pending);
    } catch (const Error& error) {
      PyErr_SetString(exception_type(error.kind()), error.what());
    }
  });
}

}  // namespace lca::python
