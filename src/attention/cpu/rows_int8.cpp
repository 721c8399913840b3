// Decoding on rows of 8 bits: multiplied as they are where the processor has the instructions, else
// widened block by block.

#include "attention/cpu/rows.h"

#include "attention/cpu/int8_kernels.h"
#include "core/cpu_level.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/rows_int8.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/row_softmax-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

/// One block of rows, multiplied as they are.
void AttendBlockInt8(const RowHeads& heads, const Int8Part& semantic, const Int8Part& positional,
                     const RowFormat& format, const float* scales, std::int64_t count,
                     const float* bias, std::int64_t bias_stride) {
  const Int8Kernels& kernels = *int8_kernels();
  const std::int64_t all = heads.kv_heads * heads.heads;
  float* scores = heads.scratch;
  float* factor = scores + all * kRowBlock;
  // Beyond is room for widened rows, which there are none of.
  auto* weights = reinterpret_cast<Int8Weights*>(
      align_up(reinterpret_cast<std::uintptr_t>(factor + all), alignof(Int8Weights)));
  auto* by_head = reinterpret_cast<float*>(weights + all);  // scales of values, then of keys
  const float* key_scale = by_head + format.positional_scale() * kRowBlock;
  float* biases = by_head + format.scales() * kRowBlock;
  kernels.turn(scales, format.scales(), format.scales(), count, 1, by_head);
  constexpr float kLog2e = std::numbers::log2e_v<float>;
  if (bias != nullptr && bias_stride > 0) {
    kernels.turn(bias, bias_stride, heads.kv_heads, count, kLog2e, biases);
  } else if (bias != nullptr) {
    std::fill_n(biases, heads.kv_heads * kRowBlock, *bias * kLog2e);
  }
  kernels.scores(heads, positional, count, key_scale, bias == nullptr ? nullptr : biases, scores);
  Softmax(heads, count, scores, factor);
  for (std::int64_t head = 0; head < all; ++head) {
    kernels.weigh(scores + head * kRowBlock, by_head + head / heads.heads * kRowBlock, count,
                  weights[head]);
  }
  kernels.outputs(heads, semantic, count, weights, factor);
}

/// A value that is not finite makes the step NaN, and so every score.
Int8Query QueryQuantise(const float* HWY_RESTRICT from, std::int64_t count,
                        std::int8_t* HWY_RESTRICT to) {
  constexpr float kMost = 127 * 256;
  const DF d;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::int8_t, DF> d8;
  const std::int64_t lanes = Lanes();
  std::int64_t i = 0;
  VF sizes = hn::Zero(d);
  VF zeros = hn::Zero(d);  // NaN where a value is not finite
  for (; i + lanes <= count; i += lanes) {
    const VF value = hn::LoadU(d, from + i);
    sizes = hn::Max(sizes, hn::Abs(value));
    zeros = hn::MulAdd(value, hn::Zero(d), zeros);
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, sizes));
  float zero = hn::GetLane(hn::SumOfLanes(d, zeros));
  for (; i < count; ++i) {
    largest = std::max(largest, std::abs(from[i]));
    zero += 0 * from[i];
  }
  if (std::isnan(zero)) {
    std::fill_n(to, 2 * count, std::int8_t{0});
    return {to, zero, 0};
  }
  const float inverse = largest > 1e-30F ? kMost / largest : 0.0F;
  std::int32_t sum = 0;
  const auto put = [&](auto tag, auto tag8, auto quants, std::int64_t at) HWY_ATTR {
    const auto high = hn::ShiftRight<8>(hn::Add(quants, hn::Set(tag, 128)));
    const auto low = hn::Sub(quants, hn::ShiftLeft<8>(high));
    hn::StoreU(hn::DemoteTo(tag8, high), tag8, to + at);
    hn::StoreU(hn::DemoteTo(tag8, low), tag8, to + count + at);
    return quants;
  };
  auto sums = hn::Zero(di);
  for (i = 0; i + lanes <= count; i += lanes) {
    const auto quants = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse)));
    sums = hn::Add(sums, put(di, d8, quants, i));
  }
  sum = hn::GetLane(hn::SumOfLanes(di, sums));
  const hn::CappedTag<float, 1> one;
  const hn::RebindToSigned<decltype(one)> one_int;
  const hn::Rebind<std::int8_t, decltype(one)> one_byte;
  for (; i < count; ++i) {
    const auto quant = hn::NearestInt(hn::Set(one, from[i] * inverse));
    sum += hn::GetLane(put(one_int, one_byte, quant, i));
  }
  return {to, largest > 1e-30F ? largest / kMost : 0.0F, 128 * sum};
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(AttendBlockInt8);
HWY_EXPORT(QueryQuantise);

namespace {

void attend_as_stored(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  const RowFormat& format = *rows.format;
  const std::int64_t semantic_width = heads.kv_heads * heads.d_semantic;
  const std::int64_t positional_width = heads.kv_heads * heads.d_positional;
  const auto* semantic = static_cast<const std::int8_t*>(rows.semantic);
  const auto* positional = static_cast<const std::int8_t*>(rows.positional);
  const bool next_int8 = next != nullptr && next->format != nullptr;
  for (std::int64_t first = 0; first < rows.count; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows.count - first);
    const float* bias = rows.bias == nullptr ? nullptr : rows.bias + first * rows.bias_stride;
    Int8Part values{semantic + first * semantic_width, semantic_width, heads.d_semantic};
    Int8Part keys{positional + first * positional_width, positional_width, heads.d_positional};
    const bool last = first + count == rows.count;
    if (!last || next_int8) {
      // What is read next: the next block, or the first one of the next rows.
      keys.later = last ? static_cast<const std::int8_t*>(next->positional)
                        : keys.rows + count * positional_width;
      values.later = last ? static_cast<const std::int8_t*>(next->semantic)
                          : values.rows + count * semantic_width;
      const std::int64_t left = last ? next->count : rows.count - first - count;
      keys.later_count = values.later_count = std::min(kRowBlock, left);
      const float* scales = last ? next->scales : rows.scales + (first + count) * format.scales();
      prefetch_lines(scales, keys.later_count * format.scale_bytes());
    }
    HWY_DYNAMIC_DISPATCH(AttendBlockInt8)
    (heads, values, keys, format, rows.scales + first * format.scales(), count, bias,
     rows.bias_stride);
  }
}

void attend_widened(const RowHeads& heads, const RowSpan& rows) {
  const RowFormat& format = *rows.format;
  const CacheRows stored{static_cast<const std::byte*>(rows.semantic),
                         static_cast<const std::byte*>(rows.positional), rows.scales, rows.count};
  RowSpan wide;
  wide.semantic_stride = heads.kv_heads * heads.d_semantic;
  wide.positional_stride = heads.kv_heads * heads.d_positional;
  wide.bias_stride = rows.bias_stride;
  float* semantic = heads.scratch + heads.kv_heads * heads.heads * (kRowBlock + 1);
  float* positional = semantic + kRowBlock * wide.semantic_stride;
  wide.semantic = semantic;
  wide.positional = positional;
  for (std::int64_t first = 0; first < rows.count; first += kRowBlock) {
    wide.count = std::min(kRowBlock, rows.count - first);
    wide.bias = rows.bias == nullptr ? nullptr : rows.bias + first * rows.bias_stride;
    for (std::int64_t k = 0; k < wide.count; ++k) {
      format.semantic_read(stored, first + k, semantic + k * wide.semantic_stride);
      format.positional_read(stored, first + k, positional + k * wide.positional_stride);
    }
    rows_attend(heads, wide);
  }
}

}  // namespace

const Int8Kernels* int8_kernels() {
#if defined(__x86_64__)
  static const bool has =
      kAvx512Int8.scores != nullptr && __builtin_cpu_supports("avx512vnni") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return has && cpu_level() >= CpuLevel::avx512 ? &kAvx512Int8 : nullptr;
#else
  return nullptr;
#endif
}

bool rows_run_int8(std::int64_t d_semantic, std::int64_t d_positional) {
  const auto whole = [](std::int64_t width) { return width == 64 || width == 128 || width == 256; };
  return whole(d_semantic) && whole(d_positional) && int8_kernels() != nullptr;
}

Int8Query query_quantise(const float* from, std::int64_t count, std::int8_t* to) {
  return HWY_DYNAMIC_DISPATCH(QueryQuantise)(from, count, to);
}

void rows_prefetch(const RowHeads& heads, const RowSpan& rows) {
  if (rows.format == nullptr || heads.q_int8 == nullptr) return;
  const std::int64_t count = std::min(kRowBlock, rows.count);
  prefetch_lines(rows.positional, count * rows.format->positional_bytes());
  prefetch_lines(rows.scales, count * rows.format->scale_bytes());
  prefetch_lines(rows.semantic, count * rows.format->semantic_bytes());
}

void rows_attend_int8(const RowHeads& heads, const RowSpan& rows, const RowSpan* next) {
  if (heads.q_int8 != nullptr) {
    attend_as_stored(heads, rows, next);
  } else {
    attend_widened(heads, rows);
  }
}

}  // namespace lca::cpu
#endif
