#pragma once
/// A whole layer on the GPU against the reference: feeding a sequence, and comparing the results.
/// All inputs are the same bf16 values on both sides.
///
/// What is allowed: ‖Δout‖ ≤ 5e-3·‖out‖ (rebuilt keys, absorbed queries, softmax weights, latents
/// and outputs are all rounded to bf16 on the way; more where widths are so small that no sum evens
/// it out), and for log-sum-exps 6e-3 of the largest: a query that sees one token has that logit's
/// rounding. Where a group's two best scores are nearly the same, `select` may pick either
/// (mechanism §3): such sequences are drawn again; where none could be found, a flip is excused if
/// the margin is small, counted, and must be rare.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention/cuda/layer.h"
#include "core/bf16.h"
#include "cuda/support.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {

inline constexpr double kToleranceLog = 6e-3;
/// ‖Δout‖ with entry positions at small widths.
inline constexpr double kEntryTolerance = 1.2e-2;

// What counts as a near tie (mechanism §3). Summaries are float32 sums, so nothing more is excused.
inline constexpr double kMarginExcused = 1e-3;

struct Plan {
  LayerSpec spec;
  std::vector<std::vector<std::int64_t>> chunks;  // of each sequence's prompt
  std::int64_t steps = 0;                         // decoded after it, by all together
  cuda::LayerOptions options;
};

struct Tally {
  double tolerance = 5e-3;
  std::int64_t groups = 0;
  std::int64_t flips = 0;
  double worst = 0;
};

/// What a sequence's cache has condensed.
struct HostGroups {
  std::int64_t count = 0;
  std::vector<float> semantic;    // [m][KV][d_semantic]
  std::vector<float> positional;  // [m][KV][d_positional]
  std::vector<float> bias;        // [m][KV]

  HostGroups() = default;
  explicit HostGroups(const Cache& cache) : count(cache.groups()) {
    const auto widen = [&](const ConstTensor& from, std::vector<float>& to) {
      for (std::int64_t i = 0; i < from.shape[1]; ++i) {
        const void* row = from.row(0, i);
        for (std::int64_t k = 0; k < from.shape[2]; ++k) {
          to.push_back(from.dtype == DType::f32
                           ? static_cast<const float*>(row)[k]
                           : bf16_to_f32(static_cast<const bf16_bits*>(row)[k]));
        }
      }
    };
    for (std::int64_t j = 0; j < count; ++j) {
      widen(cache.representative(j).semantic, semantic);
      widen(cache.representative(j).positional, positional);
      for (std::int64_t kv = 0; kv < cache.spec().shape.kv_heads; ++kv) {
        bias.push_back(cache.bias(j, kv));
      }
    }
  }
};

// One sequence that is fed to a layer on the GPU.
struct Path {
  Tokens tokens;
  reference::Result expected;
  std::int64_t prompt = 0;
  std::int64_t position = 0;
  std::vector<float> out, lse;
  HostGroups groups;

  cuda::HostRun run(int sequence, std::int64_t count) {
    const AttentionShape& shape = tokens.shape;
    const auto part = [&](const ConstTensor& all) {
      return all.empty() ? all : all.slice(position, count);
    };
    const Queries queries = tokens.queries();
    const Entries entries = tokens.entries();
    cuda::HostRun run{sequence,
                      {part(queries.nope), part(queries.rope)},
                      {part(entries.semantic), part(entries.positional)},
                      out.data() + position * shape.heads * shape.d_value,
                      lse.data() + position * shape.heads};
    position += count;
    return run;
  }
};

inline bool margin_is_below(const reference::Result& result, std::size_t i, double width) {
  return result.rep_margin[i] < width * std::max(1.0, std::abs(result.rep_top[i]));
}

// Tokens and their reference results, without near ties if possible.
inline Path path_make(const Layer& layer, std::int64_t prompt, std::int64_t count, Random& random) {
  constexpr int kMostDraws = 40;
  Path path;
  path.prompt = prompt;
  for (int draw = 0; draw < kMostDraws; ++draw) {
    const Storage storage{.fused = random.chance(0.5), .queries = std::nullopt};
    path.tokens = random_tokens(layer.spec, count, random, storage);
    path.expected = truth(layer, path.tokens, prompt);
    bool clear = true;
    for (std::size_t i = 0; i < path.expected.rep_margin.size(); ++i) {
      clear = clear && !margin_is_below(path.expected, i, kMarginExcused);
    }
    if (clear || !selects(layer.spec.settings)) break;
  }
  const AttentionShape& shape = layer.spec.shape;
  path.out.assign(static_cast<std::size_t>(count * shape.heads * shape.d_value), kNan);
  path.lse.assign(static_cast<std::size_t>(count * shape.heads), kNan);
  return path;
}

inline void feed(cuda::Layer& gpu, std::vector<Path>& paths, const Plan& plan) {
  std::size_t rounds = 0;
  for (const auto& chunks : plan.chunks) rounds = std::max(rounds, chunks.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (round >= plan.chunks[i].size()) continue;
      runs.push_back(paths[i].run(static_cast<int>(i), plan.chunks[i][round]));
    }
    gpu.prefill(runs);
  }
  for (std::int64_t step = 0; step < plan.steps; ++step) {
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      runs.push_back(paths[i].run(static_cast<int>(i), 1));
    }
    gpu.decode(runs);
  }
  for (std::size_t i = 0; i < paths.size(); ++i)
    paths[i].groups = HostGroups(gpu.to_host(static_cast<int>(i)));
}

// The relative norm of the difference, and where it is first large.
template <typename Expected>
inline double relative_error(const std::vector<Expected>& expected,
                             const std::vector<float>& actual, std::string* where) {
  if (expected.size() != actual.size()) {
    *where = fmt::format("{} values, expected {}", actual.size(), expected.size());
    return std::numeric_limits<double>::infinity();
  }
  RelativeError error;
  double largest = 1e-30;
  for (const Expected& value : expected) {
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto value = static_cast<double>(expected[i]);
    error.add(actual[i], value);
    if (where->empty() && !(std::abs(actual[i] - value) <= 0.03 * largest)) {
      *where = fmt::format("first wrong value {}: {} instead of {}", i, actual[i], value);
    }
  }
  return expected.empty() ? 0 : error.value();
}

inline double largest_difference(const std::vector<double>& expected,
                                 const std::vector<float>& actual, std::string* where) {
  if (expected.size() != actual.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    if (!(difference <= largest)) {
      *where = fmt::format("value {}: {} instead of {}", i, actual[i], expected[i]);
      largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
  }
  return largest;
}

inline double largest_size(const std::vector<double>& values) {
  double largest = 1;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Groups whose selected row is another than the reference's. Only near ties may be.
inline std::int64_t count_flips(const LayerSpec& spec, const Path& path, const std::string& what) {
  const Settings& settings = spec.settings;
  if (!selects(settings)) return 0;
  const auto width =
      static_cast<std::size_t>(settings.positional_pool == Pool::select ? spec.shape.d_positional()
                                                                        : spec.shape.d_semantic());
  const bool positional = settings.positional_pool == Pool::select;
  const std::vector<double>& expected =
      positional ? path.expected.rep_positional : path.expected.rep_semantic;
  const std::vector<float>& actual = positional ? path.groups.positional : path.groups.semantic;
  if (actual.size() != expected.size()) return 0;  // another check says so
  std::int64_t flips = 0;
  for (std::size_t i = 0; i < path.expected.rep_margin.size(); ++i) {
    const auto first = expected.begin() + static_cast<std::ptrdiff_t>(i * width);
    // Rotated rows are rounded; another row of the group is further off than that.
    double largest = 0;
    for (auto value = first; value < first + static_cast<std::ptrdiff_t>(width); ++value) {
      largest = std::max(largest, std::abs(*value));
    }
    const double allowed =
        positional && settings.positions == Positions::entry ? 6e-3 * largest : 0;
    const bool same = std::equal(
        first, first + static_cast<std::ptrdiff_t>(width),
        actual.begin() + static_cast<std::ptrdiff_t>(i * width),
        [&](double a, float b) { return std::abs(a - static_cast<double>(b)) <= allowed; });
    if (same) continue;
    ++flips;
    EXPECT_TRUE(margin_is_below(path.expected, i, kMarginExcused))
        << what << ": representative " << i
        << " is another row than the reference's, by a margin of " << path.expected.rep_margin[i]
        << " at " << path.expected.rep_top[i];
  }
  return flips;
}

inline void check_path(const LayerSpec& spec, const Path& path, const std::string& what,
                       Tally& tally) {
  tally.groups += static_cast<std::int64_t>(path.expected.rep_margin.size());
  ASSERT_EQ(path.groups.count, path.expected.groups) << what;
  const std::int64_t flips = count_flips(spec, path, what);
  tally.flips += flips;
  if (flips > 0) return;  // every output after it is legitimately another

  const auto near = [&](const char* name, const auto& expected, const std::vector<float>& actual) {
    std::string where;
    const double error = relative_error(expected, actual, &where);
    EXPECT_LE(error, tally.tolerance) << what << ": " << name << ", " << where;
    tally.worst = std::max(tally.worst, error);
  };
  near("representatives, semantic", path.expected.rep_semantic, path.groups.semantic);
  near("representatives, positional", path.expected.rep_positional, path.groups.positional);
  std::string where;
  EXPECT_LE(largest_difference(path.expected.rep_bias, path.groups.bias, &where),
            2 * kToleranceLog * largest_size(path.expected.rep_top))
      << what << ": bias, " << where;
  // What prefill and decoding made, apart: one may hide the other.
  const auto cut = [&](std::int64_t values, const auto& all, bool front) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(path.prompt * values);
    using Values = std::decay_t<decltype(all)>;
    return front ? Values(all.begin(), middle) : Values(middle, all.end());
  };
  for (const bool front : {true, false}) {
    const std::int64_t outs = spec.shape.heads * spec.shape.d_value;
    near(front ? "out of prefill" : "out of decoding", cut(outs, path.expected.out, front),
         cut(outs, path.out, front));
    where.clear();
    EXPECT_LE(largest_difference(cut(spec.shape.heads, path.expected.lse, front),
                                 cut(spec.shape.heads, path.lse, front), &where),
              kToleranceLog * largest_size(path.expected.lse))
        << what << ": lse of " << (front ? "prefill" : "decoding") << ", " << where;
  }
}

inline void run_plan(const Plan& plan, Random& random, const std::string& name, Tally& tally) {
  const Layer layer = random_layer(plan.spec, random);
  std::vector<Path> paths;
  std::int64_t longest = 1;
  for (const std::vector<std::int64_t>& chunks : plan.chunks) {
    std::int64_t prompt = 0;
    for (const std::int64_t chunk : chunks) prompt += chunk;
    paths.push_back(path_make(layer, prompt, prompt + plan.steps, random));
    longest = std::max(longest, prompt + plan.steps);
  }
  cuda::Layer gpu(plan.spec, layer.weights(), static_cast<int>(paths.size()), longest,
                  plan.options);
  feed(gpu, paths, plan);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string what = fmt::format(
        "{} sequence {} of {}: {} chunks=[{}] steps={} {} groups={}", name, i, paths.size(),
        describe(plan.spec), fmt::join(plan.chunks[i], ","), plan.steps,
        plan.options.portable ? "portable" : "fast", static_cast<int>(plan.options.groups));
    check_path(plan.spec, paths[i], what, tally);
  }
}

inline void finish(const Tally& tally) {
  EXPECT_LE(tally.flips * 100, 6 * tally.groups) << "near ties flipped in above 6 % of groups";
  fmt::print("largest relative error {:.1e}; {} of {} groups flipped\n", tally.worst, tally.flips,
             tally.groups);
}

inline LayerSpec spec_of(const AttentionShape& shape, const Settings& settings) {
  LayerSpec spec;
  spec.shape = shape;
  spec.settings = settings;
  spec.dtype = DType::bf16;
  return spec;
}

inline LayerSpec entry_spec(const AttentionShape& shape, const Settings& settings, Random& random) {
  LayerSpec spec = spec_of(shape, settings);
  spec.settings.positions = Positions::entry;
  spec.rotation = random_rotation(random, shape.d_positional());
  return spec;
}

inline bool takes_whole_prompts(const Settings& settings) { return needs_whole_prompt(settings); }

// `sequences` prompts of random lengths up to `most`, in random chunks.
inline Plan random_plan(const LayerSpec& spec, int sequences, std::int64_t most, std::int64_t steps,
                        Random& random) {
  Plan plan;
  plan.spec = spec;
  plan.steps = steps;
  plan.options = {.portable = random.chance(0.5), .poison = true};
  for (int i = 0; i < sequences; ++i) {
    const std::int64_t prompt = random.integer(1, most);
    plan.chunks.push_back(takes_whole_prompts(spec.settings) || random.chance(0.3)
                              ? std::vector<std::int64_t>{prompt}
                              : random_chunks(prompt, random));
  }
  return plan;
}

}  // namespace lca::test
