#include "ops/packed_dot.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/packed_dot.cpp"
#include "ops/cpu/simd_targets.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "core/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

/// Rounds blocks of 32 to 15 bits, halves away from zero.
void QuantiseBlocks(const float* from, std::int64_t blocks, const QuantisedRows& to) {
  constexpr int kBlock = 32;
  constexpr float kLargest = 127 * 128;
  for (std::int64_t block = 0; block < blocks; ++block, from += kBlock) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(from[i]));
    const float scale = largest / kLargest;
    const float inverse = largest > 0 ? kLargest / largest : 0;
    int quants[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const float scaled = from[i] * inverse;
      quants[i] = static_cast<int>(scaled + (scaled < 0 ? -0.5F : 0.5F));
    }
    int first = 0;
    int second = 0;
    for (int i = 0; i < kBlock / 2; ++i) first += quants[i];
    for (int i = kBlock / 2; i < kBlock; ++i) second += quants[i];
    std::int8_t* high = to.high + block * kBlock;
    std::int8_t* low = to.low + block * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      const int upper = (quants[i] + 64) >> 7;
      high[i] = static_cast<std::int8_t>(upper);
      low[i] = static_cast<std::int8_t>(quants[i] - 128 * upper);
    }
    to.scales[block] = scale;
    to.sums[2 * block] = scale * static_cast<float>(first);
    to.sums[2 * block + 1] = scale * static_cast<float>(second);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(QuantiseBlocks);

#if defined(__x86_64__)
namespace vnni {
/// avx512vnni.cpp
void packed_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride);
}  // namespace vnni
#endif

namespace {

constexpr std::int64_t kBlock = 32;

bool processor_has_vnni() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  return has;
#else
  return false;
#endif
}

struct Pieces {
  QuantisedRows rows;
  std::size_t used = 0;

  Pieces(std::byte* memory, std::int64_t count, std::int64_t columns) {
    Carver carver(memory);
    rows.blocks = columns / kBlock;
    rows.high = carver.take<std::int8_t>(count * columns);
    rows.low = carver.take<std::int8_t>(count * columns);
    rows.scales = carver.take<float>(count * rows.blocks);
    rows.sums = carver.take<float>(count * rows.blocks * 2);
    used = carver.used();
  }
};

}  // namespace

bool packed_dot_supported(PackedType type) {
  return packed_type_info(type).block_values > 1 && processor_has_vnni();
}

std::size_t quantised_bytes(std::int64_t rows, std::int64_t columns) {
  return Pieces(nullptr, rows, columns).used;
}

QuantisedRows quantise_rows(const float* x, std::int64_t rows, std::int64_t columns,
                            std::byte* memory) {
  const QuantisedRows to = Pieces(memory, rows, columns).rows;
  HWY_DYNAMIC_DISPATCH(QuantiseBlocks)(x, rows * to.blocks, to);
  return to;
}

void packed_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride) {
#if defined(__x86_64__)
  vnni::packed_dot(w, first, end, x, rows, out, stride);
#else
  static_cast<void>(w), static_cast<void>(first), static_cast<void>(end), static_cast<void>(x);
  static_cast<void>(rows), static_cast<void>(out), static_cast<void>(stride);
#endif
}

}  // namespace lca
#endif
