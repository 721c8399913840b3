// Any bytes as what a client sends. Besides the sanitizers' checks: complete requests do not depend
// on where the bytes are split, limits hold, and what passes the gate is what the gate lets pass.
//
// The first byte chooses the split; the rest is the connection's input, several requests perhaps.

#include "fuzz/require.h"
#include "server/http/gate.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"

#include <lca/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using lca::fuzz::require;
using namespace lca::server;

constexpr ReadLimits fuzz_limits{512, 256};

struct Outcome {
  RequestReader::State state = RequestReader::State::headers;
  int status = 0;
  bool keep_alive = false;
  HttpRequest request;
  bool operator==(const Outcome& other) const {
    const bool same = state == other.state && status == other.status;
    return same && (state != RequestReader::State::done ||
                    (request.method == other.request.method && request.path == other.request.path &&
                     request.query == other.request.query && request.body == other.request.body &&
                     request.headers == other.request.headers && keep_alive == other.keep_alive));
  }
};

/// All requests of the input, which arrives in pieces of `piece` bytes.
std::vector<Outcome> requests_read(std::string_view input, std::size_t piece) {
  std::vector<Outcome> all;
  std::string held;
  std::optional<RequestReader> reader(std::in_place, fuzz_limits);
  for (std::size_t at = 0; at < input.size(); at += piece) {
    held += input.substr(at, piece);
    for (;;) {
      const std::size_t used = reader->feed(held);
      require(used <= held.size());
      held.erase(0, used);
      if (reader->state() < RequestReader::State::done) {
        if (used == 0) break;
        continue;
      }
      Outcome outcome{reader->state(), reader->status(), reader->keep_alive(), {}};
      outcome.request = std::move(reader->request());
      all.push_back(std::move(outcome));
      if (all.back().state == RequestReader::State::failed) return all;
      reader.emplace(fuzz_limits);
    }
  }
  return all;
}

void check_request(const Outcome& outcome) {
  if (outcome.state == RequestReader::State::failed) {
    require(outcome.status >= 400 && outcome.status < 600 && !outcome.keep_alive);
    require(status_reason(outcome.status) != "Unknown");
    return;
  }
  const HttpRequest& request = outcome.request;
  require(request.body.size() <= fuzz_limits.body_bytes);
  require(!request.method.empty() && (request.path.starts_with('/') || request.path == "*"));
  require(request.path.find('\0') == std::string::npos);

  GateRules rules;
  rules.keys = {"key"};
  rules.allow_hosts = {"allowed.example"};
  const GateAddress address{"127.0.0.1", "127.0.0.1"};
  if (!gate_check(request, 1, rules, address)) {
    require(header_count(request, "host") == 1);
    const std::optional<Authority> host = authority_parse(header_value(request, "host"));
    require(host && (host_is_loopback(host->host) || host->host == "allowed.example"));
    bool key = request.method == "OPTIONS";
    for (const auto& [name, value] : request.headers) {
      key = key || value.find("key") != std::string::npos;
    }
    require(key);
  }
  for (const auto& [name, value] : request.headers) {
    try {  // what a handler might repeat to the client
      const std::string head = response_head(200, {{name, value}}, {1, true, 0});
      require(std::ranges::count(head, '\n') == 6);
    } catch (const lca::Error& error) {
      lca::fuzz::check_message(error);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<Outcome> whole = requests_read(input, std::max<std::size_t>(input.size(), 1));
  std::vector<Outcome> pieces = requests_read(input, std::size_t{data[0]} % 31 + 1);
  for (const Outcome& outcome : whole) check_request(outcome);
  for (const Outcome& outcome : pieces) check_request(outcome);
  // How soon a bad request is refused, and by which of its faults, may depend on the pieces.
  for (std::vector<Outcome>* all : {&whole, &pieces}) {
    if (!all->empty() && all->back().state == RequestReader::State::failed) all->pop_back();
  }
  require(whole == pieces);
  return 0;
}
