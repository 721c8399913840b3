/// `lca session`: inspects and forks saved sessions.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "engine/model_home.h"
#include "engine/session_file.h"
#include "engine/session_lock.h"
#include "interrupt.h"
#include "model_flags.h"
#include "models/precision.h"
#include "terminal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSessionInspectExamples =
    "The whole file is checked; a damaged file is an error. No model is needed.\n"
    "\n"
    "Examples:\n"
    "  lca session inspect talk.session\n"
    "  lca session inspect talk.session --json";

constexpr const char* kSessionForkExamples =
    "The new session holds the first N tokens of the old one, which is not changed. Caches that\n"
    "condense can be cut back a few tokens only; further back the model has to read the text\n"
    "again, which --model allows. In summary mode `prompt` only the whole can be copied.\n"
    "\n"
    "Examples:\n"
    "  lca session fork talk.session other.session --length 2000 --model smollm2\n"
    "  lca session fork talk.session copy.session";

struct Summed {
  SessionHead head;
  std::size_t file_bytes = 0;
  std::size_t cache_bytes = 0;
  std::vector<std::int64_t> marks;  // ascending
};

Summed summed(const std::string& path) {
  SessionRecord record = session_read(path);
  Summed sum;
  std::error_code code;
  sum.file_bytes = std::filesystem::file_size(path, code);
  for (const Cache& cache : record.caches) sum.cache_bytes += cache.bytes();
  for (const SavedMark& mark : record.marks) sum.marks.push_back(mark.position);
  std::ranges::sort(sum.marks);
  sum.head = std::move(record.head);
  return sum;
}

Json session_json(const std::string& path, const Summed& sum) {
  const SessionHead& head = sum.head;
  return {{"path", path},
          {"version", head.version},
          {"written_by", "lca " + head.program},
          {"checksum", "ok"},
          {"bytes", sum.file_bytes},
          {"tokens", head.length()},
          {"reply_tokens", head.length() - head.prompt_end},
          {"pending_tokens", head.pending.size()},
          {"shortest_cut", head.truncate_floor},
          {"marks", sum.marks},
          {"cache_bytes", sum.cache_bytes},
          {"model",
           {{"name", head.model},
            {"architecture", head.architecture},
            {"layers", head.layers},
            {"hidden", head.hidden},
            {"vocabulary", head.vocabulary},
            {"weights", head.weights},
            {"precision", precision_name(head.precision)},
            {"cache_type", head.storage == CacheStorage::int8 ? "int8" : dtype_name(head.dtype)},
            {"device", head.device},
            {"fingerprint", head.fingerprint}}},
          {"settings", settings_json(head.settings)}};
}

struct SessionInspectFlags {
  std::string path;
  CommonFlags common;
  bool json = false;
};

void inspect(const SessionInspectFlags& flags) {
  flags.common.threads();
  const Summed sum = summed(flags.path);
  const SessionHead& head = sum.head;
  if (flags.json) {
    print_json(session_json(flags.path, sum));
    return;
  }
  const auto line = [](std::string_view label, std::string_view text) {
    print(fmt::format("{:<14}{}\n", label, text_printable(text, 2000)));
  };
  line("path", flags.path);
  line("format", fmt::format("version {}, written by lca {}; the checksum holds", head.version,
                             head.program));
  line("size", fmt::format("{}, {} of it cache", bytes_text(static_cast<double>(sum.file_bytes)),
                           bytes_text(static_cast<double>(sum.cache_bytes))));
  std::string tokens = fmt::format("{}, the last {} of them a reply", head.length(),
                                   head.length() - head.prompt_end);
  if (!head.pending.empty()) tokens += fmt::format("; {} more to be read", head.pending.size());
  line("tokens", tokens);
  std::string cuts = fmt::format("{} tokens or more", head.truncate_floor);
  if (!sum.marks.empty()) cuts += fmt::format("; marked at {}", fmt::join(sum.marks, ", "));
  line("can be cut to", cuts);
  line("model",
       fmt::format("{}: {}, {} layers of width {}, {} weights, {}", head.model, head.architecture,
                   head.layers, head.hidden, head.weights, precision_name(head.precision)));
  line("fingerprint", head.fingerprint);
  line("settings", settings_line(head.settings));
}

struct SessionForkFlags {
  std::string from, to;
  CommonFlags common;
  TextFlag length, model, precision;
  AdapterFlag adapter;
  WeightsFlag weights;
  bool json = false;

  Precision precision_parse() const {
    return static_cast<Precision>(choice_parse("--precision", precision.text, kPrecisionNames));
  }
};

/// A fork with the model: any length that the summary mode allows.
void fork_with_model(const SessionForkFlags& flags, SessionRecord record, std::int64_t length) {
  ModelOptions options;
  options.path = model_resolve(flags.model.text).string();
  options.adapter = flags.adapter.folder_shown(flags.model.text, record.head.settings);
  options.precision = flags.precision_parse();
  options.weights = flags.weights.read();
  const std::shared_ptr<const Model> model = Model::load(options);
  Context context(flags.common.threads());
  const Session session = session_resume(std::move(record), model, context, {}, flags.from);
  const InterruptWatch interrupts;
  Progress progress(static_cast<double>(length));
  progress.step(fmt::format("reading {} tokens", length), 0);
  const Session fork = session.fork(length, [&](PrefillProgress at) {
    progress.reached(static_cast<double>(at.done),
                     fmt::format("reading {} of {} tokens", at.done, at.total));
    return !interrupt_pending();
  });
  progress.done();
  interrupt_check();
  const InterruptShield shield;
  fork.save(flags.to);
}

void absent_require(const std::string& path) {
  std::error_code code;
  if (std::filesystem::exists(path, code)) {
    fail_input("{}: exists already; a fork goes into a new file", path_printable(path));
  }
}

void fork(const SessionForkFlags& flags) {
  const std::int64_t asked =
      flags.length.given() ? count_parse("--length", flags.length.text, 0) : -1;
  flags.common.threads();
  flags.precision_parse();
  flags.weights.read();
  flags.adapter.check();
  SessionRecord record = session_read(flags.from);
  const std::int64_t length = asked < 0 ? record.head.length() : asked;
  if (length > record.head.length()) {
    fail_input("{}: holds {} tokens; --length takes at most that, not {}",
               path_printable(flags.from), record.head.length(), length);
  }
  if (flags.to.empty()) fail_input("the new session's path is empty");
  if (flags.model.given()) model_resolve(flags.model.text);
  absent_require(flags.to);
  std::unique_ptr<SessionLock> lock;
  std::unique_ptr<InterruptUnlink> unlink;  // so that Ctrl-C leaves no lock behind
  {
    const InterruptShield shield;
    lock = std::make_unique<SessionLock>(flags.to);
    unlink = std::make_unique<InterruptUnlink>(lock->path().native());
  }
  absent_require(flags.to);  // another program may have created it meanwhile
  writable_check(flags.to);
  if (flags.model.given()) {
    fork_with_model(flags, std::move(record), length);
  } else {
    try {
      session_cut(record, length, flags.from);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::incompatible) throw;
      fail_incompatible("{} (--model MODEL)", error.what());  // with it the text can be read again
    }
    const InterruptShield shield;
    session_write(flags.to, record);
  }
  const Summed sum = summed(flags.to);
  if (flags.json) {
    print_json(session_json(flags.to, sum));
  } else {
    print_note(fmt::format("{}: a session of {} tokens, {}", path_printable(flags.to), length,
                           bytes_text(static_cast<double>(sum.file_bytes))));
  }
}

}  // namespace

Command session_inspect_command(CLI::App& parent) {
  auto flags = std::make_shared<SessionInspectFlags>();
  CLI::App* app = parent.add_subcommand("inspect", "What a saved session holds");
  app->footer(kSessionInspectExamples);
  app->add_option("FILE", flags->path, "a session")->type_name("PATH")->required();
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  return {app, [flags] { inspect(*flags); }};
}

Command session_fork_command(CLI::App& parent) {
  auto flags = std::make_shared<SessionForkFlags>();
  CLI::App* app = parent.add_subcommand("fork", "A new session from the beginning of another");
  app->footer(kSessionForkExamples);
  app->add_option("FILE", flags->from, "the session to fork")->type_name("PATH")->required();
  app->add_option("NEW", flags->to, "the new session")->type_name("PATH")->required();
  flags->length.add(*app, "--length", "N", "tokens to keep; all unless given");
  flags->model.add(*app, "--model", "PATH|NAME", "its model, if the text must be read again");
  flags->adapter.add(*app, "its adapter");
  flags->precision.add(*app, "--precision", "auto|f32|bf16", "type of its matrix products", "auto");
  flags->weights.add(*app);
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  return {app, [flags] { fork(*flags); }};
}

}  // namespace lca::cli
