#pragma once
/// HTTP/1.x requests from bytes, however they are split. No socket in sight: tests and the fuzzer
/// feed it directly.

#include "server/headers.h"
#include "server/types.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lca::server {

/// What a request may take.
struct ReadLimits {
  std::size_t header_bytes = 16 << 10;  ///< request line and headers; beyond: 431
  std::size_t body_bytes = 64 << 20;    ///< beyond: 413
};

/// Reads one request. Bytes that were not consumed must come again, followed by more.
class RequestReader {
 public:
  enum class State : std::uint8_t { headers, body, done, failed };

  explicit RequestReader(const ReadLimits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes bytes and returns how many were consumed; those after the request's end are not. Stops
  /// behind the headers, so that no room is made for the body of a request that is refused: call
  /// again until nothing is consumed.
  std::size_t feed(std::string_view bytes);

  State state() const { return state_; }
  /// Gives a request up that is not complete.
  void fail(int status, std::string problem);
  /// Of a failed request: 400, 413, 417, 431, 501 or 505 (or as given up), and what is wrong with
  /// it.
  int status() const { return status_; }
  const std::string& problem() const { return problem_; }

  /// Valid from State::body on; the body is filled when the state is done. Of a failed request:
  /// what was read of its head.
  HttpRequest& request() { return request_; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  std::size_t body_held() const;  ///< bytes of memory that the body takes so far
  int minor_version() const { return minor_version_; }  ///< of HTTP/1

 private:
  struct Parser;
  std::string take_known();
  void take_headers();

  std::unique_ptr<Parser> parser_;
  HttpRequest request_;
  State state_ = State::headers;
  int status_ = 0;
  int minor_version_ = 1;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
  std::string problem_;
};

/// How many headers have that name.
std::size_t header_count(const HttpRequest& request, std::string_view name);

/// Splits a request target into path (percent-decoded) and query. The absolute form's authority
/// goes to `authority`. False: not a target, or a decoded path would hold NUL or a broken escape.
bool target_split(std::string_view target, std::string& path, std::string& query,
                  std::string& authority);

}  // namespace lca::server
