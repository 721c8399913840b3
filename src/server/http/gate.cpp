#include "server/http/gate.h"

#include "core/error.h"
#include "server/http/request_reader.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>

namespace lca::server {
namespace {

constexpr std::string_view gate_all_methods = "GET, HEAD, POST, DELETE, OPTIONS";

std::string gate_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view gate_trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool method_listed(std::string_view list, std::string_view method) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (gate_trim(list.substr(0, comma)) == method) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

/// An address in one spelling, so that ::1 and 0:0::1 are the same; other text in lower case.
std::string host_normal(std::string_view host) {
  const std::string text = gate_lower(host);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  std::array<char, INET6_ADDRSTRLEN> out{};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) {
    const auto* v6 = reinterpret_cast<const in6_addr*>(bytes.data());
    if (IN6_IS_ADDR_V4MAPPED(v6)) {
      if (inet_ntop(AF_INET, bytes.data() + 12, out.data(), out.size())) return out.data();
    } else if (inet_ntop(AF_INET6, bytes.data(), out.data(), out.size())) {
      return out.data();
    }
  }
  return text;
}

bool host_among(std::string_view host, const std::vector<std::string>& names) {
  const std::string wanted = host_normal(host);
  return std::ranges::any_of(names, [&](const std::string& name) {
    const std::optional<Authority> allowed = authority_parse(name);
    return host_normal(allowed ? allowed->host : name) == wanted;
  });
}

bool host_allowed(const Authority& host, const GateRules& rules, const GateAddress& address) {
  if (host_is_loopback(host.host) || host_among(host.host, rules.allow_hosts)) return true;
  const std::string name = host_normal(host.host);
  return name == host_normal(address.bound) || name == host_normal(address.local);
}

/// A page may call the server that served it, or one that its own host is a name of.
bool origin_allowed(std::string_view origin, const std::optional<Authority>& host,
                    const GateRules& rules) {
  std::string_view default_port;
  std::string_view rest = origin;
  for (const auto& [scheme, port] :
       {std::pair{std::string_view("http://"), std::string_view("80")},
        std::pair{std::string_view("https://"), std::string_view("443")}}) {
    if (rest.size() > scheme.size() && text_same_letters(rest.substr(0, scheme.size()), scheme)) {
      rest.remove_prefix(scheme.size());
      default_port = port;
      break;
    }
  }
  if (default_port.empty()) return false;
  const std::optional<Authority> from = authority_parse(rest);
  if (!from) return false;
  if (host_among(from->host, rules.allow_hosts)) return true;
  if (!host || host_normal(from->host) != host_normal(host->host)) return false;
  const std::string_view from_port = from->port.empty() ? default_port : from->port;
  const std::string_view host_port = host->port.empty() ? default_port : host->port;
  return from_port == host_port;
}

/// The key of a request: Authorization: Bearer KEY, or x-api-key: KEY.
std::string_view key_presented(const HttpRequest& request) {
  std::string_view value = header_value(request, "authorization");
  constexpr std::string_view bearer = "bearer ";
  if (value.size() > bearer.size() && text_same_letters(value.substr(0, bearer.size()), bearer)) {
    return gate_trim(value.substr(bearer.size()));
  }
  return header_value(request, "x-api-key");
}

}  // namespace

std::optional<Authority> authority_parse(std::string_view text) {
  Authority parsed;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos || close == 1) return std::nullopt;
    parsed.host = gate_lower(text.substr(1, close - 1));
    text.remove_prefix(close + 1);
    if (!text.empty() && !text.starts_with(':')) return std::nullopt;
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    parsed.host = gate_lower(text.substr(0, colon));
    text.remove_prefix(colon);
  }
  if (!text.empty()) parsed.port = text.substr(1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (parsed.port.size() > 5 || !std::ranges::all_of(parsed.port, digit)) return std::nullopt;
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_' ||
           c == ':' || c == '%';
  };
  if (parsed.host.empty() || parsed.host.size() > 255 || !std::ranges::all_of(parsed.host, plain)) {
    return std::nullopt;
  }
  if (parsed.host.ends_with('.')) parsed.host.pop_back();  // the root's dot
  if (parsed.host.empty()) return std::nullopt;
  return parsed;
}

bool host_is_loopback(std::string_view host) {
  const std::string name = host_normal(host);
  if (name == "localhost" || name.ends_with(".localhost") || name == "::1") return true;
  in_addr v4{};
  return inet_pton(AF_INET, name.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

bool key_equal(std::string_view presented, std::string_view key) {
  // Every byte is looked at, whatever the first difference; a volatile sum keeps it so.
  volatile unsigned difference = presented.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < presented.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference = difference | static_cast<unsigned char>(presented[i] ^ other);
  }
  return difference == 0 && !key.empty();
}

std::vector<std::string> keys_collect(std::string_view value, const std::string& file,
                                      const char* environment) {
  std::vector<std::string> keys;
  const auto add = [&keys](std::string_view key) {
    const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
    if (!std::ranges::all_of(key, printable)) {
      fail_input("an API key may have printable ASCII characters without blanks only");
    }
    keys.emplace_back(key);
  };
  if (!value.empty()) add(value);
  if (!file.empty()) {
    std::ifstream in(file);
    if (!in) fail_not_found("cannot read the API keys of {}", file);
    const std::size_t before = keys.size();
    for (std::string line; std::getline(in, line);) {
      const std::string_view key = gate_trim(line);
      if (!key.empty()) add(key);
    }
    if (keys.size() == before) fail_input("{} holds no API key; write one on a line", file);
  }
  if (environment && !gate_trim(environment).empty()) add(gate_trim(environment));
  return keys;
}

void bind_check(std::string_view host, bool has_key, bool without_key) {
  if (host_is_loopback(host) || has_key || without_key) return;
  fail_input(
      "{} can be reached from other machines: set an API key, listen on 127.0.0.1, or allow "
      "everybody explicitly",
      host);
}

std::string gate_methods(const GateRules& rules, std::string_view path) {
  if (!rules.methods || path == "*") return std::string(gate_all_methods);
  std::string methods = rules.methods(path);
  if (methods.empty()) return methods;
  if (method_listed(methods, "GET") && !method_listed(methods, "HEAD")) methods += ", HEAD";
  if (!method_listed(methods, "OPTIONS")) methods += ", OPTIONS";
  return methods;
}

std::optional<Refusal> gate_check(const HttpRequest& request, int minor_version,
                                  const GateRules& rules, const GateAddress& address) {
  const std::size_t hosts = header_count(request, "host");
  if (hosts > 1 || (hosts == 0 && minor_version > 0)) {
    return Refusal{400, "an HTTP/1.1 request needs one Host header", "", false};
  }
  std::optional<Authority> host;
  if (hosts == 1) {
    host = authority_parse(header_value(request, "host"));
    if (!host) return Refusal{400, "malformed Host header", "", false};
    if (!host_allowed(*host, rules, address)) {
      return Refusal{403, "this server does not answer to the name in the Host header", "", false};
    }
  }
  if (header_count(request, "origin") > 1 ||
      (header_count(request, "origin") == 1 &&
       !origin_allowed(header_value(request, "origin"), host, rules))) {
    return Refusal{403, "requests from pages of another origin are not answered", "", false};
  }
  if (!method_listed(gate_all_methods, request.method)) {
    const std::string methods = gate_methods(rules, request.path);
    return Refusal{405, "this method is not supported",
                   methods.empty() ? std::string(gate_all_methods) : methods, false};
  }
  const bool unguarded = rules.unguarded && rules.unguarded(request.method, request.path);
  // A browser asks for permission without credentials, and the answer tells nothing.
  if (!rules.keys.empty() && !unguarded && request.method != "OPTIONS") {
    const std::string_view presented = key_presented(request);
    bool known = false;
    for (const std::string& key : rules.keys) known |= key_equal(presented, key);
    if (!known) {
      return Refusal{401,
                     presented.empty()
                         ? "an API key is needed: send Authorization: Bearer KEY or x-api-key: KEY"
                         : "the API key is not valid",
                     "", true};
    }
  }
  const std::string methods = gate_methods(rules, request.path);
  if (!methods.empty() && !method_listed(methods, request.method)) {
    return Refusal{405, "this path has other methods: " + methods, methods, false};
  }
  return std::nullopt;
}

}  // namespace lca::server
