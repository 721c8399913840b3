/// `lca run`: asks a model one question, with or without a document.

#include "attention/settings_kind.h"
#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "session_keeper.h"
#include "terminal.h"
#include "trained_length.h"

#include <lca/chat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRunExamples =
    "Settings are those the model or its adapter was trained with, else preset training-free, "
    "which\n"
    "keeps the gist of what is outside the window but not its exact details.\n"
    "\n"
    "With --session the conversation is kept in a file. If the file exists, -p is the next chat\n"
    "turn, --file starts a new prompt that reuses what it shares with the session, and with\n"
    "neither of them the model continues its reply.\n"
    "\n"
    "Examples:\n"
    "  lca run smollm2 -p \"Why is the sky blue?\"\n"
    "  lca run smollm2 --file report.txt -p \"What does it recommend?\" -n 200\n"
    "  cat report.txt | lca run smollm2 --file - -p \"Sum it up.\" --method dense --json\n"
    "  lca run smollm2 --session talk.session -p \"Who was Ada Lovelace?\" -n 64\n"
    "  lca run smollm2 --session talk.session -n 64\n"
    "  lca run model.gguf --raw -p \"Once upon a time\" --temperature 0.8 --top-p 0.95 --seed 7";

struct RunFlags {
  ModelFlags model;
  ReplyFlags reply;
  SessionFlag session;
  TextFlag prompt, file, system, format;
  bool raw = false;
  bool json = false;
};

/// The user's message: the document, a blank line, the question.
struct Message {
  std::string document;  // with its blank line, where a question follows
  std::string text;      // all of it
};

Message message_read(const RunFlags& flags) {
  Message message;
  if (flags.file.given()) message.document = text_read("--file", flags.file.text);
  message.text = message.document;
  if (flags.prompt.given()) {
    const std::string& text = message.text;
    if (!text.empty()) message.text += text.ends_with('\n') ? "\n" : "\n\n";
    message.text += flags.prompt.text;
  }
  if (message.text.empty()) fail_input("the prompt is empty: there is nothing to answer");
  return message;
}

/// A new conversation with the user's message `text`.
std::vector<std::int32_t> prompt_ids(const RunFlags& flags, const Tokenizer& tokenizer,
                                     const ChatTemplate* format, const std::string& text) {
  if (format == nullptr) return tokenizer.encode(text, {.add_special = true});
  std::vector<ChatMessage> messages;
  if (flags.system.given()) messages.push_back({ChatMessage::Role::system, flags.system.text});
  messages.push_back({ChatMessage::Role::user, text});
  return format->prompt(messages);
}

/// How many of the prompt's tokens belong to the document whatever question follows: those that the
/// prompt of the document alone begins with as well.
std::size_t document_tokens(const RunFlags& flags, const Tokenizer& tokenizer,
                            const ChatTemplate* format, const Message& message,
                            std::span<const std::int32_t> prompt) {
  if (message.document.empty() || !flags.prompt.given()) return 0;
  const std::vector<std::int32_t> alone = prompt_ids(flags, tokenizer, format, message.document);
  return static_cast<std::size_t>(std::ranges::mismatch(prompt, alone).in1 - prompt.begin());
}

/// The tokens that a continued session reads next: its pending tokens, and the next chat turn.
std::vector<std::int32_t> next_ids(const RunFlags& flags, const Tokenizer& tokenizer,
                                   const ChatTemplate* format, const Session& session) {
  std::vector<std::int32_t> ids = session.pending();
  if (!flags.prompt.given()) return ids;
  if (flags.prompt.text.empty()) fail_input("the prompt is empty: there is nothing to answer");
  const std::vector<std::int32_t> next =
      format != nullptr ? format->next_turn(flags.prompt.text, false)
                        : tokenizer.encode(flags.prompt.text, {.add_special = false});
  ids.insert(ids.end(), next.begin(), next.end());
  return ids;
}

Json reply_json(const Session& session, const Reply& reply, double load_seconds,
                const std::vector<std::string>& warnings, const SessionKeeper& keeper) {
  const auto rate = [](double value) { return value > 0 ? Json(value) : Json(); };
  const std::string& adapter = session.model().info().adapter;
  Json json = {{"model", session.model().info().path},
               {"adapter", adapter.empty() ? Json() : Json(adapter)},
               {"prompt_tokens", reply.reused_tokens + reply.prompt_tokens},
               {"reused_tokens", reply.reused_tokens},
               {"text", reply.generated.text},
               {"tokens", reply.generated.tokens.size()},
               {"ids", reply.generated.tokens},
               {"stop_reason", stop_reason_name(reply.generated.reason)},
               {"load_s", load_seconds},
               {"first_token_s", rate(reply.first_seconds)},
               {"prefill_tokens_per_s", rate(reply.prefill_rate())},
               {"decode_tokens_per_s", rate(reply.decode_rate())},
               {"cache_bytes", reply.cache_bytes},
               {"dense_cache_bytes", reply.dense_bytes},
               {"settings", settings_json(session.settings())},
               {"warnings", warnings}};
  json["device"] = session.model().info().device;
  if (reply.device_bytes > 0) json["device_peak_bytes"] = reply.device_bytes;
  if (keeper.given()) {
    json["session"] = {{"path", keeper.path()},
                       {"saved", keeper.error().empty()},
                       {"tokens", session.length()},
                       {"pending_tokens", session.pending().size()},
                       {"bytes", keeper.bytes()}};
  }
  return json;
}

void check(const RunFlags& flags) {
  flags.model.check();
  if (flags.raw && (flags.system.given() || flags.format.given())) {
    fail_input("--raw takes the text as it is; leave out {}",
               flags.system.given() ? "--system" : "--chat-format");
  }
  if (flags.format.given()) chat_format_parse(flags.format.text);
  flags.model.path();
}

/// Checks of flags and session that do not need the model.
void check(const RunFlags& flags, const SessionKeeper& keeper) {
  if (!flags.prompt.given() && !flags.file.given() && !keeper.begun()) {
    fail_input(
        "nothing to answer; give a question with -p TEXT, a document with --file DOC (- reads "
        "standard input), or both");
  }
  if (!flags.file.given()) system_check(flags.system, keeper);
}

/// Reads and answers, and saves the session in any case.
Reply reply_kept(Session& session, SessionKeeper& keeper, std::span<const std::int32_t> prompt,
                 std::size_t marked, const GenerateOptions& options,
                 const std::function<void(std::string_view)>& on_text) {
  const InterruptWatch interrupts;  // from the first token to the end of saving
  try {
    Reply reply = reply_make(session, prompt, options, "reading", on_text, marked);
    session.set_pending({prompt.begin() + reply.read_tokens, prompt.end()});
    keeper.try_save(session);
    return reply;
  } catch (const OutputClosed&) {
    // The output is closed, but the prompt has been read and the session may be continued later.
    session.set_pending({});
    keeper.try_save(session);
    throw;
  }
}

/// Whether a session can be marked: later prompts must not change what was condensed.
bool can_mark(const Session& session) {
  return std::ranges::none_of(session.settings(), summary_waits);
}

void run(const RunFlags& flags) {
  check(flags);
  GenerateOptions options = flags.reply.read({});  // check flags before slow work
  SessionKeeper keeper(flags.session);
  check(flags, keeper);
  const bool from_start = flags.file.given() || !keeper.begun();
  const Message message = from_start ? message_read(flags) : Message{};

  const Stopwatch load_watch;
  const std::shared_ptr<const Model> model = flags.model.load(keeper.settings());
  const Tokenizer& tokenizer = model->tokenizer();
  std::vector<std::string> warnings = tokenizer_warn(tokenizer);
  std::optional<ChatTemplate> chat;
  if (!flags.raw) chat = chat_template(*model, flags.format);
  const ChatTemplate* format = chat ? &*chat : nullptr;
  options = flags.reply.read(reply_end_tokens(*model, format));
  const double load_seconds = load_watch.seconds();

  Context context(flags.model.threads());
  Session session = keeper.open(model, context, flags.model.session_options(*model));
  std::vector<std::int32_t> prompt;
  std::size_t marked = 0;
  if (from_start) {
    prompt = prompt_ids(flags, tokenizer, format, message.text);
    check_ids(prompt, model->info());
    if (keeper.given() && can_mark(session)) {
      marked = document_tokens(flags, tokenizer, format, message, prompt);
    }
    const std::int64_t reused = keeper.begun() ? session.keep_prefix(prompt) : 0;
    prompt.erase(prompt.begin(), prompt.begin() + reused);
    marked -= std::min(marked, static_cast<std::size_t>(reused));
  } else {
    prompt = next_ids(flags, tokenizer, format, session);
  }
  if (prompt.empty() && session.logits().empty()) {
    fail_input("{}: there is nothing to continue; give the next turn with -p TEXT",
               path_printable(keeper.path()));
  }
  options.open = keeper.given();
  options.resumed = prompt.empty() && !from_start;
  check_ids(prompt, model->info());
  const std::int64_t count = session.length() + static_cast<std::int64_t>(prompt.size());
  session_require(*model, {session.settings(), flags.model.session_options(*model).chunk},
                  count + options.max_tokens, context.threads(),
                  fmt::format("a prompt of {} tokens and {} new ones", count, options.max_tokens));

  ContextWarning warning(model->info(), session.settings());
  warning.check(count);
  TextPrinter printer;
  const Reply reply =
      reply_kept(session, keeper, prompt, marked, options, [&](std::string_view text) {
        if (!flags.json) printer(text);
      });
  printer.end_line();
  warning.check(session.length());
  if (flags.json) {
    warnings.insert(warnings.end(), warning.given().begin(), warning.given().end());
    print_json(reply_json(session, reply, load_seconds, warnings, keeper));
  } else {
    std::string line = reply_summary(reply);
    if (keeper.given() && keeper.error().empty()) {
      line += fmt::format("; {} tokens saved in {} ({})", session.length(),
                          path_printable(keeper.path()),
                          bytes_text(static_cast<double>(keeper.bytes())));
    }
    print_note(line);
  }
  keeper.require_saved();
}

}  // namespace

Command run_command(CLI::App& parent) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* app = parent.add_subcommand("run", "Ask a model one question, about a document or not");
  app->footer(kRunExamples);
  flags->prompt.add(*app, "-p,--prompt", "TEXT", "the question, or what to do");
  flags->file.add(*app, "--file", "DOC", "a text to put before it; - reads standard input");
  flags->system.add(*app, "--system", "TEXT", "the system message");
  flags->format.add(*app, "--chat-format", chat_format_placeholder(),
                    "format of chat turns; the model's own unless given");
  flags->session.add(*app);
  app->add_flag("--raw", flags->raw, "no chat turns: the model continues the text as it is");
  app->add_flag("--json", flags->json, "print JSON, at the end");
  flags->model.add(*app, "auto");
  flags->reply.add(*app, "256");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
