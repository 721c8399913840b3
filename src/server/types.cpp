#include "server/types.h"

#include <new>

namespace lca::server {
namespace {

/// Memory that others hold comes back when their requests end.
constexpr int kMemoryRetry = 5;

}  // namespace

ApiError error_of(const Error& error) {
  ApiError made;
  made.message = error.what();
  switch (error.kind()) {
    case ErrorKind::bad_input:
      made.status = 400;
      break;
    case ErrorKind::not_found:
      made.status = 404;
      break;
    case ErrorKind::incompatible:  // what is kept here was made by another model
    case ErrorKind::busy:
      made.status = 409;
      break;
    case ErrorKind::out_of_memory:
      made.status = 503;
      made.retry_after = kMemoryRetry;
      break;
    case ErrorKind::cancelled:
      made.status = 503;
      break;
    case ErrorKind::io:
    case ErrorKind::internal:
      made.status = 500;
      break;
  }
  return made;
}

ApiError error_now() {
  try {
    throw;
  } catch (const ApiException& error) {
    return error.error();
  } catch (const Error& error) {
    return error_of(error);
  } catch (const std::bad_alloc&) {
    return error_of(Error(ErrorKind::out_of_memory, "there is no memory left for this request"));
  } catch (const std::exception& error) {
    ApiError made;
    made.message = error.what();
    return made;
  }
}

}  // namespace lca::server
