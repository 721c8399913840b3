#pragma once
/// How a handler answers. All of it runs on the connection's executor; nothing here is for other
/// threads, which post to `executor()` or push into a Mailbox.

#include "server/http/asio.h"
#include "server/types.h"

#include <functional>
#include <string>
#include <string_view>

namespace lca::server {

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  /// Adds a header to the reply. Throws lca::Error where the value would begin another one.
  virtual void header(std::string name, std::string value) = 0;

  /// The whole reply. Throws lca::Error (internal) where a reply was begun already.
  virtual asio::awaitable<void> send(int status, std::string content_type, std::string body) = 0;

  /// Begins a reply whose length is not known, by default a stream of server-sent events.
  virtual asio::awaitable<void> begin_stream(int status = 200,
                                             std::string content_type = "text/event-stream") = 0;

  /// Adds to the stream. Returns when the bytes not yet taken by the socket are below the bound;
  /// false: the client is gone and further output is dropped.
  virtual asio::awaitable<bool> write(std::string data) = 0;

  /// The text of comments in a stream of events that is idle (without ": "; line breaks become
  /// blanks). Without, or where it is empty: "waiting".
  virtual void idle_comment(std::function<std::string()> text) = 0;

  /// Ends the stream and waits until the socket took all of it. A handler that returns does the
  /// same.
  virtual asio::awaitable<void> end_stream() = 0;

  /// End-of-file was seen on the client's socket, or writing failed.
  virtual bool gone() const = 0;

  /// Calls once, on the executor, when the client is gone; at once if it is already. The connection
  /// drops the callback when the handler returns.
  virtual void on_gone(std::function<void()> call) = 0;

  /// A reply was begun: its status cannot change any more.
  virtual bool started() const = 0;

  virtual asio::any_io_executor executor() = 0;
};

/// Answers one request. An exception becomes 500, or breaks a stream off.
using Handler = std::function<asio::awaitable<void>(HttpRequest, ResponseWriter&)>;

}  // namespace lca::server
