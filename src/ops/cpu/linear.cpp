// Many rows: panels of the weight are unpacked (to bfloat16 or float32) and multiplied by oneDNN,
// one panel a task. Few rows, as in decoding, run on the packed blocks where the processor can (the
// bf16 path alone: it rounds activations to 8 bits); else each weight row is unpacked once and
// dotted with every activation row. A panel's size depends on the shape alone, so results do not
// depend on the number of threads.

#include "ops/linear.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cpp"
#include "ops/cpu/simd_targets.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "core/workspace.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/packed_dot.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float RowDot(const float* a, const float* b, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), sum3);
  }
  for (; i + lanes <= count; i += lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  }
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
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
/// Weight rows one task of the few-row product handles.
constexpr std::int64_t kRowsPerTask = 32;

/// Weight rows in a panel: about eight panels for a small matrix, a cache-sized one for a large.
std::int64_t panel_rows(std::int64_t out) {
  return std::clamp<std::int64_t>((out / 8 + 31) / 32 * 32, 32, 256);
}

/// Whether few rows are multiplied on the packed blocks, with activations in 8 bits.
bool runs_packed(const PackedMatrix& weight, ProductType type) {
  return type == ProductType::bf16 && packed_dot_supported(weight.type);
}

struct Scratch {
  bf16_bits* x = nullptr;  // [rows, in]: activations rounded
  std::byte* panels = nullptr;
  std::size_t panel_bytes = 0;
  std::size_t used = 0;

  std::byte* quantised = nullptr;  // activations in 8 bits

  Scratch(std::byte* block, const PackedMatrix& weight, ProductType type, std::int64_t rows,
          int threads) {
    Carver carver(block);
    const bool few = rows <= kFewRows;
    if (few && runs_packed(weight, type)) {
      const auto bytes = static_cast<std::int64_t>(quantised_bytes(rows, weight.columns));
      quantised = carver.take<std::byte>(bytes);
      used = carver.used();
      return;
    }
    const std::int64_t values = (few ? 1 : panel_rows(weight.rows)) * weight.columns;
    // Where bfloat16 is not native its values are widened again: both forms are held then.
    panel_bytes = align_up(static_cast<std::size_t>(values) * sizeof(float)) +
                  align_up(static_cast<std::size_t>(values) * sizeof(bf16_bits));
    if (type == ProductType::bf16) {
      x = carver.take<bf16_bits>(rows * weight.columns);
      carver.take<float>(product_bf16_is_native() ? 0 : rows * weight.columns);
    }
    panels = carver.take<std::byte>(static_cast<std::int64_t>(panel_bytes) * threads);
    used = carver.used();
  }
};

void few_rows(Context& context, const PackedMatrix& w, const Scratch& scratch, const float* x,
              std::int64_t rows, float* out, bool add) {
  const std::int64_t tasks = (w.rows + kRowsPerTask - 1) / kRowsPerTask;
  if (scratch.quantised != nullptr) {
    const QuantisedRows quantised = quantise_rows(x, rows, w.columns, scratch.quantised);
    context.pool().run(tasks, [&](std::int64_t task, int) {
      packed_dot(w, task * kRowsPerTask, std::min(w.rows, (task + 1) * kRowsPerTask), quantised,
                 rows, out, w.rows);
    });
    return;
  }
  const auto body = [&](std::int64_t task, int worker) {
    auto* row = reinterpret_cast<float*>(scratch.panels +
                                         static_cast<std::size_t>(worker) * scratch.panel_bytes);
    const std::int64_t end = std::min(w.rows, (task + 1) * kRowsPerTask);
    for (std::int64_t n = task * kRowsPerTask; n < end; ++n) {
      unpack_f32(w.type, w.row(n), row, w.columns);
      for (std::int64_t m = 0; m < rows; ++m) {
        const float dot = HWY_DYNAMIC_DISPATCH(RowDot)(x + m * w.columns, row, w.columns);
        float& to = out[m * w.rows + n];
        to = add ? to + dot : dot;
      }
    }
  };
  context.pool().run(tasks, body);
}

void many_rows(Context& context, const PackedMatrix& w, ProductType type, const Scratch& scratch,
               const float* x, std::int64_t rows, float* out, bool add) {
  const std::int64_t panel = panel_rows(w.rows);
  const std::int64_t tasks = (w.rows + panel - 1) / panel;
  const bool native = type == ProductType::bf16 && product_bf16_is_native();
  if (type == ProductType::bf16) {
    round_bf16(context, x, rows * w.columns, scratch.x);
    if (!native) {
      auto* wide = reinterpret_cast<float*>(
          reinterpret_cast<std::byte*>(scratch.x) +
          align_up(static_cast<std::size_t>(rows * w.columns) * sizeof(bf16_bits)));
      for (std::int64_t i = 0; i < rows * w.columns; ++i) wide[i] = bf16_to_f32(scratch.x[i]);
      x = wide;
    }
  }
  context.pool().run(tasks, [&](std::int64_t task, int worker) {
    std::byte* memory = scratch.panels + static_cast<std::size_t>(worker) * scratch.panel_bytes;
    auto* wide = reinterpret_cast<float*>(memory);
    const std::int64_t first = task * panel;
    const std::int64_t some = std::min(panel, w.rows - first);
    const std::int64_t values = some * w.columns;
    if (type == ProductType::bf16) {
      auto* narrow = reinterpret_cast<bf16_bits*>(
          memory + align_up(static_cast<std::size_t>(panel * w.columns) * sizeof(float)));
      unpack_bf16(w.type, w.row(first), narrow, values);
      if (native) {
        matmul_nt_bf16(rows, some, w.columns, scratch.x, narrow, out + first, w.rows);
        return;
      }
      for (std::int64_t i = 0; i < values; ++i) wide[i] = bf16_to_f32(narrow[i]);
    } else {
      unpack_f32(w.type, w.row(first), wide, values);
    }
    matmul_nt({x, rows, w.columns, w.columns}, {wide, some, w.columns, w.columns}, out + first,
              w.rows, add);
  });
}

/// out (+)= x · wᵀ. Adding is for float32 alone.
void product(Context& context, const PackedMatrix& w, ProductType type, const float* x,
             std::int64_t rows, float* out, bool add = false) {
  const std::size_t bytes = Scratch(nullptr, w, type, rows, context.threads()).used;
  const Scratch scratch(context.workspace().prepare(bytes), w, type, rows, context.threads());
  if (rows <= kFewRows) {
    few_rows(context, w, scratch, x, rows, out, add);
  } else {
    many_rows(context, w, type, scratch, x, rows, out, add);
  }
}

}  // namespace

std::size_t linear_workspace_bytes(const Linear& layer, std::int64_t rows, int threads) {
  return Scratch(nullptr, layer.weight, ProductType::bf16, rows, threads).used;
}

void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::int64_t rows, float* out) {
  product(context, layer.weight, type, x, rows, out);
  if (layer.bias != nullptr) {
    for (std::int64_t m = 0; m < rows; ++m) {
      float* row = out + m * layer.out();
      for (std::int64_t n = 0; n < layer.out(); ++n) row[n] += layer.bias[n];
    }
  }
  if (!layer.lora.empty()) {
    const std::int64_t rank = layer.lora.a.rows;
    thread_local std::vector<float> low;
    low.resize(static_cast<std::size_t>(rows * rank));
    product(context, layer.lora.a, ProductType::f32, x, rows, low.data());
    for (float& value : low) value *= layer.lora.scale;
    product(context, layer.lora.b, ProductType::f32, low.data(), rows, out, true);
  }
}

}  // namespace lca
#endif
