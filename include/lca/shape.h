#pragma once
/// The dimensions of one attention layer, in both forms.

#include <cstdint>
#include <string_view>
#include <vector>

namespace lca {

/// MLA caches one latent and one RoPE key a token; GQA caches a key and a value per KV head.
enum class Form : std::uint8_t { mla = 0, gqa = 1 };

/// Which channels RoPE rotates together: i with i + width/2, or 2i with 2i + 1.
enum class RopeLayout : std::uint8_t { halves = 0, adjacent = 1 };

/// How a rotated row is rotated on to another position. Channels beyond 2·frequencies.size() are
/// not rotated.
struct Rotation {
  RopeLayout layout = RopeLayout::halves;
  std::vector<double> frequencies;  ///< radians a position, one for each pair of channels

  bool operator==(const Rotation&) const = default;
};

/// Widths of one attention layer. Fields of the other form stay 0.
struct AttentionShape {
  Form form = Form::mla;
  std::int64_t heads = 0;     ///< H, query heads
  std::int64_t kv_heads = 1;  ///< GQA: KV heads, a divisor of H; MLA: 1, the shared latent
  std::int64_t d_nope = 0;    ///< MLA: d_n, key width without position
  std::int64_t d_rope = 0;    ///< MLA: d_r, RoPE key width; GQA: d, the whole key
  std::int64_t d_latent = 0;  ///< MLA: d_c
  std::int64_t d_value = 0;   ///< d_v

  static AttentionShape mla(std::int64_t heads, std::int64_t d_nope, std::int64_t d_rope,
                            std::int64_t d_latent, std::int64_t d_value);
  static AttentionShape gqa(std::int64_t heads, std::int64_t kv_heads, std::int64_t d_key,
                            std::int64_t d_value);

  /// Width of a query and of a key in the score: d_n + d_r, or d.
  std::int64_t d_score() const { return d_nope + d_rope; }
  /// Width of the pooled part of a cache entry, per KV head: d_c, or d_v.
  std::int64_t d_semantic() const { return form == Form::mla ? d_latent : d_value; }
  /// Width of the selected part of a cache entry, per KV head: d_r, or d.
  std::int64_t d_positional() const { return d_rope; }
  /// E, values in one cache entry: d_c + d_r, or KV·(d + d_v).
  std::int64_t entry_values() const { return kv_heads * (d_semantic() + d_positional()); }
  /// Query heads that share one KV head.
  std::int64_t heads_per_kv() const { return heads / kv_heads; }
  /// The default softmax scale, d_score^−½.
  double default_scale() const;
  /// Throws Error where a width is out of range or H is not a multiple of KV.
  void validate() const;

  bool operator==(const AttentionShape&) const = default;
};

/// A published model's attention, for benchmarks and plans.
struct NamedShape {
  std::string_view name;
  AttentionShape shape;
  std::int64_t layers;
  std::int64_t hidden;
  double scale;  ///< the model's own softmax scale
};

/// All named shapes: deepseek-v2-lite, minicpm3, qwen-7b, smollm2.
const std::vector<NamedShape>& named_shapes();

/// Looks a shape up by name; throws Error that lists the names.
const NamedShape& named_shape(std::string_view name);

}  // namespace lca
