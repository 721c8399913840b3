// The routes beside text: tokens, sessions, caches, facts about the server.

#include "server/api/request_json.h"
#include "server/app/service_state.h"
#include "server/app/time_text.h"

#include <lca/error.h>
#include <lca/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

namespace lca::server {
namespace {

[[noreturn]] void not_there(std::string message) {
  ApiError error;
  error.status = 404;
  error.message = std::move(message);
  throw ApiException(std::move(error));
}

void name_check(const std::string& name) {
  if (!SessionStore::is_name(name)) not_there("there is no session of that name");
}

/// What is only counted or spelled has no context that bounds it: more than what a context may hold
/// is of no use, and takes time and memory.
constexpr std::size_t kMostText = std::size_t{4} << 20;
constexpr std::size_t kMostTextOfToken = 16;

std::size_t most_text(ServedModel& model) {
  const auto context = static_cast<std::size_t>(model.host().context_tokens());
  return std::max(kMostText, kMostTextOfToken * context);
}

void text_check(const HttpRequest& request, ServedModel& model) {
  const std::size_t most = most_text(model);
  if (request.body.size() <= most) return;
  ApiError error;
  error.status = 413;
  error.message = fmt::format("the body has {} bytes; {} takes at most {}", request.body.size(),
                              request.path, most);
  throw ApiException(std::move(error));
}

struct TextRange {
  std::int64_t first = 0, last = 0;
};

constexpr std::int64_t kMostTokens = 4096;  // of a cache, shown as text

/// `text=FIRST-LAST` of a query; none where it is not asked for.
std::optional<TextRange> text_range(std::string_view query) {
  constexpr std::string_view kKey = "text=";
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (!part.starts_with(kKey)) continue;
    const std::string_view value = part.substr(kKey.size());
    TextRange range;
    const char* const stop = value.data() + value.size();
    std::from_chars_result read = std::from_chars(value.data(), stop, range.first);
    if (read.ec == std::errc() && read.ptr != stop && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, stop, range.last);
    } else {
      read.ec = std::errc::invalid_argument;
    }
    if (read.ec != std::errc() || read.ptr != stop || range.first < 0 || range.last < range.first ||
        range.last - range.first >= kMostTokens) {
      refuse("text", "text is FIRST-LAST, two positions with at most {} tokens", kMostTokens);
    }
    return range;
  }
  return std::nullopt;
}

/// A string for each token. A character of several tokens stands at the last of them.
Json token_strings(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  Json strings = Json::array();
  StreamDecoder decoder(tokenizer, true);
  for (const std::int32_t id : ids) {
    strings.push_back(id < tokenizer.size() ? decoder.push(id) : std::string());
  }
  if (!strings.empty()) {
    strings.back() = strings.back().get<std::string>() + decoder.finish();
  }
  return strings;
}

Json facts_json(const SessionFacts& facts) {
  return {{"tokens", facts.tokens},
          {"groups", facts.groups},
          {"window", facts.window},
          {"sink", facts.sink},
          {"shared_bytes", facts.shared_bytes},
          {"bytes", facts.bytes},
          {"dense_bytes", facts.dense_bytes}};
}

/// Tokens of a condensed group, the smallest of all layers, since facts are of the layer with the
/// most groups; 0 for a method without.
std::int64_t group_size(const ServedModel& model) {
  std::int64_t smallest = 0;
  for (const Settings& layer : model.settings()) {
    if (layer.method != MethodKind::lca) continue;
    smallest = smallest == 0 ? layer.group : std::min(smallest, layer.group);
  }
  return smallest;
}

}  // namespace

SessionStore& Service::State::store() {
  SessionStore* found = model->host().sessions();
  if (found == nullptr) not_there("this server keeps no sessions: start it with a folder for them");
  return *found;
}

std::string Service::State::body_count(const HttpRequest& request) {
  text_check(request, *model);
  CountRequest asked = parse_count_tokens(json_parse_body(request.body));
  ServedModel& chosen = served(asked.model);
  chosen.prepare(asked.job);
  return count_body(std::ssize(chosen.host().prompt_tokens(asked.job)));
}

std::string Service::State::body_tokenize(const HttpRequest& request) {
  text_check(request, *model);
  const TokenizeRequest asked = parse_tokenize(json_parse_body(request.body));
  if (!model->reads_text()) {
    refuse("content", "model {} has random weights and no tokenizer", model->name());
  }
  const Tokenizer& tokenizer = model->tokenizer();
  const std::vector<std::int32_t> ids =
      tokenizer.encode(asked.content, {asked.add_special, asked.parse_special});
  return tokenize_body(asked, ids, [&](std::int32_t id) { return tokenizer.bytes(id); });
}

std::string Service::State::body_detokenize(const HttpRequest& request) {
  text_check(request, *model);
  const std::vector<std::int32_t> ids = parse_detokenize(json_parse_body(request.body));
  const Tokenizer& tokenizer = model->tokenizer();
  const std::size_t most = most_text(*model);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokenizer.size()) {
      refuse(json_at("tokens", i), "there is no token {}; the vocabulary has {}", ids[i],
             tokenizer.size());
    }
    bytes += tokenizer.bytes(ids[i]).size();
    if (bytes > most) refuse("tokens", "the text has more than {} bytes", most);
  }
  return detokenize_body(tokenizer.decode(ids, true));
}

std::string Service::State::body_sessions() {
  Json data = Json::array();
  for (const SessionRow& row : store().list()) {
    data.push_back(
        {{"name", row.name}, {"tokens", row.tokens}, {"bytes", row.bytes}, {"saved", row.saved}});
  }
  return json_text({{"data", std::move(data)}});
}

std::string Service::State::body_fork(const ForkRequest& asked, const std::string& name) {
  name_check(name);
  store().fork(name, asked.to, asked.at_message, model->host().turns());
  return json_text({{"name", asked.to}});
}

std::string Service::State::body_delete(const std::string& name) {
  name_check(name);
  if (!store().remove(name)) not_there("there is no session of that name");
  return json_text({{"deleted", true}, {"name", name}});
}

std::string Service::State::body_messages(const std::string& name) {
  name_check(name);
  const std::optional<Json> known = store().messages(name);
  if (!known) not_there("the conversation of this session is not known");
  return json_text(*known);
}

std::string Service::State::body_cache(const HttpRequest& request, const std::string& name) {
  name_check(name);
  const std::optional<CacheView> view = model->host().cache_view(name);
  if (!view) not_there("there is no session of that name");
  Json body = facts_json(*view);
  if (const std::optional<TextRange> asked = text_range(request.query)) {
    const std::optional<TokenRange> found =
        model->host().cache_text(name, asked->first, asked->last);
    if (!found) not_there("there is no session of that name");
    body["text"] = {{"first", found->first},
                    {"tokens", token_strings(model->tokenizer(), found->ids)}};
  }
  return json_text(body);
}

std::string Service::State::body_models(Dialect dialect) const {
  std::vector<ModelEntry> entries;
  for (ServedModel* each : {model.get(), compare.get()}) {
    if (each != nullptr) entries.push_back({each->name(), created, each->host().context_tokens()});
  }
  return models_body(dialect, entries);
}

std::string Service::State::body_model(Dialect dialect, const std::string& name) const {
  for (ServedModel* each : {model.get(), compare.get()}) {
    if (each != nullptr && each->name() == name) {
      return model_body(dialect, {each->name(), created, each->host().context_tokens()});
    }
  }
  not_there(fmt::format("there is no model {} here; {} is served", json_shown(Json(name)),
                        model->name()));
}

std::string Service::State::body_page_config() const {
  Json body = {{"model", model->name()},
               {"context", model->host().context_tokens()},
               {"sessions", model->host().sessions() != nullptr},
               {"max_body", options.max_body},
               {"group", group_size(*model)},
               {"continues", model->host().continues()},
               {"compare", nullptr}};
  if (compare) body["compare"] = {{"model", compare->name()}};
  return json_text(body);
}

std::string Service::State::body_server_info() const {
  const HostCounts counts = model->host().counts();
  return json_text({{"version", version()},
                    {"model_path", model->model().info().path},
                    {"served_model_name", model->name()},
                    {"context_length", model->host().context_tokens()},
                    {"max_total_num_tokens", model->host().context_tokens()},
                    {"device", model->model().info().device},
                    {"running", counts.running},
                    {"queued", counts.queued},
                    {"memory_limit", counts.engine.memory_limit}});
}

std::string Service::State::body_model_info() const {
  const ModelInfo& info = model->model().info();
  return json_text({{"model_path", info.path},
                    {"tokenizer_path", info.path},
                    {"is_generation", true},
                    {"served_model_name", model->name()},
                    {"architecture", info.architecture},
                    {"layers", info.layers},
                    {"parameters", info.parameters},
                    {"vocabulary", info.vocabulary},
                    {"trained_context", info.context},
                    {"context", model->host().context_tokens()}});
}

// --- metrics ------------------------------------------------------------------------------------

void Service::State::metrics_add() {
  const std::weak_ptr<State> weak = weak_from_this();
  const auto read = [&](const char* name, const char* help, double (*value)(const HostCounts&)) {
    registry.gauge_read(name, help, [weak, value] {
      const std::shared_ptr<State> state = weak.lock();
      return state && state->opened ? value(state->model->host().counts()) : 0.0;
    });
  };
  read("lca_requests_queued", "Requests that wait",
       [](const HostCounts& c) { return double(c.queued); });
  read("lca_requests_running", "Requests that are being answered",
       [](const HostCounts& c) { return double(c.running); });
  read("lca_cache_bytes", "Bytes of kept beginnings of prompts",
       [](const HostCounts& c) { return double(c.prefix.bytes); });
  read("lca_cache_dense_bytes", "Bytes that a dense cache would take for the same",
       [](const HostCounts& c) { return double(c.prefix.dense_bytes); });
  read("lca_cache_entries", "Kept beginnings of prompts",
       [](const HostCounts& c) { return double(c.prefix.entries); });
  read("lca_memory_bytes", "Bytes of running requests, activations and scratch",
       [](const HostCounts& c) { return double(c.engine.memory_used); });
  read("lca_memory_limit_bytes", "Bytes that running requests may reserve",
       [](const HostCounts& c) { return double(c.engine.memory_limit); });
  read("lca_prefill_tokens_per_second", "Speed of reading prompts, lately",
       [](const HostCounts& c) { return c.prefill_rate; });
}

std::string Service::State::body_metrics() const {
  std::string text = registry.text();
  if (!opened) return text;
  const HostCounts counts = model->host().counts();
  const std::tuple<const char*, const char*, std::int64_t> totals[] = {
      {"lca_requests_finished_total", "Requests that were answered", counts.finished},
      {"lca_requests_failed_total", "Requests that failed", counts.failed},
      {"lca_requests_cancelled_total", "Requests whose clients left", counts.cancelled},
      {"lca_requests_refused_total", "Requests refused for want of room", counts.refused},
      {"lca_prompt_tokens_total", "Tokens of prompts", counts.prompt_tokens},
      {"lca_cached_tokens_total", "Tokens of prompts that were not read again",
       counts.cached_tokens},
      {"lca_reply_tokens_total", "Tokens of replies", counts.reply_tokens}};
  for (const auto& [name, help, value] : totals) text += counter_text(name, help, value);
  text += histogram_text("lca_time_to_first_token_seconds",
                         "From a request to the first token of its reply", counts.first_token);
  text += histogram_text("lca_time_between_tokens_seconds", "Between two tokens of a reply",
                         counts.between_tokens);
  return text;
}

}  // namespace lca::server
