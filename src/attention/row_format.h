#pragma once
/// How the cache stores a row: in its dtype, or in 8 bits with scales (mechanism §7).
///
/// A row has three parts, each in memory of its own. Plain: semantic [KV][d_semantic] and
/// positional [KV][d_positional] in the dtype; no scales. int8: the semantic part in 8 bits, and
/// GQA's positional part too (MLA's stays in the dtype); scales are float32: those of the semantic
/// part, one for each KV head (MLA: for each 128 values of the latent), then GQA's of the
/// positional part, one for each KV head.

#include <lca/cache.h>

#include <cstddef>
#include <cstdint>

namespace lca {

/// A run of rows where they lie: row i of a part is i times its bytes further.
struct CacheRows {
  const std::byte* semantic = nullptr;
  const std::byte* positional = nullptr;
  const float* scales = nullptr;  ///< null where the format has none
  std::int64_t count = 0;
};

/// The format of rows of one layer.
class RowFormat {
 public:
  static RowFormat plain(const LayerSpec& spec) { return {spec, CacheStorage::plain}; }
  /// Of all rows but those of the sink, which is plain.
  static RowFormat of(const LayerSpec& spec) { return {spec, spec.storage}; }

  bool int8() const { return int8_; }
  DType dtype() const { return dtype_; }
  std::int64_t semantic_bytes() const { return kv_heads_ * d_semantic_ * (int8_ ? 1 : element_); }
  std::int64_t positional_bytes() const {
    return kv_heads_ * d_positional_ * (int8_positional_ ? 1 : element_);
  }
  std::int64_t scale_bytes() const { return scales() * static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t bytes() const { return semantic_bytes() + positional_bytes() + scale_bytes(); }
  /// Whether the positional part is in 8 bits too.
  bool int8_positional() const { return int8_positional_; }
  /// Scales of a row, and of one KV head's semantic part; those of the positional part begin at
  /// `positional_scale`.
  std::int64_t scales() const {
    return int8_ ? kv_heads_ * (semantic_scales_ + (int8_positional_ ? 1 : 0)) : 0;
  }
  std::int64_t semantic_scales() const { return semantic_scales_; }
  std::int64_t positional_scale() const { return kv_heads_ * semantic_scales_; }
  /// Values that share a scale in the semantic part.
  std::int64_t block() const { return block_; }

  /// One KV head's part of a row, from float32; `semantic`, `positional` and `scales` are the
  /// row's.
  void semantic_write(std::int64_t kv, const float* values, std::byte* semantic,
                      float* scales) const;
  void positional_write(std::int64_t kv, const float* values, std::byte* positional,
                        float* scales) const;
  /// One KV head's part of row i, in either dtype.
  void semantic_read(const CacheRows& rows, std::int64_t i, std::int64_t kv, DType dtype,
                     void* values) const;
  void positional_read(const CacheRows& rows, std::int64_t i, std::int64_t kv, DType dtype,
                       void* values) const;
  /// The same as float32, all KV heads.
  void semantic_read(const CacheRows& rows, std::int64_t i, float* values) const;
  void positional_read(const CacheRows& rows, std::int64_t i, float* values) const;

 private:
  RowFormat(const LayerSpec& spec, CacheStorage storage);

  bool int8_, int8_positional_;
  DType dtype_;
  std::int64_t kv_heads_, d_semantic_, d_positional_;
  std::int64_t element_;  ///< bytes of a value of `dtype_`
  std::int64_t block_, semantic_scales_;
};

}  // namespace lca
