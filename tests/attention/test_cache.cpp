// The cache of spec §7: its size, copies, going back, streams of bytes, and the archive.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "attention/cache_state.h"
#include "attention/layout.h"
#include "support/cache_exercise.h"
#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

const AttentionShape kMla = AttentionShape::mla(2, 4, 3, 9, 5);
const AttentionShape kGqa = AttentionShape::gqa(4, 2, 6, 5);

LayerSpec random_spec(Random& random, std::int64_t count) {
  LayerSpec spec;
  spec.shape = random.chance(0.5) ? kMla : kGqa;
  spec.dtype = random.chance(0.5) ? DType::f32 : DType::bf16;
  spec.settings = random_settings(random, count);
  return spec;
}

// --- size --------------------------------------------------------------------------------------

// Spec §7, written out; method `window` holds its sink and window, and no representatives.
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
  return static_cast<std::size_t>(m * (entry * b + mass) + exact * entry * b);
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

// --- copies ------------------------------------------------------------------------------------

// Feeds the rest of the sequence token by token and returns the outputs from there on.
Outcome continue_to_end(Context& context, Feed& feed) {
  std::fill(feed.out.begin(), feed.out.end(), 0.0f);
  std::fill(feed.lse.begin(), feed.lse.end(), 0.0f);
  feed_decode(context, feed, feed.source.count() - feed.position);
  return feed.outcome();
}

// A second feed at the same place, with a cache of its own.
Feed feed_with(const Feed& feed, Cache cache) {
  Feed other(feed.source);
  other.cache = std::move(cache);
  other.position = other.cache.length();
  return other;
}

TEST(Cache, ACloneGoesItsOwnWay) {
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

    // The clone goes on with other tokens; the original must not notice, nor the other way round.
    Feed astray(layer, others);
    astray.cache = feed.cache.clone();
    astray.position = feed.position;
    continue_to_end(context, astray);
    EXPECT_EQ(feed.cache.save(), before);
    EXPECT_TRUE(same_bits(continue_to_end(context, feed), continue_to_end(context, clone)));
  }
}

// --- going back --------------------------------------------------------------------------------

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
      // Both read `length` tokens; one then reads others, and forgets them.
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
      EXPECT_TRUE(same_bits(continue_to_end(context, straight), continue_to_end(context, back)))
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
    EXPECT_EQ(feed.cache.save(), before);  // a refusal changes nothing
  }
}

TEST(Cache, ThePromptModeNeverGoesBack) {
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

// --- streams of bytes --------------------------------------------------------------------------

TEST(Cache, ALoadedCacheContinuesBitForBit) {
  Context context(1);
  for (std::int64_t trial = 0; trial < scaled(40); ++trial) {
    Random random(500 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 60);
    const LayerSpec spec = random_spec(random, n);
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, n + 20, random);
    Feed feed(layer, tokens);
    const std::int64_t prompt = random.integer(0, n);
    if (prompt > 0) feed_prompt(context, feed, random_chunks(prompt, random));
    feed_decode(context, feed, n - prompt);

    const std::vector<std::byte> stream = feed.cache.save();
    cache_poison_spare(feed.cache);
    EXPECT_EQ(feed.cache.save(), stream);  // spare capacity is not part of it
    Cache loaded = Cache::load(stream);
    EXPECT_EQ(loaded.spec(), spec);
    EXPECT_EQ(loaded.length(), n);
    EXPECT_EQ(loaded.bytes(), feed.cache.bytes());
    EXPECT_EQ(loaded.save(), stream);
    Feed other = feed_with(feed, std::move(loaded));
    EXPECT_TRUE(same_bits(continue_to_end(context, feed), continue_to_end(context, other)));
  }
}

TEST(Cache, AnEmptyCacheIsSavedAndLoadedToo) {
  LayerSpec spec;
  spec.shape = kGqa;
  const Cache loaded = Cache::load(Cache(spec).save());
  EXPECT_EQ(loaded.length(), 0);
  EXPECT_EQ(loaded.spec(), spec);
}

// A small cache with sink, representatives, mass, window and recent queries in it.
std::vector<std::byte> small_stream(Form form) {
  Context context(1);
  Random random(9);
  LayerSpec spec;
  spec.shape =
      form == Form::mla ? AttentionShape::mla(1, 2, 1, 3, 2) : AttentionShape::gqa(2, 1, 2, 1);
  spec.settings.group = 2;
  spec.settings.window = 2;
  spec.settings.sink = 1;
  spec.settings.summary_queries = 2;
  spec.settings.mass = Mass::score;
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 10, random);
  Feed feed(layer, tokens);
  feed_forward(context, feed, 10);
  return feed.cache.save();
}

TEST(Cache, AStreamWithAnyByteChangedIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    ASSERT_NO_THROW(Cache::load(stream));
    for (std::size_t at = 0; at < stream.size(); ++at) {
      for (unsigned mask : {0x01u, 0x80u, 0xffu}) {
        std::vector<std::byte> changed = stream;
        changed[at] ^= static_cast<std::byte>(mask);
        EXPECT_THROW(Cache::load(changed), Error) << "byte " << at;
      }
    }
  }
}

TEST(Cache, AStreamCutShortOrWithBytesAfterItIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    for (std::size_t length = 0; length < stream.size(); ++length) {
      EXPECT_THROW(Cache::load(std::span(stream).first(length)), Error) << "length " << length;
    }
    std::vector<std::byte> longer = stream;
    longer.push_back(std::byte{0});
    EXPECT_THROW(Cache::load(longer), Error);
    longer.resize(stream.size() * 2);
    EXPECT_THROW(Cache::load(longer), Error);
  }
}

TEST(Cache, AForgedStreamWithARightChecksumAndBytesTooManyIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    for (std::size_t more = 1; more <= 16; ++more) {
      std::vector<std::byte> longer = stream;
      longer.insert(longer.end() - 8, more, std::byte{0});
      cache_seal(longer);
      EXPECT_THROW(Cache::load(longer), Error) << more << " bytes too many";
    }
  }
}

TEST(Cache, AForgedStreamThatLacksQueriesOfTheNextGroupIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    const Cache cache = Cache::load(stream);
    const RowBuffer& queries = cache.state().queries;
    const Layout layout(cache.spec().settings);
    const std::int64_t needed = cache.length() - layout.first_query_needed(cache.length());
    ASSERT_GT(needed, 0);
    // Queries are the last rows before the checksum. Which number of the header counts them is the
    // format's business, so every one that might is tried.
    std::vector<std::byte> shorter = stream;
    const std::int64_t left = needed - 1;
    shorter.erase(shorter.end() - 8 - (queries.rows() - left) * queries.row_bytes(),
                  shorter.end() - 8);
    int tried = 0;
    for (std::size_t at = 0; at + 8 <= shorter.size() - 8; ++at) {
      std::int64_t count = 0;
      std::memcpy(&count, shorter.data() + at, sizeof count);
      if (count != queries.rows()) continue;
      std::vector<std::byte> forged = shorter;
      std::memcpy(forged.data() + at, &left, sizeof left);
      cache_seal(forged);
      EXPECT_THROW(Cache::load(forged), Error) << "at byte " << at;
      ++tried;
    }
    EXPECT_GT(tried, 0);
  }
}

TEST(Cache, AForgedStreamWithARightChecksumIsRefusedOrUsableAndNeverCrashes) {
  std::int64_t accepted = 0;
  std::int64_t refused = 0;
  const auto try_it = [&](std::vector<std::byte> stream) {
    cache_seal(stream);
    try {
      cache_exercise(Cache::load(stream));
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  };
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    for (std::size_t at = 0; at < stream.size(); ++at) {
      for (unsigned mask : {0x01u, 0x02u, 0x10u, 0x80u, 0xffu}) {
        std::vector<std::byte> changed = stream;
        changed[at] ^= static_cast<std::byte>(mask);
        try_it(changed);
      }
    }
    for (std::size_t length = 0; length < stream.size(); ++length) {
      try_it({stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(length)});
    }
  }
  EXPECT_GT(accepted, 0);  // changed values are values
  EXPECT_GT(refused, 0);
}

// --- the archive -------------------------------------------------------------------------------

// Keeps copies of the rows it is given, and counts how often.
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
    const LayerSpec spec = random_spec(random, n);
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
  continue_to_end(context, clone);
  continue_to_end(context, loaded);
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
