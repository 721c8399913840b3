#pragma once
/// A reply: read a prompt, then sample, decode and turn into text until something ends it.

#include <lca/sampling.h>
#include <lca/session.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// A token and the natural log of its probability in the model's own distribution, before hook,
/// penalty, temperature and filters.
struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
};

/// The same with the likeliest tokens at that place, best first.
struct TokenLogprobs : TokenLogprob {
  std::vector<TokenLogprob> top;
};

/// What `generate` hands out after every token.
struct GeneratePiece {
  std::string_view text;              ///< text that has become certain; may be empty
  std::span<const std::int32_t> ids;  ///< the token that was taken; none where only text remained
  const TokenLogprobs* logprobs = nullptr;  ///< of that token, where asked for
};

/// How a reply is made.
struct GenerateOptions {
  Sampling sampling = {};
  std::int64_t max_tokens = 256;
  std::vector<std::string> stops = {};        ///< strings that end the reply; not part of its text
  std::vector<std::int32_t> end_tokens = {};  ///< tokens that end it; `Model::end_tokens`, say
  bool with_special = false;                  ///< emit special tokens in the text
  /// The session's last tokens begin this very reply, which stopped at `max_tokens` or was
  /// cancelled: its text continues as if it had not.
  bool resumed = false;
  /// It may be resumed: at `max_tokens` half a character, or what may become a stop string, is
  /// withheld.
  bool open = false;
  /// May change the logits of the next token before it is sampled (−infinity forbids a token);
  /// `tokens` are those of the session. What it throws ends the call.
  std::function<void(std::span<const std::int32_t> tokens, std::span<float> logits)> adjust = {};
  bool logprobs = false;          ///< of the tokens of the reply
  bool prompt_logprobs = false;   ///< of the tokens of the prompt; costs the logits of all of them
  std::int64_t top_logprobs = 0;  ///< how many of the likeliest tokens come with each
  std::stop_token stop = {};      ///< ends it early, inside a chunk of the prompt too
  std::function<bool(PrefillProgress)> progress = {};  ///< of reading the prompt; false cancels
};

enum class StopReason : std::uint8_t { end_token, stop_string, length, cancelled };
/// "end_token", "stop_string", "length", "cancelled".
std::string_view stop_reason_name(StopReason reason);

/// A reply and how it came about.
struct Generated {
  std::string text;
  std::vector<std::int32_t> tokens;  ///< taken tokens, the end token not among them
  StopReason reason = StopReason::length;
  std::int64_t prompt_tokens = 0;  ///< in the session when the reply begins, reused ones included
  std::int64_t reused_tokens = 0;  ///< of these, those that were in the session already
  std::int64_t read_tokens = 0;    ///< read; fewer than prompt − reused where it was cancelled
  std::vector<TokenLogprobs> logprobs;  ///< of `tokens`, where asked for
  /// Of the prompt's tokens that were read, where asked for; the first token of a session has none.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  double prefill_seconds = 0;
  double first_seconds = 0;   ///< until the first token, reading included; 0 where none came
  double decode_seconds = 0;  ///< from then to the last
};

/// Reads `prompt` (empty: the session continues from its last logits) and replies. `on_piece` is
/// called after every token; returning false cancels, as `options.stop` does: the reply then ends
/// with reason `cancelled`, and the session can go on. The session takes every token of `tokens`
/// and no other: the end token is not taken.
Generated generate(Session& session, std::span<const std::int32_t> prompt,
                   const GenerateOptions& options,
                   const std::function<bool(const GeneratePiece&)>& on_piece = {});

/// The log-probabilities of a token and of the `top` likeliest ones, from logits.
TokenLogprobs logprobs_of(std::span<const float> logits, std::int32_t token, std::int64_t top = 0);

}  // namespace lca
