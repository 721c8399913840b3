#pragma once
/// Reading a prompt and streaming the reply, with progress and final statistics.

#include "arguments.h"
#include "core/stopwatch.h"

#include <lca/chat.h>
#include <lca/generate.h>
#include <lca/model.h>
#include <lca/session.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

/// Throws Error (bad input) if a session of `length` tokens would not fit into memory; `what`
/// describes it ("a prompt of 6000 tokens and 256 new ones").
void session_require(const Model& model, const SessionOptions& options, std::int64_t length,
                     int threads, const std::string& what);

/// Prints on standard error what a model's tokenizer warns about, and returns it.
const std::vector<std::string>& tokenizer_warn(const Tokenizer& tokenizer);

/// Throws Error (bad input) if an id is outside the model's vocabulary.
void check_ids(std::span<const std::int32_t> ids, const ModelInfo& info);

/// The chat template of a model, in the format that `flag` (`--chat-format`) names, else its own.
ChatTemplate chat_template(const Model& model, const TextFlag& flag);
/// The names of all formats, as a placeholder: a|b|c.
std::string chat_format_placeholder();

/// Tokens that end a reply: the checkpoint's and, unless null, the format's.
std::vector<std::int32_t> reply_end_tokens(const Model& model, const ChatTemplate* format);

/// Session::prefill with a progress line called `label`. Ctrl-C stops it: Error (cancelled). Call
/// it inside an InterruptWatch. Throws Error (bad input) where the model computes NaN.
void prefill_shown(Session& session, std::span<const std::int32_t> tokens, const std::string& label,
                   const LogitsSink& logits = {});

/// A reply and its statistics.
struct Reply {
  std::int64_t reused_tokens = 0;  ///< in the session already, before the tokens to be read
  std::int64_t prompt_tokens = 0;  ///< to be read
  std::int64_t read_tokens = 0;    ///< fewer if reading was interrupted
  double prefill_seconds = 0;
  double first_seconds = 0;   ///< until the first token, reading included; 0 if there is none
  double decode_seconds = 0;  ///< from then to the last token
  Generated generated;
  std::size_t cache_bytes = 0;
  std::size_t dense_bytes = 0;
  std::size_t device_bytes = 0;  ///< the most GPU memory so far; 0 on the CPU

  double prefill_rate() const;  ///< tokens per second; 0: unknown
  double decode_rate() const;   ///< the same, after the first token
  bool cancelled() const { return generated.reason == StopReason::cancelled; }
};

/// Reads `prompt` (which may be empty where the session's logits are known) and continues it;
/// `on_text` receives the text as it is emitted. The session is marked after the first `marked`
/// tokens of the prompt (0: nowhere). Ctrl-C ends either part, and the reply then says so; the
/// signal stays pending until the caller clears it or exits.
Reply reply_make(Session& session, std::span<const std::int32_t> prompt,
                 const GenerateOptions& options, const std::string& label,
                 const std::function<void(std::string_view)>& on_text, std::size_t marked = 0);

/// "6612 tokens read at 540/s, first token after 12.3 s, …" in one line.
std::string reply_summary(const Reply& reply);

/// Streams text to standard output, and ends the last line.
class TextPrinter {
 public:
  TextPrinter();
  ~TextPrinter();
  TextPrinter(const TextPrinter&) = delete;
  TextPrinter& operator=(const TextPrinter&) = delete;
  void operator()(std::string_view text);
  /// Ends the current line if there is text on it.
  void end_line();

 private:
  bool terminal_;
  bool open_ = false;
};

}  // namespace lca::cli
