#pragma once
/// A client's leaving, as long as somebody cares.

#include "server/http/writer.h"

#include <functional>
#include <utility>

namespace lca::server {

/// Calls while it lives when the client leaves; at once where it has. One at a time.
class OnGone {
 public:
  OnGone(ResponseWriter& writer, std::function<void()> call) : writer_(writer) {
    writer_.on_gone(std::move(call));
  }
  ~OnGone() {
    if (!writer_.gone()) writer_.on_gone({});
  }
  OnGone(const OnGone&) = delete;
  OnGone& operator=(const OnGone&) = delete;

 private:
  ResponseWriter& writer_;
};

}  // namespace lca::server
