// The cache of mechanism §7: its size, copies, truncation, and the archive.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"
#include "support/small_cache.h"

namespace lca::test {
namespace {

// --- size --------------------------------------------------------------------------------------

// Mechanism §7, written out; method `window` holds its sink and window, and no representatives.
std::size_t law_of_size(const LayerSpec& spec, std::int64_t n) {
  const AttentionShape& shape = spec.shape;
  const Settings& settings = spec.settings;
  const std::int64_t b = spec.dtype == DType::f32 ? 4 : 2;
  const std::int64_t entry = shape.form == Form::mla
                                 ? shape.d_latent + shape.d_rope
                                 : shape.kv_heads * (shape.d_rope + shape.d_value);
  const std::int64_t g = settings.group;
  const std::int64_t w = settings.window;
  const std::int64_t s = settings.sink;
  std::int64_t m = 0;
  std::int64_t exact = n;
  if (settings.method == MethodKind::lca && n >= s + w + g) m = (n - w - s) / g;
  if (settings.method == MethodKind::lca) exact = n - m * g;
  if (settings.method == MethodKind::window) exact = std::min(n, s + w);
  const std::int64_t mass = settings.mass == Mass::score ? 4 * shape.kv_heads : 0;
  std::int64_t row = entry * b;
  std::int64_t sink = 0;
  if (spec.storage == CacheStorage::int8) {
    // 8 bits and float32 scales; MLA's key and the sink stay as they are.
    row = shape.form == Form::mla
              ? shape.d_latent + 4 * ((shape.d_latent + 127) / 128) + shape.d_rope * b
              : entry + 4 * 2 * shape.kv_heads;
    sink = std::min(n, s);
  }
  return static_cast<std::size_t>(m * (row + mass) + (exact - sink) * row + sink * entry * b);
}

TEST(Cache, ItsSizeFollowsTheLawToTheByteAfterEveryStep) {
  Context context(1);
  for (std::int64_t trial = 0; trial < scaled(60); ++trial) {
    Random random(100 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 80);
    const LayerSpec spec = random_spec(random, n);
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n, random);
    Feed feed(layer, tokens);
    EXPECT_EQ(feed.cache.bytes(), 0u);
    EXPECT_EQ(cache_bytes(spec, 0), 0u);
    while (feed.position < n) {
      const std::int64_t left = n - feed.position;
      feed_forward(context, feed, random.chance(0.7) ? 1 : random.integer(1, left));
      ASSERT_EQ(feed.cache.length(), feed.position);
      ASSERT_EQ(feed.cache.groups(), Layout(spec.settings).groups(feed.position));
      ASSERT_EQ(feed.cache.bytes(), law_of_size(spec, feed.position)) << "n=" << feed.position;
      ASSERT_EQ(feed.cache.bytes(), cache_bytes(spec, feed.position)) << "n=" << feed.position;
    }
  }
}

TEST(Cache, ItsSizeFollowsTheLawAfterAPromptThatWasReadAsAWhole) {
  Context context(1);
  Random random(7);
  for (Form form : {Form::mla, Form::gqa}) {
    LayerSpec spec;
    spec.shape = form == Form::mla ? kMla : kGqa;
    spec.settings = settings_preset("paper");
    spec.settings.window = 9;
    spec.settings.group = 4;
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 60, random);
    Feed feed(layer, tokens);
    feed_prompt(context, feed, std::array<std::int64_t, 3>{20, 1, 29});
    EXPECT_EQ(feed.cache.bytes(), law_of_size(spec, 50));
    feed_decode(context, feed, 10);
    EXPECT_EQ(feed.cache.bytes(), law_of_size(spec, 60));
  }
}

TEST(Cache, PublishedModelsTakeWhatTheSpecSaysAt128K) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const auto gib = [&](const char* name, MethodKind method) {
    const NamedShape& model = named_shape(name);
    LayerSpec spec;
    spec.shape = model.shape;
    spec.dtype = DType::bf16;
    spec.settings.method = method;
    return static_cast<double>(model.layers) * static_cast<double>(cache_bytes(spec, 128 * 1024)) /
           kGiB;
  };
  EXPECT_NEAR(gib("deepseek-v2-lite", MethodKind::lca), 0.265, 0.0005);
  EXPECT_NEAR(gib("deepseek-v2-lite", MethodKind::dense), 3.80, 0.005);
  EXPECT_NEAR(gib("minicpm3", MethodKind::lca), 0.30, 0.005);
  EXPECT_NEAR(gib("minicpm3", MethodKind::dense), 4.36, 0.005);
  EXPECT_NEAR(gib("qwen-7b", MethodKind::lca), 0.49, 0.005);
  EXPECT_NEAR(gib("qwen-7b", MethodKind::dense), 7.00, 0.005);
}

TEST(Cache, RowsOf8BitsTakeLittleMoreThanHalf) {
  for (const NamedShape& model : named_shapes()) {
    LayerSpec spec;
    spec.shape = model.shape;
    spec.dtype = DType::bf16;
    const auto plain = static_cast<double>(cache_bytes(spec, 32 * 1024));
    spec.storage = CacheStorage::int8;
    const auto narrow = static_cast<double>(cache_bytes(spec, 32 * 1024));
    EXPECT_LT(narrow, plain * (model.shape.form == Form::mla ? 0.57 : 0.54)) << model.name;
  }
}

// --- copies ------------------------------------------------------------------------------------

TEST(Cache, ACloneIsIndependent) {
  Context context(1);
  for (std::int64_t trial = 0; trial < scaled(30); ++trial) {
    Random random(200 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(2, 60);
    const LayerSpec spec = random_spec(random, n);
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n, random);
    const Tokens others = random_tokens(spec, n, random);

    Feed feed(layer, tokens);
    feed_forward(context, feed, random.integer(1, n - 1));
    const std::vector<std::byte> before = feed.cache.save();
    Feed clone = feed_with(feed, feed.cache.clone());
    EXPECT_EQ(clone.cache.save(), before);

    // The clone continues with other tokens; neither may change the other.
    Feed astray(layer, others);
    astray.cache = feed.cache.clone();
    astray.position = feed.position;
    feed_to_end(context, astray);
    EXPECT_EQ(feed.cache.save(), before);
    EXPECT_TRUE(same_bits(feed_to_end(context, feed), feed_to_end(context, clone)));
  }
}

// --- truncation --------------------------------------------------------------------------------

// The shortest prefix whose window is still whole: no token of it has been dropped since.
std::int64_t shortest_whole_prefix(const LayerSpec& spec, std::int64_t n) {
  const Layout layout(spec.settings);
  std::int64_t shortest = n;
  while (shortest > 0 && layout.dropped(shortest - 1) == layout.dropped(n)) --shortest;
  return shortest;
}

TEST(Cache, TruncatedToAPrefixItContinuesAsIfItHadNeverGoneFurther) {
  Context context(1);
  std::int64_t truncations = 0;
  for (std::int64_t trial = 0; trial < scaled(60); ++trial) {
    Random random(300 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 60);
    LayerSpec spec = random_spec(random, n);
    spec.settings.summary = Summary::streaming;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n + 25, random);
    const Tokens others = random_tokens(spec, n + 25, random);

    const std::int64_t floor = shortest_whole_prefix(spec, n);
    for (std::int64_t length : {floor, (floor + n) / 2, n}) {
      // Both read `length` tokens; one then reads more, and is truncated again.
      Feed straight(layer, tokens);
      Feed astray(layer, others);
      if (length > 0) feed_forward(context, straight, length);
      astray.cache = straight.cache.clone();
      astray.position = length;
      if (n > length) feed_forward(context, astray, n - length);
      ASSERT_EQ(astray.cache.truncate_floor(), floor) << "n=" << n;
      astray.cache.truncate(length);
      ASSERT_EQ(astray.cache.length(), length);
      ASSERT_EQ(astray.cache.bytes(), cache_bytes(spec, length));

      Feed back = feed_with(straight, std::move(astray.cache));
      EXPECT_TRUE(same_bits(feed_to_end(context, straight), feed_to_end(context, back)))
          << "n=" << n << " length=" << length;
      ++truncations;
    }
  }
  EXPECT_GE(truncations, 3);
}

TEST(Cache, APrefixWhoseWindowIsGoneOrThatWasNeverReadIsRefused) {
  Context context(1);
  for (std::int64_t trial = 0; trial < scaled(40); ++trial) {
    Random random(400 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 60);
    LayerSpec spec = random_spec(random, n);
    spec.settings.summary = Summary::streaming;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n, random);
    Feed feed(layer, tokens);
    feed_forward(context, feed, n);
    const std::vector<std::byte> before = feed.cache.save();
    const std::int64_t floor = feed.cache.truncate_floor();
    for (std::int64_t length : {floor - 1, n + 1, std::int64_t{-1}}) {
      EXPECT_THROW(feed.cache.truncate(length), Error) << "length=" << length;
    }
    EXPECT_EQ(feed.cache.save(), before);  // a failed call changes nothing
  }
}

TEST(Cache, PromptModeCannotBeTruncated) {
  Context context(1);
  Random random(8);
  LayerSpec spec;
  spec.shape = kMla;
  spec.settings = settings_preset("paper");
  spec.settings.window = 4;
  spec.settings.group = 3;
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 30, random);
  Feed feed(layer, tokens);
  feed_prompt(context, feed, std::array<std::int64_t, 1>{25});
  EXPECT_EQ(feed.cache.truncate_floor(), 25);
  for (std::int64_t length : {24, 8, 0}) EXPECT_THROW(feed.cache.truncate(length), Error);
  feed_decode(context, feed, 5);
  EXPECT_THROW(feed.cache.truncate(29), Error);
}

// --- the archive -------------------------------------------------------------------------------

// Keeps copies of the rows it receives, and counts them.
class Recorder : public Archive {
 public:
  struct Group {
    int times = 0;
    std::int64_t position = -1;
    DType dtype = DType::f32;
    std::vector<double> semantic;
    std::vector<double> positional;
  };
  std::map<std::int64_t, Group> groups;

  void store(std::int64_t group, std::int64_t position, const Entries& entries) override {
    Group& kept = groups[group];
    ++kept.times;
    kept.position = position;
    kept.dtype = entries.semantic.dtype;
    EXPECT_EQ(entries.positional.dtype, entries.semantic.dtype);
    kept.semantic = values_of(entries.semantic);
    kept.positional = values_of(entries.positional);
  }

 private:
  static std::vector<double> values_of(const ConstTensor& tensor) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
      for (std::int64_t j = 0; j < tensor.shape[1]; ++j) {
        for (std::int64_t k = 0; k < tensor.shape[2]; ++k) {
          values.push_back(tensor.dtype == DType::f32
                               ? static_cast<const float*>(tensor.row(i, j))[k]
                               : bf16_to_f32(static_cast<const bf16_bits*>(tensor.row(i, j))[k]));
        }
      }
    }
    return values;
  }
};

std::vector<double> rows_of(const Buffer& buffer, const Range& rows) {
  std::vector<double> values;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    for (std::int64_t j = 0; j < buffer.columns(); ++j) {
      for (std::int64_t k = 0; k < buffer.width(); ++k) values.push_back(buffer.get(i, j, k));
    }
  }
  return values;
}

TEST(Cache, TheArchiveGetsEveryCondensedGroupOnceWithItsExactRows) {
  Context context(2);
  std::int64_t stored = 0;
  for (std::int64_t trial = 0; trial < scaled(60); ++trial) {
    Random random(600 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 80);
    LayerSpec spec = random_spec(random, n);
    spec.storage = CacheStorage::plain;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n, random, {.fused = random.chance(0.5)});
    Recorder recorder;
    Feed feed(layer, tokens);
    feed.cache.set_archive(&recorder);
    const std::int64_t prompt = random.integer(1, n);
    feed_prompt(context, feed, random_chunks(prompt, random));
    feed_decode(context, feed, n - prompt);

    const Layout layout(spec.settings);
    ASSERT_EQ(static_cast<std::int64_t>(recorder.groups.size()), layout.groups(n));
    for (const auto& [j, group] : recorder.groups) {
      const Range range = layout.group_range(j);
      EXPECT_EQ(group.times, 1) << "group " << j;
      EXPECT_EQ(group.position, range.begin);
      EXPECT_EQ(group.dtype, spec.dtype);
      EXPECT_EQ(group.semantic, rows_of(tokens.semantic, range)) << "group " << j;
      EXPECT_EQ(group.positional, rows_of(tokens.positional, range)) << "group " << j;
      ++stored;
    }
  }
  EXPECT_GT(stored, 0);
}

TEST(Cache, CopiesAndLoadedCachesStartWithoutAnArchive) {
  Context context(1);
  Random random(10);
  LayerSpec spec;
  spec.shape = kMla;
  spec.settings.group = 3;
  spec.settings.window = 4;
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 30, random);
  Recorder recorder;
  Feed feed(layer, tokens);
  feed.cache.set_archive(&recorder);
  feed_forward(context, feed, 16);
  const std::size_t before = recorder.groups.size();
  EXPECT_EQ(before, 4u);

  Feed clone = feed_with(feed, feed.cache.clone());
  Feed loaded = feed_with(feed, Cache::load(feed.cache.save()));
  feed_to_end(context, clone);
  feed_to_end(context, loaded);
  EXPECT_EQ(recorder.groups.size(), before);

  feed.cache.set_archive(nullptr);
  feed_forward(context, feed, 7);
  EXPECT_EQ(recorder.groups.size(), before);
  feed.cache.set_archive(&recorder);
  feed_forward(context, feed, 7);
  EXPECT_GT(recorder.groups.size(), before);
}

}  // namespace
}  // namespace lca::test
