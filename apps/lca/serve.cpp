/// `lca serve`: a model over HTTP.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "model_flags.h"
#include "models/model_state.h"
#include "server/app/service.h"
#include "server/http/request_log.h"
#include "server/http/server.h"
#include "terminal.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <thread>

namespace lca::cli {
namespace {

constexpr const char* kServeExamples =
    "OpenAI's and Anthropic's clients work unchanged; a page to chat with is at /.\n"
    "The key may also be in LCA_API_KEY. Beyond this machine (--host) a key is asked for.\n"
    "\n"
    "Examples:\n"
    "  lca serve smollm2\n"
    "  lca serve smollm2 --sessions talks --compare\n"
    "  lca serve model.gguf --host 0.0.0.0 --api-key-file key.txt --allow-host llm.example.org\n"
    "  lca serve --random deepseek-v2-lite --device cuda    # prompts of token ids; to measure "
    "with\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
    "\"content\": \"Hello\"}]}'";

/// Of a session: each holds a window of exact tokens, in memory and on disk.
constexpr std::size_t kMarks = 3;

/// With --compare the dense instance takes one part in so many of the memory: it answers the page's
/// second column, the other instance everybody.
constexpr std::size_t kCompareParts = 4;

struct ServeFlags {
  ModelFlags model;
  TextFlag host, port, key, key_file, sessions, context, max_reply, queue, queue_bytes, prefix,
      prefix_memory, memory, batch, max_body, name, log, drain, progress;
  std::vector<std::string> allow_hosts;
  bool no_key = false, strict = false, compare = false, log_prompts = false;
};

void flags_add(CLI::App& app, ServeFlags& flags) {
  flags.host.add(app, "--host", "ADDRESS", "address to listen on", "127.0.0.1");
  flags.port.add(app, "--port", "N", "its port; 0: a free one", "8080");
  flags.key.add(app, "--api-key", "KEY", "key that requests must carry");
  flags.key_file.add(app, "--api-key-file", "FILE", "the same from a file, one key a line");
  app.add_flag("--no-key", flags.no_key, "listen beyond this machine without a key");
  app.add_option("--allow-host", flags.allow_hosts, "a name this server answers to; repeatable")
      ->type_name("NAME");
  flags.sessions.add(app, "--sessions", "DIR", "folder of named sessions, which survive restarts");
  flags.context.add(app, "--context", "N",
                    "most tokens of prompt and reply (default: what the model was trained for)");
  flags.max_reply.add(app, "--max-reply", "N", "most tokens of a reply");
  flags.queue.add(app, "--queue", "N", "most requests that wait; more get 429", "256");
  flags.queue_bytes.add(app, "--queue-bytes", "SIZE", "most bytes of them", "64MiB");
  flags.prefix.add(app, "--prefix-cache", "on|off",
                   "reuse of what earlier requests had read; off: replies depend on the request "
                   "and its seed alone",
                   "on");
  flags.prefix_memory.add(app, "--prefix-memory", "SIZE",
                          "memory for it (default: a quarter of --memory)");
  flags.memory.add(app, "--memory", "SIZE",
                   "memory for requests and what is reused (default: what is free)");
  flags.batch.add(app, "--batch", "N", "requests that run together (default: by the device)");
  flags.max_body.add(app, "--max-body", "SIZE", "largest body of a request", "64MiB");
  flags.name.add(app, "--name", "NAME", "the model's name in replies (default: MODEL's)");
  app.add_flag("--strict-model", flags.strict, "404 for requests that name another model");
  app.add_flag("--compare", flags.compare,
               "a second, dense instance without adapter, for the page's two columns; it takes a "
               "quarter of --memory and --prefix-memory");
  flags.log.add(app, "--log", "FILE", "where requests are logged (default: standard error)");
  app.add_flag("--log-prompts", flags.log_prompts, "log bodies of requests too");
  flags.drain.add(app, "--drain", "SECONDS", "how long a stop waits for running requests", "30");
  flags.progress.add(
      app, "--progress", "SECONDS",
      "between two comments of a stream on how far its prompt is read; 0: every step", "0.25");
  flags.model.add_for_measuring(app);
}

std::int64_t optional_count(const TextFlag& flag, const char* name, std::int64_t minimum) {
  return flag.given() ? count_parse(name, flag.text, minimum) : 0;
}

std::size_t optional_size(const TextFlag& flag, const char* name) {
  return flag.given() ? static_cast<std::size_t>(size_parse(name, flag.text)) : 0;
}

bool prefix_read(const ServeFlags& flags) {
  constexpr std::string_view kChoices[] = {"on", "off"};
  return choice_parse("--prefix-cache", flags.prefix.text, kChoices) == 0;
}

server::HostOptions host_options(const ServeFlags& flags) {
  server::HostOptions options;
  options.context = optional_count(flags.context, "--context", 2);
  options.most_reply = optional_count(flags.max_reply, "--max-reply", 1);
  options.most_queued = count_parse("--queue", flags.queue.text, 1, 1 << 20);
  options.most_queued_bytes =
      static_cast<std::size_t>(size_parse("--queue-bytes", flags.queue_bytes.text));
  options.prefix_cache = prefix_read(flags);
  options.prefix_bytes = optional_size(flags.prefix_memory, "--prefix-memory");
  options.sessions = flags.sessions.text;
  options.progress_seconds = number_parse("--progress", flags.progress.text, 0, 5);
  options.engine.memory_bytes = optional_size(flags.memory, "--memory");
  options.engine.most_sessions = optional_count(flags.batch, "--batch", 1);
  return options;
}

server::ServerOptions server_options(const ServeFlags& flags) {
  server::ServerOptions options;
  options.host = flags.host.text;
  options.port = static_cast<std::uint16_t>(count_parse("--port", flags.port.text, 0, 65535));
  options.without_key = flags.no_key;
  if (flags.key.given() && flags.key.text.empty()) {
    fail_input("--api-key is empty; give a key, or leave the flag out");
  }
  options.gate.keys =
      server::keys_collect(flags.key.text, flags.key_file.text, std::getenv("LCA_API_KEY"));
  options.gate.allow_hosts = flags.allow_hosts;
  options.limits.body_bytes =
      static_cast<std::size_t>(size_parse("--max-body", flags.max_body.text));
  options.drain_timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(1000 * number_parse("--drain", flags.drain.text, 0, 86400)));
  options.signals = true;
  return options;
}

std::shared_ptr<spdlog::logger> logger_make(const ServeFlags& flags) {
  spdlog::sink_ptr sink;
  if (flags.log.given()) {
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(flags.log.text);
    } catch (const spdlog::spdlog_ex&) {
      fail_input("--log: {} cannot be written", path_printable(flags.log.text));
    }
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  auto logger = std::make_shared<spdlog::logger>("lca", std::move(sink));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
  logger->flush_on(spdlog::level::info);
  return logger;
}

/// The model's name in replies: its own, or the last part of its path.
std::string served_name(const ServeFlags& flags) {
  if (flags.name.given()) return flags.name.text;
  if (!flags.model.random().empty()) return flags.model.random();
  const std::string& text = flags.model.text();
  if (text.find('/') == std::string::npos && !text.ends_with(".gguf")) return text;
  std::filesystem::path path = flags.model.path();
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

/// Both instances together take what one would take alone.
void memory_divide(server::HostOptions& options, server::HostOptions& dense, const Model& model) {
  std::size_t& all = options.engine.memory_bytes;
  if (all == 0) all = model.state().backend->memory_free();
  dense.engine.memory_bytes = all / kCompareParts;
  dense.prefix_bytes = options.prefix_bytes / kCompareParts;
  all -= dense.engine.memory_bytes;
  options.prefix_bytes -= dense.prefix_bytes;
}

void models_open(const ServeFlags& flags, server::Service& service) {
  const server::HostOptions wanted = host_options(flags);
  const std::string name = served_name(flags);
  const std::shared_ptr<const Model> model = flags.model.load();
  server::HostOptions options = wanted;
  options.session = flags.model.session_options(*model);
  options.session.marks = kMarks;
  std::unique_ptr<server::ServedModel> compare;
  if (flags.compare) {
    server::HostOptions dense = wanted;
    const std::shared_ptr<const Model> base = flags.model.load_base();
    dense.sessions.clear();
    dense.session = flags.model.session_options(*base);
    for (Settings& layer : dense.session.settings) {
      layer.method = MethodKind::dense;
      layer.positions = Positions::token;
    }
    memory_divide(options, dense, *model);
    compare = std::make_unique<server::ServedModel>(name + "-dense", base, flags.model.threads(),
                                                    std::move(dense));
  }
  service.open(
      std::make_unique<server::ServedModel>(name, model, flags.model.threads(), std::move(options)),
      std::move(compare));
  print_note(fmt::format("lca serve: {} is ready", name));
}

void run(const ServeFlags& flags) {
  flags.model.check();
  const server::HostOptions host_wanted = host_options(flags);
  server::ServerOptions options = server_options(flags);
  if (flags.model.random().empty()) flags.model.path();
  const std::shared_ptr<spdlog::logger> logger = logger_make(flags);
  server::ServiceOptions wanted;
  wanted.strict_model = flags.strict;
  wanted.max_body = options.limits.body_bytes;
  wanted.most_aside = static_cast<std::size_t>(host_wanted.most_queued);
  wanted.most_aside_bytes = host_wanted.most_queued_bytes;
  wanted.log_prompts = flags.log_prompts;
  wanted.log = [logger](std::string_view line) { logger->info(line); };
  server::Service service(std::move(wanted));
  service.configure(options);
  options.log = server::request_log(logger);
  const std::string host = options.host;
  server::Server server(std::move(options), service.handler());
  print_note(fmt::format("lca serve: {} at http://{}:{}", served_name(flags),
                         host.find(':') == std::string::npos ? host : fmt::format("[{}]", host),
                         server.port()));

  // Loaded beside: who asks meanwhile is told so.
  std::exception_ptr failure;
  std::atomic<bool> loaded = false;
  std::thread loader([&] {
    try {
      models_open(flags, service);
    } catch (...) {
      failure = std::current_exception();
    }
    loaded = true;
    if (failure) server.stop();  // only now: run() returns at once
  });
  server.run();
  if (!loaded) std::_Exit(0);  // stopped while loading: there is nothing to save
  loader.join();
  service.close();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Command serve_command(CLI::App& parent) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* app = parent.add_subcommand("serve", "Serve a model over HTTP");
  app->footer(kServeExamples);
  flags_add(*app, *flags);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
