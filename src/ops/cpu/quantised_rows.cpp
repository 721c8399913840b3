#include "ops/quantised_rows.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quantised_rows.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "core/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kHalf = kBlock / 2;

/// Rounds blocks of 32 to 15 bits, to the nearest (ties to even), writes their scales and hands
/// quants out lane by lane: put(d, quants, where).
template <typename Put>
HWY_INLINE void RoundBlocks(const float* from, std::int64_t blocks, float* scales, const Put& put) {
  constexpr float kLargest = 127 * 128;
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t block = 0; block < blocks; ++block, from += kBlock) {
    auto most = hn::Zero(d);
    for (std::int64_t i = 0; i < kBlock; i += lanes) {
      most = hn::Max(most, hn::Abs(hn::LoadU(d, from + i)));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
    scales[block] = largest / kLargest;
    const auto inverse = hn::Set(d, largest > 0 ? kLargest / largest : 0);
    for (std::int64_t i = 0; i < kBlock; i += lanes) {
      put(di, hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), inverse)), block * kBlock + i);
    }
  }
}

/// Adds up 128·high + low of one block's halves.
HWY_INLINE void HalfSums(const std::int8_t* high, const std::int8_t* low, std::int32_t (&sums)[2]) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t half = 0; half < 2; ++half) {
    sums[half] = 0;
    for (std::int64_t i = half * kHalf; i < (half + 1) * kHalf; ++i)
      sums[half] += 128 * high[i] + low[i];
  }
#else
  // One instruction adds eight bytes without sign.
  const hn::CappedTag<std::uint8_t, kBlock> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const auto sign = hn::Set(d, 0x80);
  constexpr std::int32_t kExcess = kHalf * 128 * (128 + 1);
  const auto eights = [&](const std::int8_t* from) HWY_ATTR {
    return hn::SumsOf8(hn::Xor(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from)), sign));
  };
  HWY_ALIGN std::uint64_t parts[4];
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < kBlock; i += lanes) {
    hn::Store(hn::Add(hn::ShiftLeft<7>(eights(high + i)), eights(low + i)), d64, parts + i / 8);
  }
  sums[0] = static_cast<std::int32_t>(parts[0] + parts[1]) - kExcess;
  sums[1] = static_cast<std::int32_t>(parts[2] + parts[3]) - kExcess;
#endif
}

void QuantiseBlocks(const float* from, std::int64_t blocks, const QuantisedRows& to) {
  RoundBlocks(from, blocks, to.scales, [&](auto di, auto quants, std::int64_t at) HWY_ATTR {
    const hn::Rebind<std::int8_t, decltype(di)> d8;
    const auto upper = hn::ShiftRight<7>(hn::Add(quants, hn::Set(di, 64)));
    const auto lower = hn::Sub(quants, hn::ShiftLeft<7>(upper));
    hn::StoreU(hn::DemoteTo(d8, upper), d8, to.high + at);
    hn::StoreU(hn::DemoteTo(d8, lower), d8, to.low + at);
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::int32_t sums[2];
    HalfSums(to.high + block * kBlock, to.low + block * kBlock, sums);
    to.sums[2 * block] = to.scales[block] * static_cast<float>(sums[0]);
    to.sums[2 * block + 1] = to.scales[block] * static_cast<float>(sums[1]);
  }
}

void WordBlocks(const float* from, std::int64_t blocks, const WordRows& to) {
  const hn::RebindToSigned<hn::CappedTag<float, 16>> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);  // of the half block so far
  RoundBlocks(from, blocks, to.scales, [&](auto di, auto quants, std::int64_t at) HWY_ATTR {
    const hn::Rebind<std::int16_t, decltype(di)> d16;
    hn::StoreU(hn::DemoteTo(d16, quants), d16, to.words + at);
    sum = at % kHalf == 0 ? quants : hn::Add(sum, quants);
    if ((at + lanes) % kHalf != 0) return;
    to.sums[at / kHalf] =
        to.scales[at / kBlock] * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(QuantiseBlocks);
HWY_EXPORT(WordBlocks);

namespace {

constexpr std::int64_t kBlock = 32;

void quants_take(Carver& carver, std::int64_t values, QuantisedRows& rows) {
  rows.high = carver.take<std::int8_t>(values);
  rows.low = carver.take<std::int8_t>(values);
}

void quants_take(Carver& carver, std::int64_t values, WordRows& rows) {
  rows.words = carver.take<std::int16_t>(values);
}

/// Rows of either form in one piece of memory.
template <typename Rows>
struct Pieces {
  Rows rows;
  std::size_t used = 0;

  Pieces(std::byte* memory, std::int64_t count, std::int64_t columns) {
    Carver carver(memory);
    rows.blocks = columns / kBlock;
    quants_take(carver, count * columns, rows);
    rows.scales = carver.take<float>(count * rows.blocks);
    rows.sums = carver.take<float>(count * rows.blocks * 2);
    used = carver.used();
  }
};

}  // namespace

std::size_t quantised_bytes(std::int64_t rows, std::int64_t columns) {
  return Pieces<QuantisedRows>(nullptr, rows, columns).used;
}

QuantisedRows quantised_carve(std::int64_t rows, std::int64_t columns, std::byte* memory) {
  return Pieces<QuantisedRows>(memory, rows, columns).rows;
}

void quantised_round(const float* x, std::int64_t first, std::int64_t count,
                     const QuantisedRows& to) {
  const std::int64_t begin = first * to.blocks;
  const QuantisedRows rows{to.high + begin * kBlock, to.low + begin * kBlock, to.scales + begin,
                           to.sums + 2 * begin, to.blocks};
  HWY_DYNAMIC_DISPATCH(QuantiseBlocks)(x + begin * kBlock, count * to.blocks, rows);
}

std::size_t words_bytes(std::int64_t rows, std::int64_t columns) {
  return Pieces<WordRows>(nullptr, rows, columns).used;
}

WordRows words_carve(std::int64_t rows, std::int64_t columns, std::byte* memory) {
  return Pieces<WordRows>(memory, rows, columns).rows;
}

WordRows words_from(const WordRows& rows, std::int64_t first) {
  const std::int64_t begin = first * rows.blocks;
  return {rows.words + begin * kBlock, rows.scales + begin, rows.sums + 2 * begin, rows.blocks};
}

void words_round(const float* x, std::int64_t first, std::int64_t count, const WordRows& to) {
  HWY_DYNAMIC_DISPATCH(WordBlocks)
  (x + first * to.blocks * kBlock, count * to.blocks, words_from(to, first));
}

}  // namespace lca
#endif
