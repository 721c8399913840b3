// The seeds of the cache fuzzer. They are committed; with LCA_WRITE_CORPUS=1 in the environment
// this test rewrites them, which is needed whenever the format of saved caches changes.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "support/cache_exercise.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(LCA_SOURCE_DIR) / "tests/fuzz/corpus/cache";

std::vector<std::byte> seed(const LayerSpec& spec, std::int64_t prompt, std::int64_t decoded) {
  Context context(1);
  Random random(51);
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, prompt + decoded, random);
  Feed feed(layer, tokens);
  if (prompt > 0) feed_prompt(context, feed, std::array{prompt});
  feed_decode(context, feed, decoded);
  return feed.cache.save();
}

// One stream for each part of the format: both forms and types, all methods, with and without a
// sink, a bias, representatives, and tokens at all.
std::map<std::string, std::vector<std::byte>> seeds() {
  std::map<std::string, std::vector<std::byte>> all;
  for (Form form : {Form::mla, Form::gqa}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      LayerSpec spec;
      spec.shape =
          form == Form::mla ? AttentionShape::mla(2, 2, 1, 3, 2) : AttentionShape::gqa(4, 2, 2, 3);
      spec.dtype = dtype;
      spec.settings.group = 2;
      spec.settings.window = 3;
      spec.settings.summary_queries = 3;
      const std::string prefix =
          std::string(form == Form::mla ? "mla_" : "gqa_") + dtype_name(dtype) + "_";
      all[prefix + "empty"] = seed(spec, 0, 0);
      all[prefix + "short"] = seed(spec, 2, 1);
      all[prefix + "lca"] = seed(spec, 9, 3);
      spec.settings.sink = 2;
      spec.settings.mass = Mass::score;
      all[prefix + "sink_score"] = seed(spec, 12, 0);
      spec.storage = CacheStorage::int8;
      all[prefix + "int8"] = seed(spec, 10, 2);
      spec.storage = CacheStorage::plain;
      spec.settings.summary = Summary::prompt;
      spec.settings.semantic_pool = Pool::select;
      all[prefix + "prompt"] = seed(spec, 11, 2);
      spec.settings.method = MethodKind::window;
      all[prefix + "window"] = seed(spec, 8, 1);
      spec.settings.method = MethodKind::dense;
      all[prefix + "dense"] = seed(spec, 4, 1);
      if (form == Form::mla) continue;  // of these d_r is 1, and nothing can be rotated
      spec.settings.method = MethodKind::lca;
      spec.settings.positions = Positions::entry;
      spec.rotation = {RopeLayout::adjacent, {0.5}};
      all[prefix + "entry"] = seed(spec, 11, 2);
    }
  }
  return all;
}

std::vector<std::byte> read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> characters{std::istreambuf_iterator<char>(file), {}};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(characters));
  return {bytes.begin(), bytes.end()};
}

TEST(CacheCorpus, TheFuzzersSeedsAreStreamsThatLoad) {
  const auto expected = seeds();
  const char* write = std::getenv("LCA_WRITE_CORPUS");
  if (write != nullptr && std::string(write) == "1") {
    fs::create_directories(kFolder);
    for (const auto& [name, stream] : expected) {
      std::ofstream file(kFolder / name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(stream.data()),
                 static_cast<std::streamsize>(stream.size()));
    }
  }
  for (const auto& [name, stream] : expected) {
    ASSERT_TRUE(fs::exists(kFolder / name)) << name << " is missing: run with LCA_WRITE_CORPUS=1";
    const std::vector<std::byte> committed = read_bytes(kFolder / name);
    // Values may round differently elsewhere; the format, and with it the length, may not.
    EXPECT_EQ(committed.size(), stream.size()) << name << " is stale: run with LCA_WRITE_CORPUS=1";
    ASSERT_NO_THROW(cache_exercise(Cache::load(committed))) << name;
  }
}

TEST(CacheCorpus, StreamsOfVersion2AreTakenUpWithPlainRows) {
  const Cache cache = Cache::load(read_bytes(kFolder / "version2_gqa_bf16_entry"));
  EXPECT_EQ(cache.spec().storage, CacheStorage::plain);
  EXPECT_EQ(cache.spec().settings.positions, Positions::entry);
  EXPECT_EQ(cache.length(), 13);
  cache_exercise(cache);
}

// Written by version 0.1.0 of the program, which knew no positions but those of tokens.
TEST(CacheCorpus, StreamsOfVersion1AreTakenUpWithTokenPositions) {
  for (const char* name : {"version1_mla_f32_sink_score", "version1_gqa_bf16_prompt"}) {
    const Cache cache = Cache::load(read_bytes(kFolder / name));
    EXPECT_EQ(cache.spec().settings.positions, Positions::token);
    EXPECT_EQ(cache.spec().rotation, Rotation{});
    EXPECT_EQ(cache.spec().settings.mass, Mass::score);
    EXPECT_GT(cache.groups(), 0);
    EXPECT_EQ(Cache::load(cache.save()).save(), cache.save());
    EXPECT_NO_THROW(cache_exercise(cache));
  }
}

}  // namespace
}  // namespace lca::test
