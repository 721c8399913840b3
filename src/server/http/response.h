#pragma once
/// The bytes of a reply's head and of its chunks.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

/// "Not Found" of 404; "Unknown" of a status nobody defines.
std::string_view status_reason(int status);

/// Throws lca::Error where a name is not a token or a value has control characters (CR and LF among
/// them, which would begin another header).
void header_check(std::string_view name, std::string_view value);

/// How a reply's body ends.
struct ResponseShape {
  int minor_version = 1;              ///< of the request
  bool keep_alive = true;             ///< false: Connection: close
  std::optional<std::size_t> length;  ///< of the body; without: chunks, or until the close
};

/// Status line and headers, the blank line included. `headers` are checked.
std::string response_head(int status, const HeaderList& headers, const ResponseShape& shape);

/// One chunk of a chunked body. Empty data is no chunk: that would end the body.
void chunk_append(std::string& out, std::string_view data);
inline constexpr std::string_view chunk_end = "0\r\n\r\n";

/// The seconds since 1970 as HTTP writes them: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(long long seconds);

/// An error in OpenAI's form, the default where no dialect is known.
std::string error_body(int status, std::string_view message);

}  // namespace lca::server
