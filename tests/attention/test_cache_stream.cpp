// Saving and loading a cache: what comes back is the same cache, and hostile bytes are refused.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "attention/cache_state.h"
#include "attention/layout.h"
#include "support/cache_exercise.h"
#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"
#include "support/small_cache.h"

namespace lca::test {
namespace {

TEST(CacheStream, ALoadedCacheContinuesBitForBit) {
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
    EXPECT_TRUE(same_bits(feed_to_end(context, feed), feed_to_end(context, other)));
  }
}

TEST(CacheStream, AnEmptyCacheIsSavedAndLoadedToo) {
  LayerSpec spec;
  spec.shape = kGqa;
  const Cache loaded = Cache::load(Cache(spec).save());
  EXPECT_EQ(loaded.length(), 0);
  EXPECT_EQ(loaded.spec(), spec);
}

TEST(CacheStream, ItCarriesTheRotation) {
  LayerSpec spec;
  spec.shape = kGqa;
  spec.settings.positions = Positions::entry;
  spec.rotation = {RopeLayout::adjacent, {1.0, 0.125}};
  EXPECT_EQ(Cache::load(Cache(spec).save()).spec(), spec);
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
  if (form == Form::gqa) {
    spec.settings.positions = Positions::entry;
    spec.rotation = {RopeLayout::halves, {0.5}};
  }
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 10, random);
  Feed feed(layer, tokens);
  feed_forward(context, feed, 10);
  return feed.cache.save();
}

TEST(CacheStream, AStreamWithAnyByteChangedIsRefused) {
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

TEST(CacheStream, AStreamCutShortOrWithBytesAfterItIsRefused) {
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

TEST(CacheStream, AForgedStreamWithARightChecksumAndBytesTooManyIsRefused) {
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

TEST(CacheStream, AForgedStreamThatLacksQueriesOfTheNextGroupIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const std::vector<std::byte> stream = small_stream(form);
    const Cache cache = Cache::load(stream);
    const RowBuffer& queries = cache.state().queries;
    const Layout layout(cache.spec().settings);
    const std::int64_t needed = cache.length() - layout.first_query_needed(cache.length());
    ASSERT_GT(needed, 0);
    // Queries are the last rows before the checksum, and their number the last before all rows.
    const std::size_t rows = cache.bytes() + queries.bytes();
    const std::size_t at = stream.size() - sizeof(std::uint64_t) - rows - sizeof(std::int64_t);
    std::int64_t count = 0;
    std::memcpy(&count, stream.data() + at, sizeof count);
    ASSERT_EQ(count, queries.rows());
    std::vector<std::byte> shorter = stream;
    const std::int64_t left = needed - 1;
    std::memcpy(shorter.data() + at, &left, sizeof left);
    shorter.erase(shorter.end() - 8 - (queries.rows() - left) * queries.row_bytes(),
                  shorter.end() - 8);
    cache_seal(shorter);
    EXPECT_THROW(Cache::load(shorter), Error);
  }
}

TEST(CacheStream, AForgedStreamWithARightChecksumIsRefusedOrUsableAndNeverCrashes) {
  std::int64_t accepted = 0;
  std::int64_t refused = 0;
  const auto try_it = [&](std::vector<std::byte> stream) {
    cache_seal(stream);
    std::optional<Cache> cache;
    try {
      cache = Cache::load(stream);
    } catch (const Error&) {
      ++refused;
      return;
    }
    ++accepted;
    cache_exercise(*cache);
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

TEST(CacheStream, AMarkOfAnotherLengthThanItsBytesIsRefused) {
  for (Form form : {Form::mla, Form::gqa}) {
    const Cache whole = Cache::load(small_stream(form));
    const std::vector<std::byte> mark = cache_mark_save(whole);
    EXPECT_EQ(cache_mark_load(mark, whole).save(), whole.save());
    for (std::size_t length = 0; length < mark.size(); ++length) {
      EXPECT_THROW(cache_mark_load(std::span(mark).first(length), whole), Error) << length;
    }
    for (std::size_t more = 1; more <= 16; ++more) {
      std::vector<std::byte> longer = mark;
      longer.resize(mark.size() + more);
      EXPECT_THROW(cache_mark_load(longer, whole), Error) << more << " bytes too many";
    }
    const Cache empty(whole.spec());
    EXPECT_THROW(cache_mark_load(mark, empty), Error) << "it never came so far";
  }
}

}  // namespace
}  // namespace lca::test
