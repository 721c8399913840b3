// The memory of device caches: what is in use grows and goes back, and costs what it must.

#include <gtest/gtest.h>

#include <chrono>

#include "cuda/resident.h"

namespace lca::test {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::size_t memory_free() {
  std::size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "memory");
  return free;
}

std::vector<LayerSpec> lite_specs(MethodKind method = MethodKind::lca) {
  Settings settings;
  settings.method = method;
  return std::vector<LayerSpec>(27, spec_of(AttentionShape::mla(16, 128, 64, 512, 128), settings));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(CudaBackedMemory, HoldersShareGranulesAndTheLastGivesThemBack) {
  LCA_NEEDS_GPU();
  const cuda::DeviceScope scope(gpu());
  constexpr std::size_t kGranule = std::size_t{2} << 20;
  cuda::BackedMemory memory(gpu(), std::size_t{1} << 40);
  EXPECT_EQ(memory.backed(), 0u);
  memory.hold(0, 100);
  memory.hold(50, kGranule);  // the first granule again, and the second
  EXPECT_EQ(memory.backed(), 2 * kGranule);
  EXPECT_EQ(memory.missing(0, 3 * kGranule), kGranule);
  // Memory that is there can be written and read, across granules and far behind.
  const std::size_t far = (std::size_t{1} << 39) + 12345;
  memory.hold(far, 10);
  for (const std::size_t at : {std::size_t{0}, kGranule - 4, kGranule + 4, far}) {
    cuda::check(cudaMemset(memory.as<char>() + at, 7, 4), "filling");
    std::uint32_t value = 0;
    cuda::check(cudaMemcpy(&value, memory.as<char>() + at, 4, cudaMemcpyDeviceToHost), "reading");
    EXPECT_EQ(value, 0x07070707u);
  }
  memory.drop(0, 100);
  EXPECT_EQ(memory.backed(), 3 * kGranule);
  memory.drop(50, kGranule);
  memory.drop(far, 10);
  EXPECT_EQ(memory.backed(), 0u);
}

TEST(CudaBackedMemory, AGranuleIsMappedInMicroseconds) {
  LCA_NEEDS_GPU();
  const cuda::DeviceScope scope(gpu());
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  cuda::BackedMemory memory(gpu(), std::size_t{1} << 44);
  const auto start = std::chrono::steady_clock::now();
  memory.hold(0, kBytes);
  const double holding = seconds_since(start);
  const auto middle = std::chrono::steady_clock::now();
  memory.drop(0, kBytes);
  const double dropping = seconds_since(middle);
  fmt::print("a granule of 2 MiB: {:.1f} us to back, {:.1f} us to give back\n", 1e6 * holding / 512,
             1e6 * dropping / 512);
  EXPECT_LT(holding, 1.0);
  EXPECT_LT(dropping, 1.0);
}

TEST(CudaStore, ASequenceCostsWhatItHolds) {
  LCA_NEEDS_GPU();
  const cuda::Stream stream(gpu());
  constexpr std::int64_t kLong = 131072;
  constexpr int kMany = 8;
  struct Case {
    cuda::GroupType type;
    double most;  // GiB, queries and tables included
  };
  for (const auto& [type, most] :
       {Case{cuda::GroupType::bf16, 0.2705}, Case{cuda::GroupType::fp8, 0.169}}) {
    const std::vector<LayerSpec> specs = lite_specs();
    auto store = std::make_shared<cuda::CacheStore>(
        gpu(), specs, type, cuda::StoreLimits{.sequences = 1024, .longest = 1 << 20}, stream);
    stream.wait();
    const std::size_t empty = memory_free();
    EXPECT_EQ(store->backed().total(), 0u);
    std::vector<std::unique_ptr<cuda::CacheSequence>> open;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kMany; ++i) {
      open.push_back(std::make_unique<cuda::CacheSequence>(store));
      open.back()->replace(kLong, 0);
    }
    const double opening = seconds_since(start);
    const auto taken = static_cast<double>(empty - memory_free());
    const cuda::StoreBytes backed = store->backed();
    const double planned =
        static_cast<double>(cuda::CacheStore::sequence_bytes(specs, type, kLong).total());
    fmt::print("128K, groups {}: {:.4f} GiB each, planned {:.4f}; {:.1f} ms to open\n",
               static_cast<int>(type), taken / kMany / kGiB, planned / kGiB, 1e3 * opening / kMany);
    EXPECT_LE(taken / kMany, most * kGiB);
    EXPECT_NEAR(static_cast<double>(backed.total()), taken, 8 << 20);
    // Whole granules, in eight arrays.
    EXPECT_NEAR(taken, planned * kMany, 40 << 20);
    const auto closing = std::chrono::steady_clock::now();
    open.clear();
    fmt::print("  {:.1f} ms to close\n", 1e3 * seconds_since(closing) / kMany);
    store->trim();
    EXPECT_EQ(store->backed().total(), 0u);
    EXPECT_EQ(memory_free(), empty);
    EXPECT_EQ(store->windows_open() + store->slots_open() + store->pages_held(), 0);
  }
}

TEST(CudaStore, HundredsOfLongSequencesFit) {
  LCA_NEEDS_GPU();
  constexpr int kMany = 400;
  constexpr std::int64_t kLong = 131072;
  const std::vector<LayerSpec> specs = lite_specs();
  const auto planned = static_cast<double>(
      cuda::CacheStore::sequence_bytes(specs, cuda::GroupType::bf16, kLong).total());
  if (static_cast<double>(memory_free()) < 1.01 * kMany * planned) {
    GTEST_SKIP() << "needs " << 1.01 * kMany * planned / kGiB << " GiB of GPU memory";
  }
  const cuda::Stream stream(gpu());
  auto store = std::make_shared<cuda::CacheStore>(
      gpu(), specs, cuda::GroupType::bf16, cuda::StoreLimits{.sequences = 1024, .longest = 1 << 20},
      stream);
  const std::size_t empty = memory_free();
  std::vector<std::unique_ptr<cuda::CacheSequence>> open;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kMany; ++i) {
    open.push_back(std::make_unique<cuda::CacheSequence>(store));
    open.back()->replace(kLong, 0);
  }
  const auto taken = static_cast<double>(empty - memory_free());
  fmt::print("{} sequences of 128K: {:.2f} GiB, {:.4f} each; {:.2f} s to open\n", kMany,
             taken / kGiB, taken / kMany / kGiB, seconds_since(start));
  EXPECT_LE(taken, 1.005 * kMany * planned);
}

TEST(CudaStore, SequencesThatComeAndGoLeaveFewHoles) {
  LCA_NEEDS_GPU();
  Random random(9350);
  const std::vector<LayerSpec> specs = lite_specs();
  const cuda::Stream stream(gpu());
  auto store = std::make_shared<cuda::CacheStore>(
      gpu(), specs, cuda::GroupType::bf16, cuda::StoreLimits{.sequences = 1024, .longest = 1 << 20},
      stream);
  std::vector<std::unique_ptr<cuda::CacheSequence>> open;
  const auto one_more = [&] {
    open.push_back(std::make_unique<cuda::CacheSequence>(store));
    open.back()->replace(random.integer(2000, 60000), 0);
  };
  for (int i = 0; i < 24; ++i) one_more();
  double worst = 0;
  for (int i = 0; i < 100; ++i) {
    const auto which = static_cast<std::size_t>(random.integer(0, 23));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
    one_more();
    double planned = 0;
    for (const auto& sequence : open) {
      planned += static_cast<double>(
          cuda::CacheStore::sequence_bytes(specs, store->type(), sequence->length()).total());
    }
    worst = std::max(worst, static_cast<double>(store->backed().total()) / planned);
  }
  fmt::print("at most {:.3f} of what sequences need, spare windows included\n", worst);
  EXPECT_LE(worst, 1.12);
}

TEST(CudaStore, DenseCachesGetMemoryAsTheyFill) {
  LCA_NEEDS_GPU();
  const cuda::Stream stream(gpu());
  auto store = std::make_shared<cuda::CacheStore>(
      gpu(), lite_specs(MethodKind::dense), cuda::GroupType::bf16,
      cuda::StoreLimits{.sequences = 64, .longest = 1 << 20}, stream);
  cuda::CacheSequence sequence(store);
  std::size_t last = 0;
  for (const std::int64_t length : {1, 5000, 20000, 80000}) {
    sequence.prepare(length - sequence.length());
    sequence.commit();
    const std::size_t backed = store->backed().exact;
    const double needed = 27.0 * static_cast<double>(length) * 576 * 2;
    EXPECT_GT(backed, last);
    EXPECT_GE(static_cast<double>(backed), needed);
    // A granule at most for each layer's two arrays.
    EXPECT_LE(static_cast<double>(backed), needed + 27 * 2 * 2.2 * (2 << 20));
    last = backed;
  }
  sequence.rollback();
}

TEST(CudaStore, WhatDoesNotFitIsAnErrorAndNothingIsLost) {
  LCA_NEEDS_GPU();
  const cuda::Stream stream(gpu());
  Settings settings;
  settings.method = MethodKind::dense;
  const std::vector<LayerSpec> specs(2,
                                     spec_of(AttentionShape::mla(16, 128, 64, 512, 128), settings));
  auto store = std::make_shared<cuda::CacheStore>(
      gpu(), specs, cuda::GroupType::bf16,
      cuda::StoreLimits{.sequences = 8, .longest = std::int64_t{1} << 29}, stream);
  cuda::CacheSequence sequence(store);
  sequence.prepare(1000);
  sequence.commit();
  const std::size_t before = store->backed().total();
  const std::size_t free = memory_free();
  try {
    sequence.prepare(std::int64_t{1} << 28);  // 2 · 309 GB
    ADD_FAILURE() << "more memory than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(error.what()).find(" are free"), std::string::npos) << error.what();
  }
  EXPECT_EQ(sequence.length(), 1000);
  EXPECT_EQ(store->backed().total(), before);
  EXPECT_EQ(memory_free(), free);
  sequence.prepare(5);
  sequence.commit();
  EXPECT_EQ(sequence.length(), 1005);
}

TEST(CudaStore, AThousandSequencesLeaveMemoryWhereItWas) {
  LCA_NEEDS_GPU();
  Random random(9300);
  Settings settings;
  settings.group = 4;
  settings.window = 32;
  Settings dense = settings;
  dense.method = MethodKind::dense;
  const AttentionShape shape = AttentionShape::mla(4, 16, 8, 64, 24);
  Resident model({spec_of(shape, settings), spec_of(shape, dense)}, random,
                 {.sequences = 32, .longest = 400});
  Talk pattern = model.talk(200, 220, random);
  std::size_t free = 0;
  cuda::StoreBytes backed;
  for (int i = 0; i < 1000; ++i) {
    Talk talk{model.open(), pattern.paths};
    model.chunk(talk, 100 + i % 50);
    model.decode(talk, 2);
    Talk other{nullptr, talk.paths};
    other.caches.reset(static_cast<cuda::DeviceCaches*>(talk.caches->fork().release()));
    auto mark = talk.caches->mark();
    model.decode(other, 2);
    model.decode(talk, 1);
    other = {};
    mark = {};
    talk = {};
    if (i == 10) {
      free = memory_free();
      backed = model.stores().backed();
    }
  }
  model.stream().wait();
  EXPECT_EQ(memory_free(), free);
  EXPECT_EQ(model.stores().backed().total(), backed.total());
  const cuda::CacheStore& store = pattern.caches->store();
  EXPECT_EQ(store.windows_open(), 1);
  EXPECT_EQ(store.slots_open(), 1);
  EXPECT_EQ(store.pages_held(), 0);
}

}  // namespace
}  // namespace lca::test
