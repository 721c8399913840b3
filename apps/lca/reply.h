#pragma once
/// Reading a prompt and writing the reply, with progress while it works and numbers at the end.

#include "arguments.h"

#include <lca/chat.h>
#include <lca/generate.h>
#include <lca/model.h>
#include <lca/session.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Throws Error (bad input) where a session of `length` tokens would not fit into the machine;
/// `what` says what they are ("a prompt of 6000 tokens and 256 new ones").
void session_require(const Model& model, const SessionOptions& options, std::int64_t length,
                     int threads, const std::string& what);

/// Throws Error (bad input) where an id is beyond the model's vocabulary.
void check_ids(std::span<const std::int32_t> ids, const ModelInfo& info);

/// How conversations with a model are written: in the format that `flag` (`--chat-format`) names,
/// else its own.
ChatTemplate chat_template(const Model& model, const TextFlag& flag);
/// The names of all formats, as a placeholder: a|b|c.
std::string chat_format_placeholder();

/// Tokens that end a reply: the checkpoint's and, unless null, the format's.
std::vector<std::int32_t> reply_end_tokens(const Model& model, const ChatTemplate* format);

/// Session::prefill with a progress line called `label`. Ctrl-C stops it: Error (cancelled). Call
/// it inside an InterruptWatch. Throws Error (bad input) where the model computes NaN.
void prefill_shown(Session& session, std::span<const std::int32_t> tokens, const std::string& label,
                   const LogitsSink& logits = {});

/// What a turn took.
struct Reply {
  std::int64_t reused_tokens = 0;  ///< of the session, in front of what was to be read
  std::int64_t prompt_tokens = 0;  ///< to be read
  std::int64_t read_tokens = 0;    ///< fewer where Ctrl-C came while it read
  double prefill_seconds = 0;
  double first_seconds = 0;   ///< until the first token came, reading included; 0 where none did
  double decode_seconds = 0;  ///< from then to the last token
  Generated generated;
  std::size_t cache_bytes = 0;
  std::size_t dense_bytes = 0;

  double prefill_rate() const;  ///< tokens a second; 0: unknown
  double decode_rate() const;   ///< the same, after the first token
  bool cancelled() const { return generated.reason == StopReason::cancelled; }
};

/// Reads `prompt` (which may be empty where the session's logits are known) and continues it;
/// `on_text` gets the text as it comes. The session is marked after the first `marked` tokens of
/// the prompt (0: nowhere). Ctrl-C ends either part, and the reply then says so: it stays pending
/// for the caller to clear or to leave with.
Reply reply_make(Session& session, std::span<const std::int32_t> prompt,
                 const GenerateOptions& options, const std::string& label,
                 const std::function<void(std::string_view)>& on_text, std::size_t marked = 0);

/// "6612 tokens read at 540/s, first token after 12.3 s, …" in one line.
std::string reply_summary(const Reply& reply);

/// Streams text to standard output, and ends its last line.
class TextPrinter {
 public:
  TextPrinter();
  ~TextPrinter();
  TextPrinter(const TextPrinter&) = delete;
  TextPrinter& operator=(const TextPrinter&) = delete;
  void operator()(std::string_view text);
  /// Begins a new line where text stands on this one.
  void end_line();

 private:
  bool terminal_;
  bool open_ = false;
};

}  // namespace lca::cli
