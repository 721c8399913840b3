#pragma once
/// A reply, token by token: which token comes next, what its text is, when the reply ends. The
/// caller runs the model: `generate` for one session, the engine for many.

#include <lca/generate.h>
#include <lca/tokenizer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "engine/stop.h"

namespace lca {

/// The text of a reply and its end. For every token: `push`, and where that returns true, the model
/// takes the token and `taken` follows.
class ReplyText {
 public:
  /// `show` is called with the text to emit, which may be empty; returning false cancels. Of
  /// `options`, which must outlive this, those are used that decide when a reply ends and what its
  /// text is; those out of range throw Error.
  ReplyText(const Tokenizer& tokenizer, const GenerateOptions& options,
            std::function<bool(std::string_view)> show);

  /// How a resumed reply began.
  void resume(std::span<const std::int32_t> begun);
  /// Whether the reply goes on with another token.
  bool wants_token() const;
  /// Emits the text of the next token. False: it ends the reply, and the model does not take it.
  bool push(std::int32_t token);
  /// After `push` returned true: whether the reply ends with that token.
  bool is_last() const;
  void taken();
  /// The reply ends with the token that was pushed last.
  void cancel();
  /// After the last token: emits what was withheld.
  void finish();

  std::string text;
  std::vector<std::int32_t> tokens;  ///< that the model took
  StopReason reason = StopReason::length;

 private:
  std::string decoded(std::int32_t token);
  bool emit(std::string_view piece);

  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  std::function<bool(std::string_view)> show_;
  StreamDecoder decoder_;
  StopFilter filter_;
  std::int32_t token_ = 0;
  bool ended_ = false;
};

/// A reply of a session: sampling, hook, log-probabilities, counts and times besides the text.
class Reply {
 public:
  using OnPiece = std::function<bool(const GeneratePiece&)>;

  /// `prompt` is what the session reads before the reply. All arguments must outlive this.
  Reply(Session& session, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
        const GenerateOptions& options, const OnPiece& on_piece);
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  /// Throws Error (bad input) where options are out of range.
  static void check(const GenerateOptions& options, std::int64_t vocabulary);

  /// Receives the logits of the prompt; empty where they are not needed.
  LogitsSink prompt_sink();
  /// The prompt is in the session.
  void prompt_read();

  bool wants_token() const { return text_.wants_token(); }
  /// Whether the next token is the likeliest one, whatever else: its logits are not needed.
  bool is_greedy() const;
  /// Chooses the next token from the session's logits.
  std::int32_t choose();
  /// `ReplyText::push` of a token that was chosen, here or elsewhere.
  bool push(std::int32_t token);
  bool is_last() const { return text_.is_last(); }
  void taken() { text_.taken(); }
  void cancel() { text_.cancel(); }

  /// Emits what was withheld and returns the reply.
  Generated finish();
  /// The reply as it stands, cancelled.
  Generated cancelled();
  /// The reply as it stands.
  Generated partial();

 private:
  double seconds() const;
  bool show(std::string_view text);

  Session& session_;
  std::span<const std::int32_t> prompt_;
  const GenerateOptions& options_;
  const OnPiece& on_piece_;
  Sampler sampler_;
  ReplyText text_;
  std::int64_t reused_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::optional<double> prefill_seconds_;
  double first_seconds_ = 0, decode_seconds_ = 0;
  std::vector<float> adjusted_;
  std::int32_t token_ = 0;
  bool fresh_ = false;  // the token has not been handed out
  TokenLogprobs candidate_;
  std::vector<TokenLogprobs> logprobs_;
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs_;
};

/// `generate` with a tokenizer that need not be the model's.
Generated generate_with(Session& session, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(const GeneratePiece&)>& on_piece = {});

}  // namespace lca
