#pragma once
/// Feeding sequences to a method the way an engine does: in chunks, as prompts, token by token.

#include <lca/lca.h>

#include <cstdint>
#include <span>
#include <vector>

#include "attention/reference/reference.h"
#include "support/random_layer.h"

namespace lca::test {

/// The results of a method for a sequence.
struct Outcome {
  std::int64_t tokens = 0;
  std::int64_t groups = 0;
  std::vector<float> out;             ///< [n,H,d_v]
  std::vector<float> lse;             ///< [n,H]
  std::vector<float> rep_semantic;    ///< [m,KV,d_semantic]
  std::vector<float> rep_positional;  ///< [m,KV,d_positional]
  std::vector<float> rep_bias;        ///< [m,KV]
};

/// One sequence that is fed to a method. Outputs start as NaN, so that a value that was not written
/// fails every comparison.
struct Feed {
  explicit Feed(const Source& source_);
  Feed(const Layer& layer, const Tokens& tokens) : Feed(Source(layer, tokens)) {}

  Source source;
  Cache cache;
  std::int64_t position = 0;  ///< tokens fed so far
  std::vector<float> out;
  std::vector<float> lse;

  /// The run of tokens first … first + count − 1; with `last_queries` ≥ 0 its queries are cut to
  /// that many.
  Run run(std::int64_t first, std::int64_t count, std::int64_t last_queries = -1);
  Outcome outcome() const;
};

/// How to feed.
struct Manner {
  bool poison = false;         ///< NaN in scratch memory and spare capacity before every call
  bool trim_queries = false;   ///< `prompt` mode: hand over only the last n_q queries of a chunk
  bool attend_chunks = false;  ///< `prompt` mode: attend chunk by chunk instead of all at once
};

/// Whether prompts go through take/attend/release as a whole instead of chunk by chunk.
bool needs_whole_prompt(const Settings& settings);

/// One call of forward() with the next counts[i] tokens of every feed; a count of 0 leaves it out.
void feed_forward(Context& context, std::span<Feed* const> feeds,
                  std::span<const std::int64_t> counts, const Manner& manner = {});
inline void feed_forward(Context& context, Feed& feed, std::int64_t count,
                         const Manner& manner = {}) {
  Feed* const one = &feed;
  feed_forward(context, {&one, 1}, {&count, 1}, manner);
}

/// The next tokens as one prompt in chunks: forward() for each, or the whole prompt at once where
/// its end has to be known first.
void feed_prompt(Context& context, Feed& feed, std::span<const std::int64_t> chunks,
                 const Manner& manner = {});

/// The next `count` tokens one by one.
void feed_decode(Context& context, Feed& feed, std::int64_t count, const Manner& manner = {});

/// All remaining tokens one by one; outputs of tokens that were fed before are 0 in the outcome.
Outcome feed_to_end(Context& context, Feed& feed);

/// A second feed of the same sequence, at the position of `cache`.
Feed feed_with(const Feed& feed, Cache cache);

/// A whole sequence: a prompt in chunks, the rest decoded.
Outcome run_sequence(Context& context, const Source& source, std::span<const std::int64_t> prefill,
                     const Manner& manner = {});
inline Outcome run_sequence(Context& context, const Layer& layer, const Tokens& tokens,
                            std::span<const std::int64_t> prefill, const Manner& manner = {}) {
  return run_sequence(context, Source(layer, tokens), prefill, manner);
}
inline Outcome run_sequence(Context& context, const Layer& layer, const Tokens& tokens) {
  return run_sequence(context, layer, tokens, {&tokens.count, 1});
}

/// The same numbers in double precision, for comparison with the reference.
reference::Result widen(const Outcome& outcome);

/// Chunk sizes ≥ 1 that add up to `total`.
std::vector<std::int64_t> random_chunks(std::int64_t total, Random& random);

}  // namespace lca::test
