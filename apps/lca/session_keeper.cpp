#include "session_keeper.h"

#include "core/error.h"
#include "core/text.h"
#include "terminal.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

namespace lca::cli {
namespace {

/// The value of a flag; null if it was not given.
const std::string* flag_text(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option == nullptr || option->count() == 0) return nullptr;
  return &option->results().back();
}

}  // namespace

void SessionFlag::add(CLI::App& app) {
  app_ = &app;
  flag_.add(app, "--session", "FILE", "keep the conversation in this file, and continue it");
}

void SessionFlag::check_settings(const SessionHead& head) const {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  std::vector<Settings> wanted = head.settings;
  for (Settings& layer : wanted) {
    if (const std::string* preset = flag_text(*app_, "--preset")) layer = settings_preset(*preset);
    for (const SettingField& field : setting_fields()) {
      std::string flag = "--" + std::string(field.name);
      std::ranges::replace(flag, '_', '-');
      const std::string* text = flag_text(*app_, flag);
      if (text == nullptr) continue;
      field.set(layer, field.is_integer
                           ? count_parse(flag, *text, field.minimum, kLargest)
                           : static_cast<std::int64_t>(choice_parse(flag, *text, field.choices)));
    }
  }
  session_check_settings(head, wanted, path());
}

SessionKeeper::SessionKeeper(const SessionFlag& flag) {
  if (!flag.given()) return;
  path_ = flag.path();
  if (path_.empty()) fail_input("--session is empty; it takes a file to keep the session in");
  {
    const InterruptShield shield;
    lock_ = std::make_unique<SessionLock>(path_);
    unlink_ = std::make_unique<InterruptUnlink>(lock_->path().native());
  }
  writable_check(path_);
  std::error_code code;
  if (!std::filesystem::exists(path_, code)) return;
  record_ = session_read(path_);
  flag.check_settings(record_->head);
  begun_ = !record_->head.tokens.empty() || !record_->head.pending.empty();
}

Session SessionKeeper::open(std::shared_ptr<const Model> model, Context& context,
                            const SessionOptions& options) {
  if (!record_) return {std::move(model), context, options};
  SessionRecord record = std::move(*record_);
  record_.reset();
  Session session = session_resume(std::move(record), std::move(model), context,
                                   {{}, options.chunk, options.marks}, path_);
  for (const std::string& notice : session.notices()) print_note("lca: note: " + notice);
  return session;
}

void SessionKeeper::save(const Session& session) {
  try_save(session);
  require_saved();
}

void SessionKeeper::try_save(const Session& session) {
  if (!given()) return;
  error_.clear();
  try {
    const InterruptShield shield;
    session.save(path_);
    std::error_code code;
    bytes_ = std::filesystem::file_size(path_, code);
    if (code) bytes_ = 0;
  } catch (const Error& error) {
    error_ = error.what();
  }
}

void SessionKeeper::require_saved() const {
  if (!error_.empty()) fail_io("{}; the session is not saved", error_);
}

void system_check(const TextFlag& system, const SessionKeeper& keeper) {
  if (!system.given() || !keeper.begun()) return;
  fail_input(
      "{}: --system comes too late: this conversation has begun, and its system message cannot "
      "change; leave it out, or start a new session",
      path_printable(keeper.path()));
}

}  // namespace lca::cli
