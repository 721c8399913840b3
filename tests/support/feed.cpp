#include "support/feed.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "attention/cache_state.h"
#include "core/context_state.h"
#include "core/workspace.h"

namespace lca::test {
namespace {

std::vector<float> read_values(const ConstTensor& tensor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    for (std::int64_t j = 0; j < tensor.shape[1]; ++j) {
      const void* row = tensor.row(i, j);
      for (std::int64_t k = 0; k < tensor.shape[2]; ++k) {
        values.push_back(tensor.dtype == DType::f32
                             ? static_cast<const float*>(row)[k]
                             : bf16_to_f32(static_cast<const bf16_bits*>(row)[k]));
      }
    }
  }
  return values;
}

// The block must be allocated before it can be poisoned, with the planned size.
void poison(Context& context, std::span<const Run> runs) {
  std::size_t bytes = context.state().workspace.bytes();
  for (const Run& run : runs) {
    const std::int64_t count = run.entries.semantic.shape[0];
    bytes =
        std::max(bytes, attention_workspace_bytes(run.cache->spec(), run.cache->length() + count,
                                                  count, context.threads()));
  }
  context.state().workspace.prepare(bytes);
  context.state().workspace.poison();
  for (const Run& run : runs) cache_poison_spare(*run.cache);
}

}  // namespace

Feed::Feed(const Source& source_)
    : source(source_),
      cache(source_.spec),
      out(static_cast<std::size_t>(source_.count() * source_.spec.shape.heads *
                                   source_.spec.shape.d_value),
          std::numeric_limits<float>::quiet_NaN()),
      lse(static_cast<std::size_t>(source_.count() * source_.spec.shape.heads),
          std::numeric_limits<float>::quiet_NaN()) {}

Run Feed::run(std::int64_t first, std::int64_t count, std::int64_t last_queries) {
  const AttentionShape& shape = source.spec.shape;
  const std::int64_t asked = last_queries < 0 ? count : std::min(count, last_queries);
  Run run;
  run.cache = &cache;
  run.queries = source.queries(first + count - asked, asked);
  run.entries = source.entries(first, count);
  run.out = out.data() + first * shape.heads * shape.d_value;
  run.lse = lse.data() + first * shape.heads;
  return run;
}

Outcome Feed::outcome() const {
  Outcome outcome;
  outcome.tokens = cache.length();
  outcome.groups = cache.groups();
  outcome.out = out;
  outcome.lse = lse;
  const auto append = [](std::vector<float>& to, const ConstTensor& from) {
    const std::vector<float> values = read_values(from);
    to.insert(to.end(), values.begin(), values.end());
  };
  for (std::int64_t j = 0; j < outcome.groups; ++j) {
    append(outcome.rep_semantic, cache.representative(j).semantic);
    append(outcome.rep_positional, cache.representative(j).positional);
    for (std::int64_t kv = 0; kv < source.spec.shape.kv_heads; ++kv) {
      outcome.rep_bias.push_back(cache.bias(j, kv));
    }
  }
  return outcome;
}

bool needs_whole_prompt(const Settings& settings) {
  return settings.method == MethodKind::lca && settings.summary == Summary::prompt;
}

void feed_forward(Context& context, std::span<Feed* const> feeds,
                  std::span<const std::int64_t> counts, const Manner& manner) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    if (counts[i] == 0) continue;
    runs.push_back(feeds[i]->run(feeds[i]->position, counts[i]));
    feeds[i]->position += counts[i];
  }
  if (runs.empty()) return;
  if (manner.poison) poison(context, runs);
  const Source& source = feeds.front()->source;  // a batch shares its weights
  method_for(source.spec.settings.method).forward(context, source.weights, runs);
}

void feed_prompt(Context& context, Feed& feed, std::span<const std::int64_t> chunks,
                 const Manner& manner) {
  const Settings& settings = feed.source.spec.settings;
  const LayerWeights& weights = feed.source.weights;
  if (!needs_whole_prompt(settings)) {
    for (std::int64_t chunk : chunks) feed_forward(context, feed, chunk, manner);
    return;
  }
  const Method& method = method_for(settings.method);
  const std::int64_t begin = feed.position;
  const std::int64_t queries = manner.trim_queries ? settings.summary_queries : -1;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Run run = feed.run(feed.position, chunks[i], queries);
    feed.position += chunks[i];
    if (manner.poison) poison(context, {&run, 1});
    method.take(context, weights, {&run, 1}, i + 1 == chunks.size());
  }
  const std::array<std::int64_t, 1> whole{feed.position - begin};
  std::int64_t first = begin;
  for (std::int64_t chunk : manner.attend_chunks ? chunks : std::span<const std::int64_t>(whole)) {
    const Run run = feed.run(first, chunk);
    if (manner.poison) poison(context, {&run, 1});
    method.attend(context, weights, {&run, 1}, {&first, 1});
    first += chunk;
  }
  method.release(feed.cache);
}

void feed_decode(Context& context, Feed& feed, std::int64_t count, const Manner& manner) {
  for (std::int64_t i = 0; i < count; ++i) feed_forward(context, feed, 1, manner);
}

Outcome feed_to_end(Context& context, Feed& feed) {
  const AttentionShape& shape = feed.source.spec.shape;
  std::fill_n(feed.out.begin(), feed.position * shape.heads * shape.d_value, 0.0F);
  std::fill_n(feed.lse.begin(), feed.position * shape.heads, 0.0F);
  feed_decode(context, feed, feed.source.count() - feed.position);
  return feed.outcome();
}

Feed feed_with(const Feed& feed, Cache cache) {
  Feed other(feed.source);
  other.cache = std::move(cache);
  other.position = other.cache.length();
  return other;
}

Outcome run_sequence(Context& context, const Source& source, std::span<const std::int64_t> prefill,
                     const Manner& manner) {
  Feed feed(source);
  feed_prompt(context, feed, prefill, manner);
  feed_decode(context, feed, source.count() - feed.position, manner);
  return feed.outcome();
}

reference::Result widen(const Outcome& outcome) {
  const auto doubles = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  reference::Result result;
  result.tokens = outcome.tokens;
  result.groups = outcome.groups;
  result.out = doubles(outcome.out);
  result.lse = doubles(outcome.lse);
  result.rep_semantic = doubles(outcome.rep_semantic);
  result.rep_positional = doubles(outcome.rep_positional);
  result.rep_bias = doubles(outcome.rep_bias);
  return result;
}

std::vector<std::int64_t> random_chunks(std::int64_t total, Random& random) {
  std::vector<std::int64_t> chunks;
  while (total > 0) {
    const std::int64_t most = random.chance(0.5) ? std::min<std::int64_t>(total, 4) : total;
    chunks.push_back(random.integer(1, most));
    total -= chunks.back();
  }
  return chunks;
}

}  // namespace lca::test
