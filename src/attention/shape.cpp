#include "core/error.h"
#include "core/text.h"

#include <lca/shape.h>

#include <fmt/ranges.h>

#include <cmath>

namespace lca {
namespace {

/// Far above any model; keeps products of three widths inside 64 bits.
constexpr std::int64_t kWidestShape = std::int64_t{1} << 20;

void check_width(std::string_view name, std::int64_t width) {
  if (width < 1 || width > kWidestShape) {
    fail_input("{} must be from 1 to {}, not {}", name, kWidestShape, width);
  }
}

void check_unused(std::string_view name, std::int64_t width, std::int64_t expected) {
  if (width != expected) fail_input("{} must be {} in this form, not {}", name, expected, width);
}

}  // namespace

AttentionShape AttentionShape::mla(std::int64_t heads, std::int64_t d_nope, std::int64_t d_rope,
                                   std::int64_t d_latent, std::int64_t d_value) {
  return {Form::mla, heads, 1, d_nope, d_rope, d_latent, d_value};
}

AttentionShape AttentionShape::gqa(std::int64_t heads, std::int64_t kv_heads, std::int64_t d_key,
                                   std::int64_t d_value) {
  return {Form::gqa, heads, kv_heads, 0, d_key, 0, d_value};
}

double AttentionShape::default_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(d_score()));
}

void AttentionShape::validate() const {
  check_width("the number of query heads", heads);
  check_width("the value width", d_value);
  if (form == Form::mla) {
    check_unused("the number of KV heads", kv_heads, 1);
    check_width("the non-RoPE key width", d_nope);
    check_width("the RoPE key width", d_rope);
    check_width("the latent width", d_latent);
    return;
  }
  check_width("the number of KV heads", kv_heads);
  check_width("the key width", d_rope);
  check_unused("the non-RoPE key width", d_nope, 0);
  check_unused("the latent width", d_latent, 0);
  if (heads % kv_heads != 0) {
    fail_input("{} query heads are not a multiple of {} KV heads", heads, kv_heads);
  }
}

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> shapes = [] {
    const auto lite = AttentionShape::mla(16, 128, 64, 512, 128);
    const auto minicpm3 = AttentionShape::mla(40, 64, 32, 256, 64);
    const auto qwen = AttentionShape::gqa(28, 4, 128, 128);
    const auto smollm2 = AttentionShape::gqa(9, 3, 64, 64);
    return std::vector<NamedShape>{
        // 192^−½ times the square of YaRN's mscale, 0.1·0.707·ln 40 + 1.
        {"deepseek-v2-lite", lite, 27, 2048, 0.1147213867929261},
        {"minicpm3", minicpm3, 62, 2560, minicpm3.default_scale()},
        {"qwen-7b", qwen, 28, 3584, qwen.default_scale()},
        {"smollm2", smollm2, 30, 576, smollm2.default_scale()},
    };
  }();
  return shapes;
}

const NamedShape& named_shape(std::string_view name) {
  std::vector<std::string_view> names;
  for (const NamedShape& shape : named_shapes()) {
    if (shape.name == name) return shape;
    names.push_back(shape.name);
  }
  fail_input("unknown shape \"{}\"; there are {}", text_printable(name), fmt::join(names, ", "));
}

}  // namespace lca
