#pragma once
/// A reply: decode, sample, turn into text, and know when to stop.

#include <lca/sampling.h>
#include <lca/session.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Finds stop strings in text that comes in pieces, and holds back what may become one.
class StopFilter {
 public:
  /// Empty strings throw Error.
  explicit StopFilter(std::vector<std::string> stops);
  /// The text that can be shown after one more piece.
  std::string push(std::string_view piece);
  /// The rest, when nothing more comes.
  std::string finish();
  /// A stop string came: everything from it on is dropped.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

struct GenerateOptions {
  Sampling sampling = {};
  std::int64_t max_tokens = 256;
  std::vector<std::string> stops = {};        ///< stop strings
  std::vector<std::int32_t> end_tokens = {};  ///< stop tokens
  bool with_special = false;                  ///< show special tokens in the text
  /// The session's last tokens begin this very reply, which stopped for want of `max_tokens` or at
  /// Ctrl-C: its text goes on as if it had not.
  bool resumed = false;
  /// It may be resumed: at `max_tokens` half a character, or what may become a stop string, stays
  /// unsaid.
  bool open = false;
};

enum class StopReason : std::uint8_t { end_token, stop_string, length, cancelled };
/// "end_token", "stop_string", "length", "cancelled".
std::string_view stop_reason_name(StopReason reason);

struct Generated {
  std::string text;
  std::vector<std::int32_t> tokens;  ///< picked tokens, the end token not among them
  StopReason reason = StopReason::length;
  double seconds = 0;  ///< from the first pick to the last
};

/// Continues a session whose prompt has been read. `on_text` is called after every token with the
/// text that has become certain, empty where none has; returning false cancels. The session takes
/// every token of `tokens` and no other: after the call session.tokens() ends with exactly those,
/// and the end token, which is not among them, is not taken.
Generated generate(Session& session, const Tokenizer& tokenizer, const GenerateOptions& options,
                   const std::function<bool(std::string_view)>& on_text = {});

/// What `generate` asks of a session and a sampler.
struct GenerateSteps {
  std::function<std::int32_t()> pick;        ///< the next token
  std::function<void(std::int32_t)> decode;  ///< takes it
  std::span<const std::int32_t> said = {};   ///< how the reply began, where it is resumed
};
/// The loop of `generate` over any steps; `options.sampling` and `resumed` are not used.
Generated generate_steps(const GenerateSteps& steps, const Tokenizer& tokenizer,
                         const GenerateOptions& options,
                         const std::function<bool(std::string_view)>& on_text = {});

}  // namespace lca
