#pragma once
/// What a Session holds.

#include <lca/session.h>

#include <memory>
#include <span>
#include <vector>

#include "models/sequence.h"

namespace lca {

/// A position a session can return to.
struct SessionMark {
  std::shared_ptr<const SequenceMark> caches;  ///< forks hold it too
  std::vector<float> logits;                   ///< of its last token; empty: not known
  std::int64_t prompt_end = 0;                 ///< as it was then

  std::int64_t position() const { return caches->position(); }
};

struct Session::State {
  std::shared_ptr<const Model> model;
  Context* context = nullptr;
  std::int64_t chunk = 0;
  std::size_t most_marks = 8;
  std::vector<Settings> settings;  ///< one per layer
  bool layer_by_layer = false;     ///< the summary of some layer waits for the end of the prompt
  bool entry_positions = false;    ///< some layer drops tokens and has entry positions
  /// With entry positions: the number of positions that the first prompt spans, which decides the
  /// RoPE frequencies for the session's life. Keys are rotated on when they are condensed, so all
  /// of them share frequencies. 0: no prompt yet.
  std::int64_t rope_positions = 0;
  bool rope_inherited = false;  ///< they were decided in the session this one was forked from
  std::unique_ptr<SequenceCaches> caches;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> pending;  ///< tokens still to be read, kept for the caller
  std::int64_t prompt_end = 0;        ///< tokens up to the end of the last prompt; a reply follows
  std::vector<float> logits;
  std::vector<SessionMark> marks;  ///< in the order in which they were made
  std::vector<std::string> notices;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  std::unique_ptr<SequenceCaches> empty_caches() const;
  /// Positions that a sequence of so many tokens spans: the most of any layer.
  std::int64_t positions_spanned(std::int64_t count) const;
  /// Before a step: where the session is empty, its `count` tokens decide the frequencies.
  void rope_decide(std::int64_t count);
  /// The length whose frequencies a step that ends at `count` tokens uses.
  std::int64_t rope_length(std::int64_t count) const {
    return entry_positions ? rope_positions : count;
  }
  /// Whether a session that reads a prompt of so many tokens from the start rotates as this one.
  bool rotates_as_prompt(std::int64_t count) const;
  /// Throws Error if a token is not in the vocabulary, or there are no tokens.
  void check(std::span<const std::int32_t> run) const;
  const SessionMark* mark_at(std::int64_t position) const;
  /// The last mark at or before a position; null: none.
  const SessionMark* mark_before(std::int64_t position) const;
  /// Whether the session can return to the mark at its present length.
  bool can_rewind_to(std::int64_t position) const;
  void drop_marks_after(std::int64_t position);
  /// Cuts to a length that caches or a mark allow.
  void cut(std::int64_t length);
  /// Whether RoPE at this length is the same as at shorter lengths. Beyond it keys depend on the
  /// length of the prompt that they belong to, and a shorter session would hold other keys. Always
  /// true with entry positions, where all keys share frequencies.
  bool rotates_as_short(std::int64_t length) const;
};

/// Throws Error if a token is not in the vocabulary, or there are no tokens.
void tokens_check(const Model& model, std::span<const std::int32_t> tokens);
/// One entry per layer: the options' settings, or the model's.
std::vector<Settings> settings_per_layer(const Model& model, const SessionOptions& options);
/// With entry positions the rotation is that of a length of `positions`.
LayerSpec layer_spec(const Model& model, const Settings& settings, std::int64_t positions = 1);
/// Where `length` tokens are under the settings of each layer.
SessionLayout session_layout(std::span<const Settings> settings, std::int64_t length);
bool waits_for_prompt(std::span<const Settings> settings);

}  // namespace lca
