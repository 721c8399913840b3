// Operations of a row: rank · (in + out) multiply-adds, against in · out of the weight beside it.
// Bytes: the pair is read once for every eight rows in lora_down, from the second-level cache; for
// one row, as in decoding, 2 · rank · (in + out) in bfloat16. Accumulators: at most 16 vectors.

#include "ops/lora.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/lora.cpp"
#include "ops/cpu/foreach_target.h"
#include "ops/cpu/dot-inl.h"
// clang-format on

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/workspace.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using cpu::HWY_NAMESPACE::DF;
using cpu::HWY_NAMESPACE::LoadAs;
using cpu::HWY_NAMESPACE::VF;

/// What is read kAhead bytes after some columns of A.
template <int kColumns, typename T>
HWY_INLINE void lines_prefetch(const T* columns) {
  constexpr int kAhead = 8192, kLine = 64;
  constexpr int kBytes = kColumns * static_cast<int>(kLoraLanes * sizeof(T));
  const auto* from = reinterpret_cast<const std::byte*>(columns) + kAhead;
#pragma GCC unroll 4
  for (int at = 0; at < kBytes; at += kLine) __builtin_prefetch(from + at, 0, 2);
}

/// kRows rows of x with one panel of A, each sum in kChains parts.
template <int kRows, int kChains, typename T>
HWY_INLINE void PanelRows(const T* a, std::int64_t in, float scale, const float* x, float* t,
                          std::int64_t stride) {
  const DF d;
  for (std::int64_t lane = 0; lane < kLoraLanes; lane += cpu::HWY_NAMESPACE::Lanes()) {
    VF sum[kRows][kChains];
    for (int m = 0; m < kRows; ++m) {
      for (int c = 0; c < kChains; ++c) sum[m][c] = hn::Zero(d);
    }
    const auto add = [&](std::int64_t k, int chain) HWY_ATTR {
      const VF column = LoadAs(a + k * kLoraLanes + lane);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        sum[m][chain] = hn::MulAdd(hn::Set(d, x[m * in + k]), column, sum[m][chain]);
      }
    };
    std::int64_t k = 0;
    for (; k + kChains <= in; k += kChains) {
      // For few rows A comes from memory, more slowly than it is multiplied.
      if constexpr (kChains > 1) lines_prefetch<kChains>(a + k * kLoraLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) add(k + c, c);
    }
    for (; k < in; ++k) add(k, 0);
    for (int m = 0; m < kRows; ++m) {
      VF all = sum[m][0];
      if constexpr (kChains == 4) {
        all = hn::Add(hn::Add(all, sum[m][1]), hn::Add(sum[m][2], sum[m][3]));
      }
      hn::StoreU(hn::Mul(all, hn::Set(d, scale)), d, t + m * stride + lane);
    }
  }
}

template <int kMost, int kChains, typename T>
HWY_INLINE void PanelAll(const T* a, std::int64_t in, float scale, const float* x,
                         std::int64_t rows, float* t, std::int64_t stride) {
  std::int64_t m = 0;
  for (; m + kMost <= rows; m += kMost) {
    PanelRows<kMost, kChains>(a, in, scale, x + m * in, t + m * stride, stride);
  }
  for (; m < rows; ++m) {
    PanelRows<1, kChains>(a, in, scale, x + m * in, t + m * stride, stride);
  }
}

template <typename T>
HWY_INLINE void PanelOf(const LoraPanels& lora, LoraRows kind, std::int64_t panel, const float* x,
                        std::int64_t rows, float* t, std::int64_t stride) {
  const auto* a = reinterpret_cast<const T*>(lora.a) + panel * lora.in * kLoraLanes;
  if (kind == LoraRows::few) {
    PanelAll<4, 4>(a, lora.in, lora.scale, x, rows, t, stride);
  } else {
    PanelAll<8, 1>(a, lora.in, lora.scale, x, rows, t, stride);
  }
}

void LoraDown(const LoraPanels& lora, LoraRows kind, std::int64_t panel, const float* x,
              std::int64_t rows, float* t, std::int64_t stride) {
  if (lora.type == DType::bf16) {
    PanelOf<bf16_bits>(lora, kind, panel, x, rows, t, stride);
  } else {
    PanelOf<float>(lora, kind, panel, x, rows, t, stride);
  }
}

/// Strips of B at a time for many rows: two share a value of t where registers suffice.
constexpr int kPair = hn::MaxLanes(DF()) == kLoraLanes ? 2 : 1;

/// kRows rows of t with kStrips strips of B, of which the first `count` rows are kept.
template <int kRows, int kStrips, typename T>
HWY_INLINE void StripRows(const T* b, std::int64_t rank, const float* t, std::int64_t t_stride,
                          std::int64_t count, float* y, std::int64_t stride) {
  const DF d;
  const std::int64_t lanes = cpu::HWY_NAMESPACE::Lanes();
  for (std::int64_t lane = 0; lane < std::min(count, kLoraLanes); lane += lanes) {
    VF sum[kStrips][kRows];
    for (int s = 0; s < kStrips; ++s) {
      for (int m = 0; m < kRows; ++m) sum[s][m] = hn::Zero(d);
    }
    for (std::int64_t r = 0; r < rank; ++r) {
      VF column[kStrips];
#pragma GCC unroll 2
      for (int s = 0; s < kStrips; ++s) {
        column[s] = LoadAs(b + (s * rank + r) * kLoraLanes + lane);
      }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const VF value = hn::Set(d, t[m * t_stride + r]);
#pragma GCC unroll 2
        for (int s = 0; s < kStrips; ++s) sum[s][m] = hn::MulAdd(value, column[s], sum[s][m]);
      }
    }
    for (int s = 0; s < kStrips; ++s) {
      for (int m = 0; m < kRows; ++m) {
        const std::int64_t at = s * kLoraLanes + lane;
        float* to = y + m * stride + at;
        if (at + lanes <= count) {
          hn::StoreU(hn::Add(hn::LoadU(d, to), sum[s][m]), d, to);
        } else {
          float values[kLoraLanes] = {};
          hn::StoreU(sum[s][m], d, values);
          for (std::int64_t i = 0; i < count - at; ++i) to[i] += values[i];
        }
      }
    }
  }
}

template <int kRows, typename T>
HWY_INLINE void StripsOf(const LoraPanels& lora, const float* t, std::int64_t t_stride,
                         std::int64_t first, std::int64_t end, float* y, std::int64_t stride) {
  const T* b = reinterpret_cast<const T*>(lora.b) + first * lora.rank;
  std::int64_t n = first;
  for (; n + kPair * kLoraLanes <= end; n += kPair * kLoraLanes) {
    StripRows<kRows, kPair>(b, lora.rank, t, t_stride, kPair * kLoraLanes, y + n, stride);
    b += kPair * kLoraLanes * lora.rank;
  }
  for (; n < end; n += kLoraLanes, b += kLoraLanes * lora.rank) {
    StripRows<kRows, 1>(b, lora.rank, t, t_stride, std::min(kLoraLanes, end - n), y + n, stride);
  }
}

template <typename T>
HWY_INLINE void StripsAll(const LoraPanels& lora, const float* t, std::int64_t t_stride,
                          std::int64_t rows, std::int64_t first, std::int64_t end, float* y,
                          std::int64_t stride) {
  std::int64_t m = 0;
  for (; m + 8 <= rows; m += 8) {
    StripsOf<8, T>(lora, t + m * t_stride, t_stride, first, end, y + m * stride, stride);
  }
  for (; m < rows; ++m) {
    StripsOf<1, T>(lora, t + m * t_stride, t_stride, first, end, y + m * stride, stride);
  }
}

void LoraUp(const LoraPanels& lora, const float* t, std::int64_t t_stride, std::int64_t rows,
            std::int64_t first, std::int64_t end, float* y, std::int64_t stride) {
  if (lora.type == DType::bf16) {
    StripsAll<bf16_bits>(lora, t, t_stride, rows, first, end, y, stride);
  } else {
    StripsAll<float>(lora, t, t_stride, rows, first, end, y, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(LoraDown);
HWY_EXPORT(LoraUp);

namespace {

struct LoraSizes {
  std::size_t a, b;

  LoraSizes(std::int64_t rank, std::int64_t in, std::int64_t out, DType type) {
    const auto blocks = [](std::int64_t count) {
      return (count + kLoraLanes - 1) / kLoraLanes * kLoraLanes;
    };
    a = align_up(static_cast<std::size_t>(blocks(rank) * in) * dtype_bytes(type));
    b = align_up(static_cast<std::size_t>(blocks(out) * rank) * dtype_bytes(type));
  }
};

/// Writes [blocks of 16 rows][columns][16 rows] of a row-major matrix.
void rows_interleave(const PackedMatrix& from, DType type, std::byte* to, std::size_t bytes) {
  std::memset(to, 0, bytes);
  std::vector<float> row(static_cast<std::size_t>(from.columns));
  for (std::int64_t r = 0; r < from.rows; ++r) {
    unpack_f32(from.type, from.row(r), row.data(), from.columns);
    const std::int64_t begin = r / kLoraLanes * kLoraLanes * from.columns + r % kLoraLanes;
    for (std::int64_t c = 0; c < from.columns; ++c) {
      const std::int64_t at = begin + c * kLoraLanes;
      const float value = row[static_cast<std::size_t>(c)];
      if (type == DType::bf16) {
        reinterpret_cast<bf16_bits*>(to)[at] = bf16_from_f32(value);
      } else {
        reinterpret_cast<float*>(to)[at] = value;
      }
    }
  }
}

}  // namespace

std::size_t lora_bytes(std::int64_t rank, std::int64_t in, std::int64_t out, DType type) {
  const LoraSizes sizes(rank, in, out, type);
  return sizes.a + sizes.b;
}

LoraPanels lora_arrange(const PackedMatrix& a, const PackedMatrix& b, float scale, DType type,
                        std::byte* to) {
  const LoraSizes sizes(a.rows, a.columns, b.rows, type);
  rows_interleave(a, type, to, sizes.a);
  rows_interleave(b, type, to + sizes.a, sizes.b);
  return {to, to + sizes.a, type, a.rows, a.columns, b.rows, scale};
}

void lora_down(const LoraPanels& lora, LoraRows kind, std::int64_t panel, const float* x,
               std::int64_t rows, float* t, std::int64_t stride) noexcept {
  HWY_DYNAMIC_DISPATCH(LoraDown)(lora, kind, panel, x, rows, t, stride);
}

void lora_up_prefetch(const LoraPanels& lora, std::int64_t first, std::int64_t end) noexcept {
  const auto row = static_cast<std::int64_t>(dtype_bytes(lora.type)) * lora.rank;
  for (std::int64_t at = first * row; at < end * row; at += 64) {
    __builtin_prefetch(lora.b + at, 0, 2);
  }
}

void lora_up(const LoraPanels& lora, const float* t, std::int64_t t_stride, std::int64_t rows,
             std::int64_t first, std::int64_t end, float* y, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(LoraUp)(lora, t, t_stride, rows, first, end, y, stride);
}

}  // namespace lca
#endif
