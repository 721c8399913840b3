#include "reply.h"

#include "core/cuda/device_name.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "machine.h"
#include "models/model_state.h"
#include "terminal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lca::cli {
namespace {

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string rate_text(double tokens_per_second) {
  return fmt::format("{} tokens/s", number_text(tokens_per_second));
}

bool condenses(const SessionOptions& options) {
  return std::ranges::any_of(options.settings, [](const Settings& settings) {
    return settings.method != MethodKind::dense;
  });
}

}  // namespace

void session_require(const Model& model, const SessionOptions& options, std::int64_t length,
                     int threads, const std::string& what) {
  const bool on_gpu = model.info().device != "cpu";
  const std::int64_t available =
      on_gpu ? static_cast<std::int64_t>(model.state().backend->memory_free()) : memory_available();
  const auto needed = [&](std::int64_t tokens) {
    return session_memory(model, options, tokens, threads);
  };
  const auto fits = [&](const Memory& memory) {
    return available < 0 || static_cast<std::int64_t>(memory.total()) <= available;
  };
  const Memory memory = needed(length);
  if (fits(memory)) return;
  std::int64_t longest = 0;
  for (std::int64_t above = length; above - longest > 1;) {
    const std::int64_t middle = longest + (above - longest) / 2;
    (fits(needed(middle)) ? longest : above) = middle;
  }
  fail_memory(
      "{} need about {} of {} beside the weights ({} of it cache) and {} are available; at most {} "
      "tokens fit: {}",
      what, bytes_text(static_cast<double>(memory.total())), on_gpu ? "GPU memory" : "memory",
      bytes_text(static_cast<double>(memory.caches)), bytes_text(static_cast<double>(available)),
      longest, condenses(options) ? "make it shorter" : "use --method lca, or make it shorter");
}

const std::vector<std::string>& tokenizer_warn(const Tokenizer& tokenizer) {
  for (const std::string& warning : tokenizer.warnings()) print_note("lca: warning: " + warning);
  return tokenizer.warnings();
}

void check_ids(std::span<const std::int32_t> ids, const ModelInfo& info) {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < info.vocabulary) continue;
    fail_input(
        "{}: the tokenizer gives id {}, but the model has {} tokens: they do not belong "
        "together",
        path_printable(info.path), id, info.vocabulary);
  }
}

ChatTemplate chat_template(const Model& model, const TextFlag& flag) {
  try {
    return flag.given() ? model.chat(chat_format_parse(flag.text)) : model.chat();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::incompatible) throw;
    fail_incompatible("{}; --chat-format sets it", error.what());
  }
}

std::string chat_format_placeholder() {
  return fmt::format("{}", fmt::join(chat_format_names(), "|"));
}

std::vector<std::int32_t> reply_end_tokens(const Model& model, const ChatTemplate* format) {
  std::vector<std::int32_t> tokens = model.info().end_tokens;
  if (format == nullptr) return tokens;
  tokens.insert(tokens.end(), format->end_tokens().begin(), format->end_tokens().end());
  return tokens;
}

void prefill_shown(Session& session, std::span<const std::int32_t> tokens, const std::string& label,
                   const LogitsSink& logits) {
  {
    const Stopwatch watch;
    Progress progress(static_cast<double>(tokens.size()));
    progress.step(fmt::format("{} {} tokens", label, tokens.size()), 0);
    const auto show = [&](PrefillProgress at) {
      if (at.done == 0) return !interrupt_pending();
      const double speed = rate(static_cast<double>(at.done), watch.seconds());
      progress.reached(
          static_cast<double>(at.done),
          fmt::format("{} {} of {} tokens, {}", label, at.done, at.total, rate_text(speed)));
      return !interrupt_pending();
    };
    const InterruptStop stop;
    session.prefill(tokens, show, logits, stop.token());
  }
  const std::span<const float> last = session.logits();
  if (std::ranges::any_of(last, [](float value) { return std::isnan(value); })) {
    fail_input("{}: the model computes NaN: its weights are damaged, or float32 is too narrow",
               path_printable(session.model().info().path));
  }
}

double Reply::prefill_rate() const {
  return rate(static_cast<double>(read_tokens), prefill_seconds);
}

double Reply::decode_rate() const {
  return rate(static_cast<double>(generated.tokens.size()) - 1, decode_seconds);
}

Reply reply_make(Session& session, std::span<const std::int32_t> prompt,
                 const GenerateOptions& options, const std::string& label,
                 const std::function<void(std::string_view)>& on_text, std::size_t marked) {
  const InterruptWatch interrupts;
  Reply reply;
  reply.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t before = session.length();
  reply.reused_tokens = before;
  const Stopwatch watch;
  try {
    if (marked > 0) {
      prefill_shown(session, prompt.first(marked), label);
      session.mark();
    }
    if (marked < prompt.size()) prefill_shown(session, prompt.subspan(marked), label);
    reply.prefill_seconds = watch.seconds();
    reply.generated = generate(session, {}, options, [&](const GeneratePiece& piece) {
      on_text(piece.text);
      return !interrupt_pending();
    });
    reply.read_tokens = reply.prompt_tokens;
    if (reply.generated.first_seconds > 0) {
      reply.first_seconds = reply.prefill_seconds + reply.generated.first_seconds;
    }
    reply.decode_seconds = reply.generated.decode_seconds;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    reply.prefill_seconds = watch.seconds();
    reply.read_tokens = session.length() - before;
    reply.generated.reason = StopReason::cancelled;
  }
  reply.cache_bytes = session.cache_bytes();
  reply.dense_bytes = session.dense_bytes();
  reply.device_bytes = cuda::memory_peak();
  return reply;
}

std::string reply_summary(const Reply& reply) {
  std::string line;
  if (reply.read_tokens < reply.prompt_tokens) {
    line = fmt::format("stopped: {} of {} tokens read", reply.read_tokens, reply.prompt_tokens);
  } else {
    line = fmt::format("{}{} tokens read, {} written", reply.cancelled() ? "stopped: " : "",
                       reply.read_tokens, reply.generated.tokens.size());
  }
  if (reply.reused_tokens > 0) line += fmt::format(", {} reused", reply.reused_tokens);
  if (reply.first_seconds > 0) {
    line += fmt::format("; first token after {}", seconds_text(reply.first_seconds));
    if (reply.read_tokens > 0) line += fmt::format(" ({})", rate_text(reply.prefill_rate()));
  }
  if (reply.decode_rate() > 0) line += fmt::format(", then {}", rate_text(reply.decode_rate()));
  const auto cache = static_cast<double>(reply.cache_bytes);
  const auto dense = static_cast<double>(reply.dense_bytes);
  line += fmt::format("; cache {}", bytes_text(cache, dense));
  if (cache > 0 && cache < dense) {
    line +=
        fmt::format(", dense would need {} ({}×)", bytes_text(dense), number_text(dense / cache));
  }
  if (reply.device_bytes > 0) {
    line += fmt::format("; at most {} of GPU memory",
                        bytes_text(static_cast<double>(reply.device_bytes)));
  }
  return line;
}

TextPrinter::TextPrinter() : terminal_(stdout_is_terminal()) {}

TextPrinter::~TextPrinter() {
  try {
    end_line();  // an error message begins on a new line
  } catch (...) {
    return;  // the output is closed
  }
}

void TextPrinter::operator()(std::string_view text) {
  if (text.empty()) return;
  print(terminal_ ? terminal_safe(text) : std::string(text));
  open_ = text.back() != '\n';
}

void TextPrinter::end_line() {
  if (std::exchange(open_, false)) print("\n");
}

}  // namespace lca::cli
