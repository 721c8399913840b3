// Many rows: panels of the weight are unpacked (to bfloat16 or float32) and multiplied by oneDNN,
// one panel a task. Few rows, as in decoding, run on the packed blocks where the processor can (the
// bf16 path alone: it rounds activations to 15 bits); else each weight row is unpacked once and
// dotted with every activation row. A panel's size depends on the shape alone, so results do not
// depend on the number of threads.

#include "ops/linear.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cpp"
#include "ops/cpu/foreach_target.h"
#include "ops/cpu/dot-inl.h"
// clang-format on

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "core/workspace.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/packed_dot.h"
#include "ops/strips.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

float RowDot(const float* a, const float* b, std::int64_t count) {
  return cpu::HWY_NAMESPACE::Dot<4>(a, b, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(RowDot);

namespace {

/// Up to so many rows a weight row is unpacked and dotted; beyond, oneDNN's blocking wins.
constexpr std::int64_t kFewRows = 12;
/// Weight rows one task of the few-row product handles: long pieces, which memory likes, but
/// several for each thread.
std::int64_t rows_per_task(const PackedMatrix& weight, int threads) {
  constexpr std::int64_t kFewest = kStripRows;
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t rows = weight.rows / (kTasksPerThread * threads) / kFewest * kFewest;
  return std::max(kFewest, rows);
}

/// Weight rows in a panel: about eight panels for a small matrix, a cache-sized one for a large.
std::int64_t panel_rows(std::int64_t out) {
  return std::clamp<std::int64_t>((out / 8 + 31) / 32 * 32, 32, 256);
}

/// Whether few rows are multiplied on the packed blocks, with activations in 15 bits.
bool runs_packed(const PackedMatrix& weight, ProductType type) {
  return weight.strips || (type == ProductType::bf16 && packed_dot_supported(weight.type));
}

/// One of several products that share their activations.
struct Product {
  PackedMatrix weight;
  float* out = nullptr;
};

/// Scratch memory of a group of products.
struct Scratch {
  bf16_bits* x = nullptr;          // [rows, in]: activations rounded to bfloat16
  float* wide_x = nullptr;         // and widened again, where bfloat16 is not native
  std::byte* quantised = nullptr;  // activations in 15 bits
  std::byte* panels = nullptr;     // one for each thread: float32, then bfloat16
  std::size_t wide_bytes = 0;      // of the float32 part
  std::size_t panel_bytes = 0;
  std::size_t used = 0;

  Scratch(std::byte* block, std::span<const Product> group, ProductType type, std::int64_t rows,
          int threads) {
    Carver carver(block);
    const std::int64_t in = group[0].weight.columns;
    const bool few = rows <= kFewRows;
    bool unpacks = false;
    std::int64_t weight_rows = 1;
    for (const Product& product : group) {
      unpacks = unpacks || !few || !runs_packed(product.weight, type);
      if (!few) weight_rows = std::max(weight_rows, panel_rows(product.weight.rows));
    }
    if (few && std::ranges::any_of(group, [&](const Product& product) {
          return runs_packed(product.weight, type);
        })) {
      quantised = carver.take<std::byte>(static_cast<std::int64_t>(quantised_bytes(rows, in)));
    }
    if (!few && type == ProductType::bf16) {
      x = carver.take<bf16_bits>(rows * in);
      if (!product_bf16_is_native()) wide_x = carver.take<float>(rows * in);
    }
    if (unpacks) {
      wide_bytes = align_up(static_cast<std::size_t>(weight_rows * in) * sizeof(float));
      panel_bytes =
          wide_bytes + align_up(static_cast<std::size_t>(weight_rows * in) * sizeof(bf16_bits));
      panels = carver.take<std::byte>(static_cast<std::int64_t>(panel_bytes) * threads);
    }
    used = carver.used();
  }

  std::byte* panel(int worker) const {
    return panels + static_cast<std::size_t>(worker) * panel_bytes;
  }
};

/// Shares the weight rows of all products out, at most step(product) rows a task: body(product,
/// first, count, worker).
template <typename Step, typename Body>
void for_weight_rows(Context& context, std::span<const Product> group, const Step& step,
                     const Body& body) {
  const auto tasks_of = [&](const Product& product) {
    return (product.weight.rows + step(product) - 1) / step(product);
  };
  std::int64_t tasks = 0;
  for (const Product& product : group) tasks += tasks_of(product);
  context.pool().run(tasks, [&](std::int64_t task, int worker) {
    const Product* product = group.data();
    for (; task >= tasks_of(*product); ++product) task -= tasks_of(*product);
    const std::int64_t first = task * step(*product);
    body(*product, first, std::min(step(*product), product->weight.rows - first), worker);
  });
}

void few_rows(Context& context, std::span<const Product> group, ProductType type,
              const Scratch& scratch, const float* x, std::int64_t rows, bool add) {
  const std::int64_t in = group[0].weight.columns;
  QuantisedRows quantised;
  if (std::ranges::any_of(group, [&](const Product& p) { return runs_packed(p.weight, type); })) {
    quantised = quantise_rows(x, rows, in, scratch.quantised);
  }
  for_weight_rows(
      context, group,
      [&](const Product& product) { return rows_per_task(product.weight, context.threads()); },
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        if (w.strips) {
          strips_dot(w, first, first + count, quantised, rows, product.out, w.rows);
          return;
        }
        if (runs_packed(w, type)) {
          packed_dot(w, first, first + count, quantised, rows, product.out, w.rows);
          return;
        }
        auto* row = reinterpret_cast<float*>(scratch.panel(worker));
        for (std::int64_t n = first; n < first + count; ++n) {
          unpack_f32(w.type, w.row(n), row, in);
          for (std::int64_t m = 0; m < rows; ++m) {
            const float dot = HWY_DYNAMIC_DISPATCH(RowDot)(x + m * in, row, in);
            float& to = product.out[m * w.rows + n];
            to = add ? to + dot : dot;
          }
        }
      });
}

/// Rows of a weight in bfloat16; `scratch` takes 16 packed rows.
void unpack_panel(const PackedMatrix& w, std::int64_t first, std::int64_t count, bf16_bits* out,
                  void* scratch) {
  if (!w.strips) {
    unpack_bf16(w.type, w.row(first), out, count * w.columns);
    return;
  }
  auto* rows = static_cast<std::byte*>(scratch);
  for (std::int64_t n = 0; n < count; n += kStripRows) {
    const std::int64_t some = std::min(kStripRows, count - n);
    strip_restore(w, (first + n) / kStripRows, some, rows);
    unpack_bf16(w.type, rows, out + n * w.columns, some * w.columns);
  }
}

void many_rows(Context& context, std::span<const Product> group, ProductType type,
               const Scratch& scratch, const float* x, std::int64_t rows, bool add) {
  const std::int64_t in = group[0].weight.columns;
  const bool native = type == ProductType::bf16 && product_bf16_is_native();
  if (type == ProductType::bf16) {
    round_bf16(context, x, rows * in, scratch.x);
    if (!native) {
      for (std::int64_t i = 0; i < rows * in; ++i) scratch.wide_x[i] = bf16_to_f32(scratch.x[i]);
      x = scratch.wide_x;
    }
  }
  for_weight_rows(
      context, group, [](const Product& product) { return panel_rows(product.weight.rows); },
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        auto* wide = reinterpret_cast<float*>(scratch.panel(worker));
        const std::int64_t values = count * in;
        if (type == ProductType::bf16) {
          auto* narrow = reinterpret_cast<bf16_bits*>(scratch.panel(worker) + scratch.wide_bytes);
          unpack_panel(w, first, count, narrow, wide);
          if (native) {
            matmul_nt_bf16(rows, count, in, scratch.x, narrow, product.out + first, w.rows);
            return;
          }
          for (std::int64_t i = 0; i < values; ++i) wide[i] = bf16_to_f32(narrow[i]);
        } else if (w.strips) {
          fail_internal("weights in strips are for products that round");
        } else {
          unpack_f32(w.type, w.row(first), wide, values);
        }
        matmul_nt({x, rows, in, in}, {wide, count, in, in}, product.out + first, w.rows, add);
      });
}

/// out (+)= x · wᵀ for every product of the group. Adding is for float32 alone.
void multiply(Context& context, std::span<const Product> group, ProductType type, const float* x,
              std::int64_t rows, bool add = false) {
  const std::size_t bytes = Scratch(nullptr, group, type, rows, context.threads()).used;
  const Scratch scratch(context.workspace().prepare(bytes), group, type, rows, context.threads());
  if (rows <= kFewRows) {
    few_rows(context, group, type, scratch, x, rows, add);
  } else {
    many_rows(context, group, type, scratch, x, rows, add);
  }
}

/// What comes on top of a product: the bias and the adapter's change.
void add_rest(Context& context, const Linear& layer, const float* x, std::int64_t rows,
              float* out) {
  if (layer.bias != nullptr) {
    for (std::int64_t m = 0; m < rows; ++m) {
      float* row = out + m * layer.out();
      for (std::int64_t n = 0; n < layer.out(); ++n) row[n] += layer.bias[n];
    }
  }
  if (!layer.lora.empty()) {
    thread_local std::vector<float> low;
    low.resize(static_cast<std::size_t>(rows * layer.lora.a.rows));
    const Product down{layer.lora.a, low.data()};
    multiply(context, {&down, 1}, ProductType::f32, x, rows);
    for (float& value : low) value *= layer.lora.scale;
    const Product up{layer.lora.b, out};
    multiply(context, {&up, 1}, ProductType::f32, low.data(), rows, true);
  }
}

}  // namespace

void linear_group(Context& context, std::span<const LinearCall> calls, ProductType type,
                  const float* x, std::int64_t rows) {
  std::array<Product, kLargestGroup> group;
  if (calls.empty() || calls.size() > kLargestGroup)
    fail_internal("a group of {} products", calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) group[i] = {calls[i].layer->weight, calls[i].out};
  multiply(context, std::span(group).first(calls.size()), type, x, rows);
  for (const LinearCall& call : calls) add_rest(context, *call.layer, x, rows, call.out);
}

void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::int64_t rows, float* out) {
  LinearCall call;
  call.layer = &layer;
  call.out = out;
  linear_group(context, {&call, 1}, type, x, rows);
}

}  // namespace lca
#endif
