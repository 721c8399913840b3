#include "eval_common.h"

#include "arguments.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "core/text.h"
#include "interrupt.h"
#include "models/precision.h"
#include "terminal.h"

#include <lca/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace lca::cli {

nlohmann::ordered_json run_fingerprint(std::string_view command, const Model& model,
                                       const SessionOptions& options) {
  const ModelInfo& info = model.info();
  return {{"command", command},
          {"lca", version()},
          {"model", model.fingerprint()},
          {"settings", settings_json(options.settings)},
          {"precision", kPrecisionNames[static_cast<std::size_t>(info.precision)]},
          {"weights", static_cast<int>(info.weights)},
          {"groups", static_cast<int>(info.groups)},
          {"cache", static_cast<int>(info.cache)}};
}

std::string texts_fingerprint(std::span<const TextsFlag::Text> texts) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const TextsFlag::Text& text : texts) {
    for (const char c : text.text) add(static_cast<unsigned char>(c));
    add(0);
  }
  return fmt::format("{:016x}", hash);
}

std::unique_ptr<eval::ResultsFile> results_open(const TextFlag& flag,
                                                const nlohmann::ordered_json& fingerprint) {
  if (!flag.given()) return nullptr;
  if (flag.text.empty()) {
    fail_input("{} is empty; it takes the path of a file", flag.option->get_name());
  }
  return std::make_unique<eval::ResultsFile>(flag.text, fingerprint);
}

bool replies_shown(const std::shared_ptr<const Model>& model, Context& context,
                   std::span<const std::size_t> which, const eval::PromptMaker& make,
                   const eval::ReplyTaker& done, const SessionOptions& session,
                   std::string_view label, const std::function<std::string()>& note) {
  if (which.empty()) return true;
  const InterruptWatch interrupts;
  const InterruptStop stop;
  Progress progress(static_cast<double>(which.size()));
  progress.step(fmt::format("{} of {} {}", 0, which.size(), label), 0);
  const Stopwatch watch;
  eval::RunnerOptions options;
  options.session = session;
  options.stop = stop.token();
  options.progress = [&](const eval::RunnerProgress& at) {
    const double seconds = std::max(1e-9, watch.seconds());
    const double tokens = static_cast<double>(at.read_tokens + at.generated_tokens) / seconds;
    progress.reached(static_cast<double>(at.done),
                     fmt::format("{} of {} {}{}, {} tokens/s", at.done, at.total, label, note(),
                                 count_text(static_cast<std::int64_t>(tokens))));
  };
  try {
    eval::replies_run(model, context, which, make, done, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    return false;
  }
  return true;
}

std::string share_text(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "–";
  return fmt::format("{:.0f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace lca::cli
