#include "ops/elementwise.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cpp"
#include "ops/cpu/foreach_target.h"
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/context_state.h"
#include "ops/strips.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;

/// Sums in eight independent lanes of vectors, then across.
float SquareSum(const float* x, std::int64_t count) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += x[i] * x[i];
  return sum;
}

void RmsNormRow(const float* x, std::int64_t width, const float* weight, double eps, float* out) {
  const double mean = static_cast<double>(SquareSum(x, width)) / static_cast<double>(width);
  const auto factor = static_cast<float>(1.0 / std::sqrt(mean + eps));
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), f);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

void SwigluPiece(float* gate, const float* up, std::int64_t count) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0F);
  // Beyond this the exponential would overflow, and the gate is closed to the last bit anyway.
  const auto most = hn::Set(d, 88.0F);
  const auto vector = [&](float* to, const float* other) HWY_ATTR {
    const auto g = hn::LoadU(d, to);
    const auto silu = hn::Div(g, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(g), most))));
    hn::StoreU(hn::Mul(silu, hn::LoadU(d, other)), d, to);
  };
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) vector(gate + i, up + i);
  if (i == count) return;
  // The same arithmetic for the rest: where a row ends must not change its values.
  HWY_ALIGN float rest[2][hn::MaxLanes(d)] = {};
  std::copy(gate + i, gate + count, rest[0]);
  std::copy(up + i, up + count, rest[1]);
  vector(rest[0], rest[1]);
  std::copy(rest[0], rest[0] + (count - i), gate + i);
}

void AddScaledPiece(float factor, const float* x, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

void RoundBf16Piece(const float* x, std::int64_t count, bf16_bits* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_from_f32(x[i]);
}

/// Whether every 16-bit (32-bit) number at `stride` bytes has an exponent below all ones.
bool Finite16(const std::byte* data, std::int64_t count, std::uint16_t mask) {
  std::uint16_t bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, data + 2 * i, sizeof(bits));
    bad |= static_cast<std::uint16_t>((bits & mask) == mask);
  }
  return bad == 0;
}

bool Finite32(const std::byte* data, std::int64_t count) {
  constexpr std::uint32_t kMask = 0x7f800000u;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, data + 4 * i, sizeof(bits));
    bad |= static_cast<std::uint32_t>((bits & kMask) == kMask);
  }
  return bad == 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(SwigluPiece);
HWY_EXPORT(AddScaledPiece);
HWY_EXPORT(RoundBf16Piece);
HWY_EXPORT(Finite16);
HWY_EXPORT(Finite32);

namespace {

/// Calls body(first, count) over [0, count) in pieces large enough to be worth handing out.
template <typename Body>
void for_pieces(Context& context, std::int64_t count, std::int64_t piece, const Body& body) {
  const std::int64_t pieces = (count + piece - 1) / piece;
  if (pieces <= 1) {
    body(0, count);
    return;
  }
  context.state().pool.run(pieces, [&](std::int64_t task, int) {
    body(task * piece, std::min(piece, count - task * piece));
  });
}

constexpr std::int64_t kPiece = 1 << 15;

std::int64_t rows_per_piece(std::int64_t width) {
  return std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, width));
}

}  // namespace

void rms_norm(Context& context, const float* x, std::int64_t x_stride, std::int64_t rows,
              std::int64_t width, const float* weight, double eps, float* out,
              std::int64_t out_stride) {
  for_pieces(context, rows, rows_per_piece(width), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) {
      HWY_DYNAMIC_DISPATCH(RmsNormRow)(x + i * x_stride, width, weight, eps, out + i * out_stride);
    }
  });
}

void swiglu(Context& context, float* gate, const float* up, std::int64_t count) {
  for_pieces(context, count, kPiece, [&](std::int64_t first, std::int64_t some) {
    HWY_DYNAMIC_DISPATCH(SwigluPiece)(gate + first, up + first, some);
  });
}

void add_scaled(Context& context, float factor, const float* x, std::int64_t count, float* y) {
  for_pieces(context, count, kPiece, [&](std::int64_t first, std::int64_t some) {
    HWY_DYNAMIC_DISPATCH(AddScaledPiece)(factor, x + first, some, y + first);
  });
}

void embed(Context& context, const PackedMatrix& embedding, const std::int32_t* tokens,
           std::int64_t count, float factor, float* out) {
  const std::int64_t width = embedding.columns;
  for_pieces(context, count, rows_per_piece(width), [&](std::int64_t first, std::int64_t some) {
    thread_local std::vector<std::byte> restored;  // kept from call to call
    if (embedding.strips) restored.resize(embedding.row_bytes());
    for (std::int64_t i = first; i < first + some; ++i) {
      float* row = out + i * width;
      if (embedding.strips) strip_row_restore(embedding, tokens[i], restored.data());
      unpack_f32(embedding.type, embedding.strips ? restored.data() : embedding.row(tokens[i]), row,
                 width);
      if (factor != 1.0F) {
        for (std::int64_t c = 0; c < width; ++c) row[c] *= factor;
      }
    }
  });
}

void round_bf16(Context& context, const float* x, std::int64_t count, bf16_bits* out) {
  for_pieces(context, count, kPiece, [&](std::int64_t first, std::int64_t some) {
    HWY_DYNAMIC_DISPATCH(RoundBf16Piece)(x + first, some, out + first);
  });
}

bool packed_is_finite(const PackedMatrix& matrix) {
  constexpr std::uint16_t kHalfMask = 0x7c00;
  const std::int64_t values = matrix.rows * matrix.columns;
  switch (matrix.type) {
    case PackedType::f32:
      return HWY_DYNAMIC_DISPATCH(Finite32)(matrix.data, values);
    case PackedType::bf16:
      return HWY_DYNAMIC_DISPATCH(Finite16)(matrix.data, values, 0x7f80);
    case PackedType::f16:
      return HWY_DYNAMIC_DISPATCH(Finite16)(matrix.data, values, kHalfMask);
    default:
      break;
  }
  // In blocks only the shared scales can spoil a value: one or two half-precision numbers, at the
  // front of the block but for Q6_K, which has it last.
  const PackedTypeInfo& info = packed_type_info(matrix.type);
  const std::int64_t blocks = values / info.block_values;
  const bool two = matrix.type == PackedType::q4_1 || matrix.type == PackedType::q5_1 ||
                   matrix.type == PackedType::q4_k || matrix.type == PackedType::q5_k;
  const std::size_t offset = matrix.type == PackedType::q6_k ? info.block_bytes - 2 : 0;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::byte* block = matrix.data + static_cast<std::size_t>(i) * info.block_bytes + offset;
    std::uint16_t bits[2] = {0, 0};
    __builtin_memcpy(bits, block, two ? 4 : 2);
    bad |= static_cast<std::uint32_t>((bits[0] & kHalfMask) == kHalfMask) |
           static_cast<std::uint32_t>((bits[1] & kHalfMask) == kHalfMask);
  }
  return bad == 0;
}

}  // namespace lca
#endif
