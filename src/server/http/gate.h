#pragma once
/// Who may ask: addresses, Host and Origin, API keys, methods. Pure functions over a request's
/// headers, applied before its body is read.

#include "server/types.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

struct GateRules {
  std::vector<std::string> keys;         ///< any of them opens; empty: no key is asked for
  std::vector<std::string> allow_hosts;  ///< names this server answers to beside loopback
  /// Routes that need no key, by method and path.
  std::function<bool(std::string_view method, std::string_view path)> unguarded;
  /// Methods of a path as in the header Allow ("GET, POST"); empty: an unknown path, which is the
  /// handler's to answer. Unset: every path has METHODS.
  std::function<std::string(std::string_view path)> methods;
};

/// Where a request came in.
struct GateAddress {
  std::string bound;  ///< what the server listens on: the configured host, or a literal address
  std::string local;  ///< the literal address of this connection's own end
};

/// Why a request is not passed on.
struct Refusal {
  int status = 400;
  std::string message;
  std::string allow;         ///< of a 405
  bool ask_for_key = false;  ///< WWW-Authenticate: Bearer
};

/// The first rule that the request breaks, if any. `minor_version` is that of HTTP/1.
std::optional<Refusal> gate_check(const HttpRequest& request, int minor_version,
                                  const GateRules& rules, const GateAddress& address);

/// The methods of a path, as in the header Allow; HEAD and OPTIONS included where they apply.
std::string gate_methods(const GateRules& rules, std::string_view path);

/// Compares in a time that depends on the length of `presented` alone.
bool key_equal(std::string_view presented, std::string_view key);

/// Keys from a value, from a file with one key a line, and from the environment's value; any may be
/// empty. Throws lca::Error where the file cannot be read or holds no key, or a key has characters
/// that a header cannot carry.
std::vector<std::string> keys_collect(std::string_view value, const std::string& file,
                                      const char* environment);

/// Host and port of "host:port", "[v6]:port" or "host"; nullopt: malformed.
struct Authority {
  std::string host, port;  ///< host in lower case, without brackets; port may be empty
};
std::optional<Authority> authority_parse(std::string_view text);

/// "localhost", a name below it, 127.0.0.0/8 or ::1.
bool host_is_loopback(std::string_view host);

/// Throws lca::Error where an address beyond loopback would be served to everybody.
void bind_check(std::string_view host, bool has_key, bool without_key);

}  // namespace lca::server
