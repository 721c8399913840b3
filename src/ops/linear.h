#pragma once
/// Products of activations with weights that stay packed, with a bias and a LoRA change beside
/// them.

#include <lca/context.h>

#include <cstdint>
#include <span>

#include "ops/lora.h"
#include "ops/packed.h"

namespace lca {

/// What both factors are rounded to before they are multiplied; sums are float32.
enum class ProductType : std::uint8_t { f32, bf16 };

/// A low-rank change of a weight: W + scale · B·A.
struct Lora {
  PackedMatrix a;  ///< [rank, in]
  PackedMatrix b;  ///< [out, rank]
  float scale = 1;
  LoraPanels panels;  ///< the same as the products here read it

  bool empty() const { return a.empty(); }
  /// What the layout stores: bfloat16 where products round to it, or where nothing is lost.
  DType layout_type(ProductType type) const {
    const bool exact = a.type == PackedType::bf16 && b.type == PackedType::bf16;
    return type == ProductType::bf16 || exact ? DType::bf16 : DType::f32;
  }
  std::size_t layout_bytes(ProductType type) const {
    return lora_bytes(a.rows, a.columns, b.rows, layout_type(type));
  }
  /// Lays it out at `to`, which has layout_bytes and must outlive the products.
  void arrange(ProductType type, std::byte* to) {
    panels = lora_arrange(a, b, scale, layout_type(type), to);
  }
};

/// A linear layer.
struct Linear {
  PackedMatrix weight;          ///< [out, in]
  const float* bias = nullptr;  ///< [out], or null
  Lora lora;

  bool empty() const { return weight.empty(); }
  std::int64_t in() const { return weight.columns; }
  std::int64_t out() const { return weight.rows; }
};

/// out[rows, layer.out()] = x[rows, layer.in()] · Wᵀ + bias + scale·(x·Aᵀ)·Bᵀ. The result does not
/// depend on the number of threads. A LoRA change must be arranged. Uses the context's workspace.
void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::int64_t rows, float* out);

/// The same for the rows of several runs, one after another: each run gets bit for bit what it gets
/// alone. Which product a run takes (packed blocks or unpacked panels) depends on its own length,
/// and a weight is read once for all.
void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::span<const std::int64_t> runs, float* out);

/// One of several layers that read the same activations.
struct LinearCall {
  const Linear* layer = nullptr;
  float* out = nullptr;
};

inline constexpr std::size_t kLargestGroup = 16;

/// The same for up to kLargestGroup layers of equal width in(): activations are rounded once and
/// the work is shared out once, LoRA changes included.
void linear_group(Context& context, std::span<const LinearCall> calls, ProductType type,
                  const float* x, std::span<const std::int64_t> runs);

}  // namespace lca
