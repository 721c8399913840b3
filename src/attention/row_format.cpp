#include "attention/row_format.h"

#include <algorithm>
#include <cstring>

#include "attention/cpu/vector.h"

namespace lca {
namespace {

constexpr std::int64_t kLatentBlock = 128;

/// Plain values of one dtype as another.
void values_read(const std::byte* from, DType from_dtype, std::int64_t count, DType dtype,
                 void* values) {
  if (dtype == from_dtype) {
    std::memcpy(values, from, static_cast<std::size_t>(count) * dtype_bytes(dtype));
  } else if (dtype == DType::f32) {
    cpu::vector_widen(from, from_dtype, count, static_cast<float*>(values));
  } else {
    cpu::vector_store(reinterpret_cast<const float*>(from), count, dtype, values);
  }
}

}  // namespace

RowFormat::RowFormat(const LayerSpec& spec, CacheStorage storage)
    : int8_(storage == CacheStorage::int8),
      int8_positional_(int8_ && spec.shape.form == Form::gqa),
      dtype_(spec.dtype),
      kv_heads_(spec.shape.kv_heads),
      d_semantic_(spec.shape.d_semantic()),
      d_positional_(spec.shape.d_positional()),
      element_(static_cast<std::int64_t>(dtype_bytes(spec.dtype))),
      block_(spec.shape.form == Form::mla ? std::min(kLatentBlock, d_semantic_) : d_semantic_),
      semantic_scales_((d_semantic_ + block_ - 1) / block_) {}

void RowFormat::semantic_write(std::int64_t kv, const float* values, std::byte* semantic,
                               float* scales) const {
  if (!int8_) {
    cpu::vector_store(values, d_semantic_, dtype_, semantic + kv * d_semantic_ * element_);
    return;
  }
  auto* to = reinterpret_cast<std::int8_t*>(semantic) + kv * d_semantic_;
  scales += kv * semantic_scales_;
  for (std::int64_t at = 0; at < d_semantic_; at += block_) {
    *scales++ = cpu::vector_quantise(values + at, std::min(block_, d_semantic_ - at), to + at);
  }
}

void RowFormat::positional_write(std::int64_t kv, const float* values, std::byte* positional,
                                 float* scales) const {
  if (!int8_positional_) {
    cpu::vector_store(values, d_positional_, dtype_, positional + kv * d_positional_ * element_);
    return;
  }
  scales[positional_scale() + kv] = cpu::vector_quantise(
      values, d_positional_, reinterpret_cast<std::int8_t*>(positional) + kv * d_positional_);
}

void RowFormat::semantic_read(const CacheRows& rows, std::int64_t i, std::int64_t kv, DType dtype,
                              void* values) const {
  const std::byte* row = rows.semantic + i * semantic_bytes();
  if (!int8_) {
    values_read(row + kv * d_semantic_ * element_, dtype_, d_semantic_, dtype, values);
    return;
  }
  const auto* from = reinterpret_cast<const std::int8_t*>(row) + kv * d_semantic_;
  const float* scale = rows.scales + i * scales() + kv * semantic_scales_;
  auto* to = static_cast<std::byte*>(values);
  for (std::int64_t at = 0; at < d_semantic_; at += block_) {
    cpu::vector_dequantise(from + at, *scale++, std::min(block_, d_semantic_ - at), dtype,
                           to + static_cast<std::size_t>(at) * dtype_bytes(dtype));
  }
}

void RowFormat::positional_read(const CacheRows& rows, std::int64_t i, std::int64_t kv, DType dtype,
                                void* values) const {
  const std::byte* row = rows.positional + i * positional_bytes();
  if (!int8_positional_) {
    values_read(row + kv * d_positional_ * element_, dtype_, d_positional_, dtype, values);
    return;
  }
  cpu::vector_dequantise(reinterpret_cast<const std::int8_t*>(row) + kv * d_positional_,
                         rows.scales[i * scales() + positional_scale() + kv], d_positional_, dtype,
                         values);
}

void RowFormat::semantic_read(const CacheRows& rows, std::int64_t i, float* values) const {
  for (std::int64_t kv = 0; kv < kv_heads_; ++kv) {
    semantic_read(rows, i, kv, DType::f32, values + kv * d_semantic_);
  }
}

void RowFormat::positional_read(const CacheRows& rows, std::int64_t i, float* values) const {
  for (std::int64_t kv = 0; kv < kv_heads_; ++kv) {
    positional_read(rows, i, kv, DType::f32, values + kv * d_positional_);
  }
}

}  // namespace lca
