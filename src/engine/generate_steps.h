#pragma once
/// The generation loop over any source of tokens, and the search for stop strings.

#include <lca/generate.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Finds stop strings in streamed text, and withholds what may become one.
class StopFilter {
 public:
  /// Empty strings throw Error.
  explicit StopFilter(std::vector<std::string> stops);
  /// The text that can be emitted after one more piece.
  std::string push(std::string_view piece);
  /// The withheld rest, at the end of the text.
  std::string finish();
  /// Whether a stop string was found: everything from it on is dropped.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

/// What the loop needs of a session and a sampler.
struct GenerateSteps {
  std::function<std::int32_t()> pick;        ///< the next token
  std::function<void(std::int32_t)> decode;  ///< takes it
  std::span<const std::int32_t> begun = {};  ///< how the reply began, where it is resumed
};

/// The loop over any steps. Of `options` it uses those that decide when a reply ends and what its
/// text is. `on_text` is called after every token with the text to emit, which may be empty;
/// returning false cancels. Fills text, tokens and reason.
Generated generate_steps(const GenerateSteps& steps, const Tokenizer& tokenizer,
                         const GenerateOptions& options,
                         const std::function<bool(std::string_view)>& on_text = {});

/// `generate` with a tokenizer that need not be the model's.
Generated generate_with(Session& session, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(const GeneratePiece&)>& on_piece = {});

}  // namespace lca
