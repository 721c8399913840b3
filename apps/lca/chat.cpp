/// `lca chat`: a conversation in chat turns.

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

#include <iostream>
#include <memory>
#include <optional>

namespace lca::cli {
namespace {

constexpr const char* kChatExamples =
    "At the prompt: /help, /stats, /reset, /exit. Ctrl-C ends a reply, or at the prompt the "
    "chat.\n"
    "With --session the conversation is saved after every turn, and continued if the file exists.\n"
    "\n"
    "Examples:\n"
    "  lca chat smollm2\n"
    "  lca chat smollm2 --system \"Answer in one sentence.\" --temperature 0.7 --seed 1\n"
    "  lca chat smollm2 --session talk.session\n"
    "  printf 'Hello!\\nWho are you?\\n' | lca chat smollm2 --method dense";

constexpr std::string_view kHelp =
    "/stats   length and memory of the conversation\n"
    "/reset   start over\n"
    "/exit    quit (as do /quit and the end of input)\n"
    "Ctrl-C   ends a reply; at the prompt it quits\n";

struct ChatFlags {
  ModelFlags model;
  ReplyFlags reply;
  SessionFlag session;
  TextFlag system, format;
};

/// The next line that was typed; nothing at the end of input.
std::optional<std::string> line_read() {
  if (stdin_is_terminal()) {
    print("> ");
    interrupt_line_open(true);
  }
  std::string line;
  const bool read = static_cast<bool>(std::getline(std::cin, line));
  interrupt_line_open(false);
  if (read) return line;
  if (stdin_is_terminal()) print("\n");
  return std::nullopt;
}

class Chat {
 public:
  Chat(const ChatFlags& flags, std::shared_ptr<const Model> model, ChatTemplate format,
       GenerateOptions options, SessionKeeper& keeper)
      : flags_(flags),
        model_(std::move(model)),
        format_(std::move(format)),
        options_(std::move(options)),
        keeper_(keeper),
        context_(flags.model.threads()),
        session_options_(flags.model.session_options(*model_)),
        session_(keeper.open(model_, context_, session_options_)),
        warning_(model_->info(), session_.settings()) {
    session_options_.settings = session_.settings();
    if (keeper_.begun()) {
      print_note(fmt::format("{}: continuing a conversation of {} tokens",
                             path_printable(keeper_.path()), session_.length()));
    }
  }

  void run() {
    while (const std::optional<std::string> line = line_read()) {
      if (line->empty()) continue;
      if (*line == "/exit" || *line == "/quit") break;
      if (line->starts_with("/")) {
        command(*line);
      } else {
        turn(*line);
      }
    }
    if (unsaved_) keeper_.save(session_);
  }

 private:
  void command(std::string_view line) {
    if (line == "/help") {
      print(kHelp);
    } else if (line == "/stats") {
      print_stats();
    } else if (line == "/reset") {
      session_ = Session(model_, context_, session_options_);
      unsaved_ = keeper_.given();
      print_note("the conversation is reset");
    } else {
      print_note(fmt::format("unknown command {}; the commands are /help, /stats, /reset, /exit",
                             text_printable(line)));
    }
  }

  void print_stats() const {
    const auto cache = static_cast<double>(session_.cache_bytes());
    const auto dense = static_cast<double>(session_.dense_bytes());
    print(fmt::format("{} tokens; {}; cache {}, dense would need {}\n{}\n", session_.length(),
                      trained_text(model_->info().context, session_.settings()), bytes_text(cache),
                      bytes_text(dense), settings_line(session_.settings())));
  }

  /// The tokens to read so that the model can answer `text`.
  std::vector<std::int32_t> turn_ids(const std::string& text) const {
    if (session_.length() == 0 && session_.pending().empty()) {
      std::vector<ChatMessage> messages;
      if (flags_.system.given()) {
        messages.push_back({ChatMessage::Role::system, flags_.system.text});
      }
      messages.push_back({ChatMessage::Role::user, text});
      return format_.prompt(messages);
    }
    std::vector<std::int32_t> ids = session_.pending();
    const std::vector<std::int32_t> next = format_.next_turn(text, false);
    ids.insert(ids.end(), next.begin(), next.end());
    return ids;
  }

  void turn(const std::string& text) {
    const std::vector<std::int32_t> ids = turn_ids(text);
    check_ids(ids, model_->info());
    const std::int64_t length = session_.length() + static_cast<std::int64_t>(ids.size());
    session_require(
        *model_, session_options_, length + options_.max_tokens, context_.threads(),
        fmt::format("a conversation of {} tokens and {} new ones", length, options_.max_tokens));
    warning_.check(length);
    {
      const InterruptWatch interrupts;  // until it is saved
      answer(ids);
    }
    if (stdin_is_terminal()) {
      interrupt_clear();
    } else {
      interrupt_check();
    }
  }

  /// Reads, answers and saves.
  void answer(const std::vector<std::int32_t>& ids) {
    unsaved_ = keeper_.given();
    TextPrinter printer;
    Reply reply;
    try {
      reply = reply_make(session_, ids, options_, "reading", std::ref(printer));
    } catch (const OutputClosed&) {
      session_.set_pending({});
      keeper_.try_save(session_);
      throw;
    }
    // Tokens that were not read because of Ctrl-C are read with the next turn.
    session_.set_pending({ids.begin() + reply.read_tokens, ids.end()});
    keeper_.try_save(session_);
    unsaved_ = !keeper_.error().empty();
    printer.end_line();
    warning_.check(session_.length());
    print_note(reply_summary(reply));
    if (unsaved_) {
      print_note(fmt::format("lca: error: {}; the session is not saved", keeper_.error()));
    }
  }

  const ChatFlags& flags_;
  std::shared_ptr<const Model> model_;
  ChatTemplate format_;
  GenerateOptions options_;
  SessionKeeper& keeper_;
  Context context_;
  SessionOptions session_options_;
  Session session_;
  ContextWarning warning_;
  bool unsaved_ = false;  // the file does not hold the last turn
};

void run(const ChatFlags& flags) {
  flags.model.check();
  flags.reply.read({});
  if (flags.format.given()) chat_format_parse(flags.format.text);
  flags.model.path();
  SessionKeeper keeper(flags.session);
  system_check(flags.system, keeper);
  const std::shared_ptr<const Model> model = flags.model.load(keeper.settings());
  tokenizer_warn(model->tokenizer());
  const ChatTemplate format = chat_template(*model, flags.format);
  GenerateOptions options = flags.reply.read(reply_end_tokens(*model, &format));
  if (stdin_is_terminal()) {
    print_note(
        fmt::format("{}, {} format; /help lists the commands",
                    path_printable(std::filesystem::path(model->info().path).filename().native()),
                    chat_format_name(format.format())));
  }
  Chat(flags, model, format, std::move(options), keeper).run();
}

}  // namespace

Command chat_command(CLI::App& parent) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* app = parent.add_subcommand("chat", "Talk with a model");
  app->footer(kChatExamples);
  flags->system.add(*app, "--system", "TEXT", "the system message");
  flags->format.add(*app, "--chat-format", chat_format_placeholder(),
                    "format of chat turns; the model's own unless given");
  flags->session.add(*app);
  flags->model.add(*app, "auto");
  flags->reply.add(*app, "512");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
