#pragma once
/// The server's requests: from HTTP to jobs of a host and back to replies.
///
/// A coroutine per request on the HTTP server's threads; what may take long (large bodies, schemas,
/// tokenising a text, large replies) is done by a few threads of the service, and what reads files
/// of sessions by others.

#include "server/app/served_model.h"
#include "server/http/server.h"
#include "server/metrics/registry.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lca::server {

struct ServiceOptions {
  bool strict_model = false;     ///< other names than the model's are 404
  std::size_t max_body = 0;      ///< bytes of a request, for the page
  std::size_t most_aside = 256;  ///< requests that wait for a thread beside, of each kind; 429
  std::size_t most_aside_bytes = std::size_t{64} << 20;  ///< of their bodies
  bool log_prompts = false;
  std::function<void(std::string_view line)> log;  ///< of prompts; any thread
};

class Service {
 public:
  explicit Service(ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// From now on requests are served; before, they get 503. `compare` may be null: a second model
  /// for requests that name it. Call once.
  void open(std::unique_ptr<ServedModel> model, std::unique_ptr<ServedModel> compare);
  /// New requests get 503; those that run go on.
  void drain();
  /// Ends what runs, and forgets the models.
  void close();

  metrics::Registry& registry();
  /// Answers requests.
  Handler handler();
  /// Keys, methods and errors of the HTTP layer as this service has them; keys and hosts are the
  /// caller's.
  void configure(ServerOptions& options);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lca::server
