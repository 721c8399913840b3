// The interface of the methods: selection by settings, what each keeps, and what it refuses.

#include "methods/methods.h"

#include "attention/layout.h"
#include "formats/byte_files.h"
#include "support/feed.h"
#include "support/small_cache.h"

#include <gtest/gtest.h>

namespace lca::test {
namespace {

constexpr MethodKind kKinds[] = {MethodKind::dense, MethodKind::lca, MethodKind::window};

/// A layer of one of the two forms, with a small window, so that groups are condensed early.
Layer layer_of(const AttentionShape& shape, MethodKind kind) {
  LayerSpec spec;
  spec.shape = shape;
  spec.dtype = DType::f32;
  spec.settings.method = kind;
  spec.settings.group = 3;
  spec.settings.window = 4;
  spec.settings.sink = 1;
  Random random(3);
  return random_layer(spec, random);
}

Tokens tokens_of(const Layer& layer, std::int64_t count) {
  Random random(4);
  return random_tokens(layer.spec, count, random);
}

TEST(Methods, EachKindHasItsOwnByName) {
  EXPECT_EQ(method_for(MethodKind::dense).name(), "dense");
  EXPECT_EQ(method_for(MethodKind::lca).name(), "lca");
  EXPECT_EQ(method_for(MethodKind::window).name(), "window");
}

TEST(Methods, KeepWhatTheLayoutSays) {
  Context context(1);
  for (const AttentionShape& shape : {kMla, kGqa}) {
    for (const MethodKind kind : kKinds) {
      const Layer layer = layer_of(shape, kind);
      const Tokens tokens = tokens_of(layer, 20);
      Feed feed(layer, tokens);
      for (std::int64_t length = 1; length <= 20; ++length) {
        feed_forward(context, feed, 1);
        const Layout layout(layer.spec.settings);
        EXPECT_EQ(feed.cache.length(), length);
        EXPECT_EQ(feed.cache.groups(), layout.groups(length));
        EXPECT_EQ(feed.cache.groups() > 0, kind == MethodKind::lca && length >= 8);
      }
    }
  }
}

TEST(Methods, RefuseACacheOfAnotherMethod) {
  Context context(1);
  for (const MethodKind made : kKinds) {
    const Layer layer = layer_of(kMla, made);
    const Tokens tokens = tokens_of(layer, 4);
    for (const MethodKind asked : kKinds) {
      if (asked == made) continue;
      Feed feed(layer, tokens);
      const lca::Run run = feed.run(0, 4);
      expect_error(
          [&] {
            method_for(asked).forward(context, feed.source.weights, {&run, 1});
          },
          {"run 0 has a cache of another method"});
      EXPECT_EQ(feed.cache.length(), 0);
    }
  }
}

/// A batch of two runs of one layer, which tests then make invalid.
struct Pair {
  explicit Pair(const AttentionShape& shape, MethodKind kind = MethodKind::lca)
      : layer(layer_of(shape, kind)),
        tokens(tokens_of(layer, 4)),
        a(layer, tokens),
        b(layer, tokens),
        runs{a.run(0, 4), b.run(0, 4)} {}

  void expect_refused(const std::vector<std::string>& parts) {
    expect_error(
        [&] { method_for(layer.spec.settings.method).forward(context, a.source.weights, runs); },
        parts);
    EXPECT_EQ(a.cache.length(), 0) << "nothing is taken from a batch that is refused";
    EXPECT_EQ(b.cache.length(), 0);
  }

  Context context{1};
  Layer layer;
  Tokens tokens;
  Feed a, b;
  std::vector<lca::Run> runs;
};

TEST(Methods, RefuseRunsThatDoNotMakeABatch) {
  for (const MethodKind kind : kKinds) {
    Pair absent(kGqa, kind);
    absent.runs[1].cache = nullptr;
    absent.expect_refused({"run 1 of the batch has no cache"});

    Pair shared(kGqa, kind);
    shared.runs[1].cache = shared.runs[0].cache;
    shared.expect_refused({"runs 0 and 1 of one batch share a cache"});

    Pair mixed(kGqa, kind);
    LayerSpec other = mixed.layer.spec;
    other.settings.window += 1;
    Cache cache(other);
    mixed.runs[1].cache = &cache;
    mixed.expect_refused({"runs 0 and 1 of one batch belong to different layers"});
    EXPECT_EQ(cache.length(), 0);
  }
}

TEST(Methods, RefuseViewsOfAnotherShape) {
  Pair none(kGqa);
  none.runs[1].queries.rope.shape[0] = 0;
  none.expect_refused({"at least one query"});

  Pair narrow(kGqa);
  narrow.runs[1].queries.rope.shape[2] -= 1;
  narrow.expect_refused({"queries.rope", "[4,4,6]", "it is [4,4,5]"});

  Pair strided(kGqa);
  strided.runs[1].queries.rope.stride[2] = 2;
  strided.expect_refused({"queries.rope", "contiguous"});

  Pair heads(kMla);
  heads.runs[0].queries.nope.shape[1] = 1;
  heads.expect_refused({"queries.nope"});

  Pair entries(kMla);
  entries.runs[1].entries.semantic.shape[2] += 1;
  entries.expect_refused({"entries.semantic"});

  Pair uneven(kMla);
  uneven.runs[1].entries.positional.shape[0] -= 1;
  uneven.expect_refused({"entries.positional"});

  Pair queries(kGqa);
  queries.runs[1].entries.semantic.shape[0] = 3;
  queries.runs[1].entries.positional.shape[0] = 3;
  queries.expect_refused({"more queries than tokens"});
}

TEST(Methods, RefuseQueriesWhoseTokensAreGoneOrNotTakenYet) {
  Context context(1);
  const Layer layer = layer_of(kGqa, MethodKind::window);
  const Tokens tokens = tokens_of(layer, 12);
  Feed feed(layer, tokens);
  feed_forward(context, feed, 12);
  const Method& method = method_for(MethodKind::window);
  const lca::Run run = feed.run(2, 1);
  for (const std::int64_t first : {std::int64_t{-1}, std::int64_t{2}, std::int64_t{12}}) {
    expect_error(
        [&] {
          method.attend(context, feed.source.weights, {&run, 1}, {&first, 1});
        },
        {"out of range for a cache of 12 tokens"});
  }
  const std::int64_t last = 11;
  method.attend(context, feed.source.weights, {&run, 1}, {&last, 1});
  lca::Run nowhere = run;
  nowhere.out = nullptr;
  expect_error(
      [&] {
        method.attend(context, feed.source.weights, {&nowhere, 1}, {&last, 1});
      },
      {"no output buffer"});
}

TEST(Methods, AnOpenPromptIsNeitherAttendedNorReleased) {
  Context context(1);
  for (const AttentionShape& shape : {kMla, kGqa}) {
    Layer layer = layer_of(shape, MethodKind::lca);
    layer.spec.settings.summary = Summary::prompt;
    const Tokens tokens = tokens_of(layer, 30);
    Feed feed(layer, tokens);
    const Method& method = method_for(MethodKind::lca);
    const lca::Run chunk = feed.run(0, 20);
    const std::int64_t first = 0;
    method.take(context, feed.source.weights, {&chunk, 1}, false);
    expect_error(
        [&] {
          method.attend(context, feed.source.weights, {&chunk, 1}, {&first, 1});
        },
        {"the prompt has not ended"});
    expect_error([&] { method.release(feed.cache); }, {"the prompt has not ended"});
    Cache copy = feed.cache.clone();
    expect_error([&] { method.release(copy); }, {"the prompt has not ended"});
    const lca::Run rest = feed.run(20, 10);
    method.take(context, feed.source.weights, {&rest, 1}, true);
    method.attend(context, feed.source.weights, {&chunk, 1}, {&first, 1});
    method.release(feed.cache);
    EXPECT_EQ(feed.cache.groups(), Layout(layer.spec.settings).groups(30));
  }
}

}  // namespace
}  // namespace lca::test
