// Rows of 8 bits (mechanism §7): every reader sees what they stand for, in every mode.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/cache_state.h"
#include "attention/cpu/rows.h"
#include "attention/cpu/vector.h"
#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"
#include "support/small_cache.h"

namespace lca::test {
namespace {

/// Shapes for every path: widths of whole vectors and others, one block of a latent and several.
const std::vector<AttentionShape>& shapes() {
  static const std::vector<AttentionShape> all = {
      kMla,
      kGqa,
      AttentionShape::mla(9, 16, 8, 300, 16),
      AttentionShape::gqa(6, 2, 64, 64),
      AttentionShape::gqa(4, 1, 128, 64),
      AttentionShape::gqa(14, 2, 64, 128),
      AttentionShape::gqa(2, 2, 256, 256),
      AttentionShape::gqa(8, 2, 32, 32),
  };
  return all;
}

LayerSpec int8_spec(Random& random, const AttentionShape& shape, std::int64_t count) {
  LayerSpec spec;
  spec.shape = shape;
  spec.dtype = random.chance(0.5) ? DType::f32 : DType::bf16;
  spec.settings = random_settings(random, count);
  random_positions(spec, random);
  spec.storage = CacheStorage::int8;
  return spec;
}

TEST(Int8Rows, AValueIsAWholeNumberOfStepsAndRoundingItAgainChangesNothing) {
  Random random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t count = random.integer(1, 200);
    std::vector<float> values;
    const double size = std::exp(random.normal() * 8);
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(random.normal() * size));
    }
    std::vector<std::int8_t> q(values.size());
    const float scale = cpu::vector_quantise(values.data(), count, q.data());
    std::vector<float> wide(values.size());
    cpu::vector_dequantise(q.data(), scale, count, DType::f32, wide.data());
    int most = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(q[i]));
      ASSERT_LE(std::abs(wide[i] - values[i]), scale * 0.501F);
    }
    EXPECT_EQ(most, 127);
    std::vector<std::int8_t> again(values.size());
    EXPECT_EQ(cpu::vector_quantise(wide.data(), count, again.data()), scale);
    EXPECT_EQ(again, q);
  }
}

TEST(Int8Rows, ARowOfZerosStaysOneAndOneWithANaNBecomesOne) {
  const std::vector<float> zeros(40);
  std::vector<std::int8_t> q(40, 1);
  EXPECT_EQ(cpu::vector_quantise(zeros.data(), 40, q.data()), 0.0F);
  EXPECT_EQ(q, std::vector<std::int8_t>(40));
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(40, 1.0F);
    values[33] = odd;
    EXPECT_TRUE(std::isnan(cpu::vector_quantise(values.data(), 40, q.data())));
  }
}

TEST(Int8Rows, AQueryIsTwoBytesAValueAndSaysWhatIsNotFinite) {
  Random random(6);
  for (const std::int64_t count : {1, 5, 16, 64, 67, 128}) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random.normal()));
    std::vector<std::int8_t> bytes(2 * values.size());
    const cpu::Int8Query query = cpu::query_quantise(values.data(), count, bytes.data());
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int whole = 256 * bytes[i] + bytes[values.size() + i];
      sum += whole;
      ASSERT_LE(std::abs(query.step * static_cast<float>(whole) - values[i]), query.step * 0.51F);
    }
    EXPECT_EQ(query.excess, 128 * sum);
    for (const float odd :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      for (std::size_t at = 0; at < values.size(); ++at) {
        std::vector<float> spoilt = values;
        spoilt[at] = odd;
        ASSERT_TRUE(std::isnan(cpu::query_quantise(spoilt.data(), count, bytes.data()).step)) << at;
      }
    }
  }
}

TEST(Int8Cache, AgreesWithTheReferenceHoweverTheSequenceIsFed) {
  for (std::int64_t trial = 0; trial < scaled(120); ++trial) {
    Random random(4000 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(1, 150);
    const AttentionShape& shape = shapes()[static_cast<std::size_t>(trial) % shapes().size()];
    const LayerSpec spec = int8_spec(random, shape, n);
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const std::int64_t prompt = random.integer(1, n);
    const Example example = random_example(layer, n, prompt, random);
    Context context(2);
    const Outcome fed = run_sequence(context, layer, example.tokens, random_chunks(prompt, random),
                                     {.poison = true});
    // The tolerance of bf16: a pooled value may round to the next of 255 steps.
    EXPECT_TRUE(close(example.expected, fed, DType::bf16));
  }
}

TEST(Int8Cache, ChunksMakeNoDifferenceToWhatIsKept) {
  for (std::int64_t trial = 0; trial < scaled(40); ++trial) {
    Random random(4300 + static_cast<std::uint64_t>(trial));
    const std::int64_t n = random.integer(20, 120);
    LayerSpec spec =
        int8_spec(random, shapes()[static_cast<std::size_t>(trial) % shapes().size()], n);
    spec.settings.summary = Summary::streaming;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_example(layer, n, n, random).tokens;
    Context context(1);
    Feed whole(layer, tokens);
    feed_prompt(context, whole, std::array<std::int64_t, 1>{n});
    Feed pieces(layer, tokens);
    feed_prompt(context, pieces, random_chunks(n / 2, random));
    feed_decode(context, pieces, n - n / 2);
    // Window and sink to the byte: a row is rounded when it enters, whatever comes with it.
    EXPECT_EQ(cache_mark_save(whole.cache).size(), cache_mark_save(pieces.cache).size());
    for (auto part : {&Cache::State::sink, &Cache::State::window}) {
      const EntryRows& a = whole.cache.state().*part;
      const EntryRows& b = pieces.cache.state().*part;
      for (std::size_t i = 0; i < a.parts().size(); ++i) {
        ASSERT_EQ(a.parts()[i]->bytes(), b.parts()[i]->bytes());
        if (a.parts()[i]->bytes() == 0) continue;
        EXPECT_EQ(std::memcmp(a.parts()[i]->row(0), b.parts()[i]->row(0), a.parts()[i]->bytes()),
                  0);
      }
    }
    EXPECT_TRUE(close(widen(whole.outcome()), pieces.outcome(), DType::bf16));
  }
}

TEST(Int8Cache, ABatchComputesWhatEachOfItsSequencesDoesAlone) {
  for (const AttentionShape& shape : shapes()) {
    Random random(44);
    LayerSpec spec = int8_spec(random, shape, 60);
    spec.settings = settings_preset("training-free");
    spec.settings.group = 4;
    spec.settings.window = 300;
    spec.settings.positions = Positions::token;
    SCOPED_TRACE(describe(spec));
    const Layer layer = random_layer(spec, random);
    std::vector<Tokens> tokens;
    for (const std::int64_t n : {700, 340, 20}) {
      tokens.push_back(random_tokens(spec, n, random, {.queries = DType::bf16}));
    }
    Context context(2);
    std::vector<Feed> alone;
    std::vector<Feed> together;
    for (const Tokens& one : tokens) {
      for (std::vector<Feed>* feeds : {&alone, &together}) {
        feeds->emplace_back(layer, one);
        feed_forward(context, feeds->back(), one.count - 8);
      }
    }
    for (int step = 0; step < 8; ++step) {
      for (Feed& feed : alone) feed_forward(context, feed, 1);
      std::vector<Feed*> all;
      for (Feed& feed : together) all.push_back(&feed);
      feed_forward(context, all, std::vector<std::int64_t>(all.size(), 1));
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_TRUE(same_bits(alone[i].outcome(), together[i].outcome())) << i;
    }
  }
}

TEST(Int8Cache, ASelectedKeyIsOneOfTheGroupsToTheBit) {
  Random random(46);
  for (const AttentionShape& shape : shapes()) {
    LayerSpec spec;
    spec.shape = shape;
    spec.settings = settings_preset("training-free");
    spec.settings.group = 5;
    spec.settings.window = 10;
    spec.settings.positions = Positions::token;
    spec.storage = CacheStorage::int8;
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 15 + 60, random);
    // What the rows stand for: a cache that condenses nothing holds all of them.
    LayerSpec wide = spec;
    wide.settings.window = 200;
    Context context(1);
    Feed feed(layer, tokens);
    feed_forward(context, feed, tokens.count);
    const Layer exact_layer = layer.with(wide.settings);
    Feed exact(exact_layer, tokens);
    feed_forward(context, exact, tokens.count);
    std::vector<float> values;
    const Cache::State& state = exact.cache.state();
    const Entries rows =
        state.values(Cache::State::stored(state.window, 0, state.window.rows()), values);
    for (std::int64_t j = 0; j < feed.cache.groups(); ++j) {
      for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
        const Entries representative = feed.cache.representative(j);
        const auto bytes = static_cast<std::size_t>(shape.d_positional()) * sizeof(float);
        bool found = false;
        for (std::int64_t k = 0; k < 5; ++k) {
          found |= std::memcmp(representative.positional.row(0, kv),
                               rows.positional.row(5 * j + k, kv), bytes) == 0;
        }
        EXPECT_TRUE(found) << describe(spec) << " group " << j;
      }
    }
  }
}

TEST(Int8Cache, TheArchiveReceivesWhatTheRowsStandFor) {
  struct Kept : Archive {
    std::vector<float> values;
    void store(std::int64_t, std::int64_t, const Entries& entries) override {
      EXPECT_EQ(entries.semantic.dtype, DType::f32);
      const auto* first = static_cast<const float*>(entries.semantic.row(0));
      values.assign(first, first + entries.semantic.shape[1] * entries.semantic.shape[2]);
    }
  } kept;
  Random random(47);
  LayerSpec spec;
  spec.shape = kGqa;
  spec.settings.group = 4;
  spec.settings.window = 4;
  spec.storage = CacheStorage::int8;
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 8, random);
  Context context(1);
  Feed feed(layer, tokens);
  feed.cache.set_archive(&kept);
  feed_forward(context, feed, 8);
  ASSERT_EQ(kept.values.size(), static_cast<std::size_t>(kGqa.kv_heads * kGqa.d_value));
  for (std::size_t i = 0; i < kept.values.size(); ++i) {
    const auto kv = static_cast<std::int64_t>(i) / kGqa.d_value;
    const auto k = static_cast<std::int64_t>(i) % kGqa.d_value;
    EXPECT_NEAR(kept.values[i], tokens.semantic.get(0, kv, k), 0.02);
  }
}

TEST(Int8Cache, AStepThatIsRolledBackLeavesNothing) {
  for (const bool staged : {false, true}) {
    for (std::int64_t trial = 0; trial < scaled(20); ++trial) {
      Random random(4600 + static_cast<std::uint64_t>(trial));
      LayerSpec spec =
          int8_spec(random, shapes()[static_cast<std::size_t>(trial) % shapes().size()], 60);
      SCOPED_TRACE(describe(spec));
      const Layer layer = random_layer(spec, random);
      const Tokens tokens = random_tokens(spec, 60, random);
      Context context(1);
      Feed feed(layer, tokens);
      feed_prompt(context, feed, std::array<std::int64_t, 1>{30});
      const std::vector<std::byte> before = feed.cache.save();
      feed.cache.state().step_begin(staged);
      feed_prompt(context, feed, std::array<std::int64_t, 1>{30});
      feed.cache.state().step_rollback();
      EXPECT_EQ(feed.cache.save(), before);
    }
  }
}

TEST(Int8Cache, AnotherTypeOfTheRestLeavesTheRowsAsTheyAre) {
  Random random(48);
  for (const AttentionShape& shape : shapes()) {
    LayerSpec spec = int8_spec(random, shape, 60);
    spec.dtype = DType::bf16;
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 60, random);
    Context context(1);
    Feed feed(layer, tokens);
    feed_prompt(context, feed, std::array<std::int64_t, 1>{60});
    const Cache wide = cache_converted(feed.cache, DType::f32);
    LayerSpec expected = spec;
    expected.dtype = DType::f32;
    EXPECT_EQ(wide.bytes(), cache_bytes(expected, 60));
    EXPECT_EQ(cache_converted(wide, DType::bf16).save(), feed.cache.save()) << describe(spec);
  }
}

TEST(Int8Cache, AStreamWithANegativeScaleOrAnUnknownKindIsRefused) {
  Random random(49);
  LayerSpec spec;
  spec.shape = kGqa;
  spec.settings.group = 4;
  spec.settings.window = 6;
  spec.storage = CacheStorage::int8;
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 30, random);
  Context context(1);
  Feed feed(layer, tokens);
  feed_forward(context, feed, 30);
  for (float* scale : {reinterpret_cast<float*>(feed.cache.state().window.scales.row(2)),
                       feed.cache.state().groups.scales(3)}) {
    const float was = std::exchange(*scale, -1.0F);
    EXPECT_THROW(Cache::load(feed.cache.save()), Error);
    *scale = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NO_THROW(Cache::load(feed.cache.save()));
    *scale = was;
  }
  std::vector<std::byte> stream = feed.cache.save();
  EXPECT_NO_THROW(Cache::load(stream));
  // The kind is the byte before length and number of queries.
  const std::size_t at = stream.size() - sizeof(std::uint64_t) - feed.cache.bytes() -
                         feed.cache.state().queries.bytes() - 2 * sizeof(std::int64_t) - 1;
  ASSERT_EQ(stream[at], std::byte{1});
  stream[at] = std::byte{2};
  cache_seal(stream);
  EXPECT_THROW(Cache::load(stream), Error);
}

TEST(Int8Cache, ANaNInARowReachesEveryQueryThatSeesIt) {
  for (const AttentionShape& shape : shapes()) {
    LayerSpec spec;
    spec.shape = shape;
    spec.settings.method = MethodKind::dense;
    spec.storage = CacheStorage::int8;
    Random random(50);
    const Layer layer = random_layer(spec, random);
    Tokens tokens = random_tokens(spec, 12, random);
    tokens.entry.set(10, 0, 1, std::numeric_limits<double>::quiet_NaN());  // of the semantic part
    tokens.split();
    Context context(1);
    Feed feed(layer, tokens);
    feed_decode(context, feed, 12);
    const auto width = static_cast<std::size_t>(shape.heads * shape.d_value);
    EXPECT_FALSE(std::isnan(feed.out[9 * width]));
    EXPECT_TRUE(std::isnan(feed.out[10 * width])) << describe(spec);
    EXPECT_TRUE(std::isnan(feed.out[11 * width]));
  }
}

}  // namespace
}  // namespace lca::test
